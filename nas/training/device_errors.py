"""Recognizes errors of devices and of memory in exceptions that a problem's code raised."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from nas.core.tracebacks import text_of

OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED", re.IGNORECASE)
DEVICE = re.compile(
    r"(?:CUDA|HIP) (?:error|out of memory|driver error|kernel errors)|cuDNN error|NCCL error"
    r"|device-side assert|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the error or a cause of it says that memory is used up."""
    import torch

    return any(
        isinstance(cause, MemoryError | torch.OutOfMemoryError)
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)  # of a fork, or of mapping a file
        or (isinstance(cause, RuntimeError) and OUT_OF_MEMORY.search(text_of(cause)) is not None)
        for cause in _causes(error)
    )


def is_device_error(error: BaseException) -> bool:
    """Returns whether the error or a cause of it comes from CUDA or its libraries.

    After some of these errors every later call in the process fails.
    """
    import torch

    kinds = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
    return any(
        isinstance(cause, kinds) or (isinstance(cause, RuntimeError) and DEVICE.search(text_of(cause)) is not None)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, the one that it was raised from, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
