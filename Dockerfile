# docker build -t heirloom . && docker run --rm --init -v "$PWD:/work" heirloom
FROM python:3.11-slim
# --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu: torch without CUDA
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt ".[dask,ray,s3]"
# dask-kubernetes starts this program, which Dask has no more
RUN printf '#!/bin/sh\nexec dask scheduler "$@"\n' >"$(dirname "$(command -v pip)")/dask-scheduler" && \
    chmod +x "$(dirname "$(command -v pip)")/dask-scheduler"
# Prefect's settings; docker run --user may name any user
ENV HOME=/tmp
WORKDIR /work
# No ENTRYPOINT: Kubernetes starts Dask's and Ray's programs in this image
CMD ["heirloom", "search", "+tuner=evolution"]
