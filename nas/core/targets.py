"""The class or function at a dotted path, with errors of one line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError, HeirloomError
from nas.core.tracebacks import is_users_file, text_of
from nas.core.validation import near_names

_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_MAX_FILES = 200
"""The most files of a folder in which similar classes are looked for."""


def load_target(target: str) -> Any:
    """Returns what a dotted path names.

    Raises:
        ConfigurationError: it names nothing, or its module can't be imported.
    """
    module_name, _, name = target.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in target.split(".")):
        raise ConfigurationError(f"_target_={target}: must be a dotted path: module.ClassName")
    module = _import(target, module_name)
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigurationError(f"_target_={target}: module {module_name} has no {name}{_remedy(target)}") from error


def _import(target: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except HeirloomError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            remedy = _remedy(target) or ". Run the command in the folder that contains it"
            raise ConfigurationError(f"_target_={target}: no module {missing}{remedy}") from error
        raise ConfigurationError(f"_target_={target}: {_import_error(error)}") from error


def _import_error(error: BaseException) -> str:
    """Returns file, line, error and remedy of a module that can't be imported."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}. Fix this line"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if is_users_file(frame.filename)] or frames
    where = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    text = " ".join(text_of(error).split()).removesuffix(".")
    return f"{where}{type(error).__name__}: {text}. {_import_remedy(error)}"


def _import_remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"Install {error.name.partition('.')[0]} where Heirloom is installed, or fix this import"
    return "Fix this import" if isinstance(error, ImportError) else "Fix this line, which runs at import"


def _remedy(target: str) -> str:
    """Returns the end of an error: a similar path, or a hint at the package's name."""
    if (similar := _similar(target)) is not None:
        return f"; did you mean {similar}?"
    package = target.partition(".")[0]
    if package not in ("nas", "flows"):
        return ""
    return f". {package} is Heirloom's own package: rename yours if it is called {package}"


def _similar(target: str) -> str | None:
    """Returns the path of the class with the most similar name, or None."""
    module_name, _, name = target.rpartition(".")
    found: dict[str, str] = {}
    for path, module in _modules_near(module_name):
        text = ""
        with suppress(OSError):  # not a file, or not readable
            text = path.read_text(encoding="utf-8", errors="replace")
        for class_name in _CLASS.findall(text):
            found.setdefault(class_name.lower(), f"{module}.{class_name}")
    near = near_names(name.lower(), found, n=1, cutoff=0.75)
    return found[near[0]] if near and found[near[0]] != target else None


def _modules_near(module_name: str) -> Iterator[tuple[Path, str]]:
    """Yields the files of a module and in it, or else beside it, with their names."""
    parent, _, last = module_name.rpartition(".")
    spec = _spec(module_name)
    if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
        yield Path(spec.origin), module_name
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from ((path, f"{module_name}.{path.stem}") for path in _files(folder))
    if spec is not None:
        return
    above = _spec(parent) if parent else None
    folders = [os.getcwd()] if not parent else (above.submodule_search_locations or ()) if above is not None else ()
    for folder in folders:
        files = {path.stem: path for path in _files(folder)}
        names = near_names(last, files) if not parent else files
        yield from ((files[stem], f"{parent}.{stem}".lstrip(".")) for stem in names)


def _files(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).glob("*.py") if path.stem.isidentifier())[:_MAX_FILES]


def _spec(module_name: str) -> Any:
    """Returns the import system's spec of a module, or None if there is none."""
    try:
        return importlib.util.find_spec(module_name)
    except Exception:  # of the code of a package above it; the import itself shows the error
        return None
