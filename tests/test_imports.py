"""Imports that import-linter does not check: the standard library, unpickling, imports by name, and their weight."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {str(path.relative_to(ROOT)): path for folder in ("nas", "flows") for path in (ROOT / folder).rglob("*.py")}
HEAVY = ("torch", "numpy", "pandas", "prefect", "hydra", "omegaconf", "sklearn", "rich", "fastapi", "pytest")


@cache
def parsed(path: Path) -> list[ast.AST]:
    """The nodes of a source."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imported_by(path: Path) -> frozenset[str]:
    """The modules that a source imports."""
    return frozenset(imported(parsed(path)))


def imported(nodes: list[ast.AST]) -> Iterator[str]:
    """The modules that a source imports, anywhere in it, in type annotations too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def importers(*packages: str) -> set[str]:
    """The sources that import one of these packages."""
    return {
        name
        for name, path in SOURCES.items()
        if any(module.partition(".")[0] in packages for module in imported(parsed(path)))
    }


def loaded_by(module: str) -> set[str]:
    """What a fresh process has loaded of the heavy packages after importing this module."""
    program = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_sources_are_found() -> None:
    """The walk sees both packages."""
    assert {"nas/search/controller.py", "flows/engine/tasks.py"} <= SOURCES.keys()


def test_core_imports_the_standard_library_only() -> None:
    """Modules of nas.core import the standard library and nas.core."""
    found = {
        module
        for name, path in SOURCES.items()
        if name.startswith("nas/core/")
        for module in imported_by(path)
        if module.partition(".")[0] not in sys.stdlib_module_names and not f"{module}.".startswith("nas.core.")
    }

    assert found == set()


def test_root_of_nas_has_the_public_names_only() -> None:
    """The root of nas holds __init__.py and py.typed, and packages."""
    assert {path.name for path in (ROOT / "nas").iterdir() if path.is_file()} == {"__init__.py", "py.typed"}


def test_library_does_not_import_conf() -> None:
    """nas does not import conf, which import-linter does not see."""
    assert not {name for name in importers("conf") if name.startswith("nas/")}


def test_tests_are_no_dependency() -> None:
    """Neither package imports a test framework, or a test."""
    assert importers("pytest", "hypothesis", "tests") == set()


def prints(path: Path) -> bool:
    """Returns whether a source calls ``print``, ``console.print`` or ``stdout.write``."""
    calls = [node.func for node in parsed(path) if isinstance(node, ast.Call)]
    return any(re.search(r"(^|console\.)print$|std(out|err)\.write$", ast.unparse(call)) for call in calls)


def test_commands_print_clean_text_only() -> None:
    """All output goes through ``flows.cli.output``, which cleans it; the others clean it themselves."""
    paths = [path for folder in ("flows", "nas/views") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in paths if prints(path)}

    assert found == {
        "flows/cli/output.py",
        "flows/views/delivery.py",  # csv, json and html
        "nas/views/progress.py",  # the live display
        "flows/views/terminal.py",  # tables
    }


UNPICKLERS = frozenset(
    ("pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "copyreg", "code", "runpy", "imp")
)
EVALUATORS = frozenset(("eval", "exec", "compile", "__import__"))
LOADERS = frozenset(("load", "unsafe_load", "full_load", "load_all", "read_pickle", "load_module", "exec_module"))
"""Of a module; what a method of that name does is its class's business."""
ALLOWED = {
    ("nas/testing/problems.py", "pickle"): "the check that a problem travels: to a process of its own and back",
    ("nas/compat/rafiki/__main__.py", "runpy"): "runs the file that the command line names",
    ("nas/tuners/smac.py", "joblib"): "keeps SMAC's forest in this process: nothing is loaded by it",
    ("nas/executors/worker_main.py", "recv"): "the pipe between a driver and the worker that it has spawned itself",
    ("nas/executors/worker_process.py", "recv"): "its other end",
    ("nas/executors/worker_process.py", "pickle"): "only dumps: the problem, for a worker that it spawns itself",
    (
        "nas/executors/engine_worker.py",
        "pickle",
    ): "messages between a driver and its Dask or Ray workers",
    ("nas/executors/ray_driver.py", "recv"): "the pipe between a driver and the process that it has spawned itself",
    ("nas/executors/ray_pool.py", "recv"): "its other end",
    ("nas/executors/supervisor.py", "recv"): "a socket's: the bytes of an order, a word of a fixed list",
    ("nas/executors/supervised_process.py", "recv"): "its other end",
    ("nas/__init__.py", "load"): "the results of a search: nas/api/results.py",
    ("nas/search/imported_weights.py", "load"): "safetensors', a format of nothing but tensors",
    ("nas/integrations/lightning.py", "load"): "torch's, of the file that this process has just written, with",
    ("nas/integrations/lightning.py", "weights_only"): "False: arguments of the module may have any type",
    ("nas/problems/cifar10.py", "load"): "numpy's, which unpickles nothing with",
    ("nas/problems/cifar10.py", "allow_pickle"): "False (tests/nas/problems/test_cifar10.py)",
    ("nas/problems/squad/vectors.py", "load"): "the same",
    ("nas/problems/squad/vectors.py", "allow_pickle"): "False (tests/nas/problems/squad/test_problem.py)",
}


def unpicklers(nodes: list[ast.AST]) -> set[str]:
    """What a source uses that may run code which it was given as data."""
    found = {module for module in imported(nodes) if module.partition(".")[0] in UNPICKLERS}
    found |= {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module != "json"
        for alias in node.names
        if alias.name in LOADERS
    }
    modules = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in EVALUATORS:
                found.add(name)
            case ast.Call(func=ast.Attribute(attr="recv")):
                found.add("recv")  # multiprocessing's connections unpickle
            case ast.Call(func=ast.Attribute(attr=name) as function) if name in LOADERS:
                if ast.unparse(function.value).partition(".")[0] in modules - {"json"}:
                    found.add(name)
            case ast.keyword(arg="allow_pickle" | "weights_only" as name):
                found.add(name)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n from dill import loads",
        "import torch\ntorch.load(x)",
        "from torch import load as read\nread(x)",
        "import torch\ntorch.jit.load(x)",
        "import numpy as np\nnp.load(x, allow_pickle=True)",
        "eval(x)",
        "__import__(x)",
        "import yaml\nyaml.unsafe_load(x)",
        "import pandas as pd\npd.read_pickle(x)",
    ],
)
def test_unpicklers_are_found(source: str) -> None:
    """The search for what runs code finds each of its forms."""
    assert unpicklers(list(ast.walk(ast.parse(source))))


def test_nothing_is_unpickled_or_evaluated() -> None:
    """No source of ours unpickles, evaluates or loads by another library what it reads, but for those with a reason.

    Between the driver and its own workers, multiprocessing pickles; no file takes part, and no
    other machine but those of a Dask or Ray cluster, which run any code that they are sent.
    """
    found = {(name, used) for name, path in SOURCES.items() for used in unpicklers(parsed(path))}

    assert found == ALLOWED.keys()


def test_code_is_imported_by_name_in_few_places() -> None:
    """Modules are imported by a name that is no literal for what the command line names, and from nas's own tables."""
    found = {
        name
        for name, path in SOURCES.items()
        for node in parsed(path)
        if isinstance(node, ast.Call)
        and "import_module" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))
        if not isinstance(node.args[0], ast.Constant)
    }

    assert found == {
        "flows/cli/script.py",  # one of its own commands
        "nas/__init__.py",
        "nas/core/targets.py",
        "nas/storage/backends/object_backend.py",
        "nas/compat/nni/sdk/nni/tuner_server.py",  # the tuner's own process: the class that config.yml names
    }


@pytest.mark.parametrize(
    "module", ["nas", "nas.search.pipeline", "nas.executors.process_pool", "nas.tuners.evolution", "nas.testing"]
)
def test_library_is_light(module: str) -> None:
    """Importing Heirloom, its program and its worker loads neither torch nor pandas, Prefect or Hydra."""
    assert loaded_by(module) == set()


def test_names_of_the_library_are_there() -> None:
    """Every public name can be had from nas, is listed, and is the one of its module; another is an AttributeError."""
    import nas

    for name in nas.__all__:
        assert getattr(nas, name) is not None
        assert name in dir(nas)
    assert not hasattr(nas, "Experiment")


def test_no_public_name_is_a_package() -> None:
    """No public name equals a package's name: importing the package would replace it."""
    import nas

    assert not {path.name for path in (ROOT / "nas").iterdir()} & set(nas.__all__)


def test_version_is_the_distributions() -> None:
    """nas.__version__ is the version in pyproject.toml; it is looked up when asked for, and listed."""
    import nas

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    program = (
        "import sys; before = set(sys.modules); import nas; "
        "print('importlib.metadata' in sys.modules.keys() - before, nas.__version__)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert run.stdout.split() == ["False", project["version"]]
    assert "__version__" in dir(nas)


@pytest.mark.parametrize("module", ["flows.search", "flows.final"])
def test_spawned_workers_import_little(module: str) -> None:
    """The command's module, which each spawned worker imports again as its main module, loads nothing heavy."""
    assert loaded_by(module) == set()
