# Install Heirloom and what its tests need, as tested, into the present environment
setup:
    pip install -c constraints.txt -e ".[test]"

# The fast tests
test:
    python -m pytest -n 2 --dist loadfile

# The slow tests: real NFS, kills, servers, a browser
test-slow:
    python -m pytest -m slow -n 3 --dist loadfile

# The fast tests with the lowest versions that pyproject.toml allows, in an environment of their own
test-lowest:
    .ci/lowest

# Lint, format, layers and types
check:
    ruff check . && ruff format --check . && lint-imports && mypy

# A first search
search:
    python -m flows.search +tuner=evolution

# The newest search as a page
report:
    python -m flows.report name=last format=html

# Ratios of docs/benchmarks.md
bench:
    python benchmarks/overhead.py && python benchmarks/startup.py && python benchmarks/lineage.py
    python benchmarks/remote.py

# The documentation site, in site/; `zensical serve` shows it
docs:
    zensical build -c -s

# Remove what tools leave behind
clean:
    rm -rf build dist site .cache *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
