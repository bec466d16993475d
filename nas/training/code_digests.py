"""Digests of the files that a class and its static imports are read from.

Code of Heirloom, of the standard library and of installed packages is left out: sessions record their versions.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.machinery import ModuleSpec, all_suffixes
from pathlib import Path
from types import FunctionType
from typing import Any

from nas.core.parsing import PARSING
from nas.core.spec import Spec

_HEIRLOOM = Path(__file__).resolve().parents[2]
_INSTALLED = frozenset({"site-packages", "dist-packages"})
MAIN = ("__main__", "__mp_main__")
"""Names of the main module; the second is its name in worker processes."""
SUFFIXES = tuple(all_suffixes())
"""Ends of the names of files that Python imports: sources, bytecode and compiled extensions."""
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def code_digests(spec: Spec, built: Any) -> dict[str, str]:
    """Returns the digests of a part's code by file name.

    A name is relative to the folder that Python imports the module from, so it is the same on every machine.

    Args:
        spec: The class of the part, and its arguments.
        built: The instance; its ``code_files`` are added.
    """
    class_ = type(built)
    if class_.__module__ in MAIN:  # a script also holds the call that runs the search
        classes = [base for base in class_.__mro__ if base.__module__ in MAIN]
        sources = {base.__qualname__: _source_of(base) for base in classes}
        if not sources[class_.__qualname__]:  # of a notebook
            sources[f"{class_.__qualname__}, methods"] = b"".join(map(_source_of, _methods(classes)))
        own = {name: _digest(source) for name, source in sources.items()}
        found = _imported(_source_of(sys.modules["__main__"]), "", None)
    else:
        own, found = {}, _files_of(spec.target.rpartition(".")[0], None)
    files = {**found, **built.code_files}
    return own | {name: _digest(_read(path)) for name, path in sorted(files.items())}


def changed_files(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns the names in an earlier answer whose digest differs now, or that are missing."""
    return [name for name, digest in there.items() if here.get(name) != digest]


def imported_files(path: Path) -> dict[str, Path]:
    """Returns the files of modules that a script imports. Modules beside it come first."""
    return _imported(_read(path), "", [str(path.parent), *sys.path])


def _files_of(module: str, search_path: Sequence[str] | None) -> dict[str, Path]:
    """Returns the files of a module and of all modules that it imports, by name."""
    found: dict[str, Path] = {}
    pending, seen = [module], {module}
    while pending:
        for name, spec in _specs(pending.pop(), search_path):
            if not _is_own(spec) or (path := Path(str(spec.origin))) in found.values():
                continue
            is_package = spec.submodule_search_locations is not None
            found[name.replace(".", "/") + ("/__init__" if is_package else "") + path.suffix] = path
            package = name if is_package else name.rpartition(".")[0]
            new = set(_imports(_read(path), package)) - seen
            seen |= new
            pending += sorted(new)
    return found


def _imported(source: bytes, package: str, search_path: Sequence[str] | None) -> dict[str, Path]:
    """Returns the files of all modules that a source imports, by name."""
    found: dict[str, Path] = {}
    for name in _imports(source, package):
        found |= _files_of(name, search_path)
    return found


def _specs(module: str, search_path: Sequence[str] | None) -> Iterator[tuple[str, ModuleSpec]]:
    """Yields the specs of a module's packages and of the module, without running their code."""
    parts = module.split(".")
    for n_parts in range(1, len(parts) + 1):
        name = ".".join(parts[:n_parts])
        spec = _find(name, search_path)
        if spec is None:
            return
        yield name, spec
        if not _is_own(spec) and spec.has_location:
            return
        search_path = spec.submodule_search_locations
        if search_path is None:
            return


def _find(name: str, search_path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        with suppress(ImportError, ValueError, AttributeError):  # an odd finder of another library
            if (spec := finder.find_spec(name, search_path)) is not None:
                return spec
    return None


def _is_own(spec: ModuleSpec) -> bool:
    """Returns whether a module is the user's: neither Heirloom's, nor Python's, nor installed."""
    if not spec.has_location or not str(spec.origin).endswith(SUFFIXES):
        return False
    path = Path(str(spec.origin)).resolve()
    if _INSTALLED.intersection(path.parts) or any(path.is_relative_to(library) for library in _LIBRARIES):
        return False
    return not any(path.is_relative_to(_HEIRLOOM / package) for package in ("nas", "flows", "conf"))


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yields the names of modules that a source may import, anywhere in it."""
    try:
        with PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # importing it fails; its digest still counts
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*parents, node.module]))
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)  # finds ``base`` on the way


def _methods(classes: Iterable[type]) -> Iterator[FunctionType]:
    """Yields the functions of classes, also those of their properties."""
    for member in (member for class_ in classes for member in vars(class_).values()):
        function: Any = member
        if isinstance(member, staticmethod | classmethod):
            function = member.__func__
        elif isinstance(member, property | cached_property):
            function = member.fget if isinstance(member, property) else member.func
        if isinstance(function, FunctionType):
            yield function


def _source_of(thing: Any) -> bytes:
    """Returns the source of a class, function or module; empty in an interactive session.

    Notebooks keep that of functions, not of classes.
    """
    with suppress(OSError, TypeError), PARSING:
        return inspect.getsource(thing).encode(errors="surrogateescape")
    return b""


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]
