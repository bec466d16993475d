"""Digests of the files that a class and its static imports are read from.

Code of Heirloom, of the standard library and of installed packages is left out: sessions record their versions.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property
from importlib.machinery import ModuleSpec, all_suffixes
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from nas.core.parsing import PARSING
from nas.core.spec import Spec

_HEIRLOOM = Path(__file__).resolve().parents[2]
_INSTALLED = frozenset({"site-packages", "dist-packages"})
MAIN = ("__main__", "__mp_main__")
"""Names of the main module; the second is its name in worker processes."""
SUFFIXES = tuple(all_suffixes())
"""Ends of the names of files that Python imports: sources, bytecode and compiled extensions."""
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
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
        name, source = class_.__qualname__, _source_of(sys.modules["__main__"])
        if source:
            used, modules = _used_in_script(source, name.partition(".")[0]), {*_imports(source, "")}
        else:
            used, modules = _used_in_notebook(class_)
        own = {key: _digest(code) for key, code in {**used, name: _source_of(class_)}.items()}
        found = _imported(modules, None)
    else:
        own, found = {}, _files_of(spec.target.rpartition(".")[0], None)
    files = {**found, **built.code_files}
    return own | {name: _digest(_read(path)) for name, path in sorted(files.items())}


def _used_in_script(source: bytes, name: str) -> dict[str, bytes]:
    """Returns the statements of a script that a definition uses, by the names they bind."""
    statements = _bindings(source)
    found: dict[str, bytes] = {}
    pending = [*statements.pop(name, (b"", frozenset()))[1]]
    while pending:
        if (used := pending.pop()) in statements:
            found[used], more = statements.pop(used)
            pending += more
    return found


def _bindings(source: bytes) -> dict[str, tuple[bytes, Set[str]]]:
    """Returns top-level statements, and the names that each uses, by the names that it binds."""
    lines = source.splitlines(keepends=True)
    found: dict[str, tuple[bytes, Set[str]]] = {}
    for statement in _parsed(source).body:
        nodes = list(ast.walk(statement))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        used = {node.id for node in names} - stored - {node.arg for node in nodes if isinstance(node, ast.arg)}
        first = min(getattr(node, "lineno", statement.lineno) for node in nodes)  # a decorator's
        bound = {statement.name} if isinstance(statement, _DEFINITIONS) else stored
        found |= dict.fromkeys(bound, (b"".join(lines[first - 1 : statement.end_lineno]), used))
    return found


def _used_in_notebook(class_: type) -> tuple[dict[str, bytes], set[str]]:
    """Returns the code of a notebook that a class uses, by name, and the modules."""
    found: dict[str, bytes] = {}
    modules: set[str] = set()
    pending: list[Any] = [class_]
    while pending:
        thing = pending.pop()
        if isinstance(thing, property | cached_property):
            thing = thing.fget if isinstance(thing, property) else thing.func
        thing = inspect.unwrap(thing)
        name = getattr(thing, "__qualname__", "")
        module = getattr(thing, "__module__", None) or getattr(thing, "__name__", None)
        if module not in MAIN:
            modules.add(str(module))
        elif name in found:
            continue
        elif isinstance(thing, FunctionType):
            codes = [*_codes(thing.__code__)]
            found[name] = _source_of(thing) or repr([*map(_compiled, codes)]).encode()
            pending += [thing.__globals__.get(used) for code in codes for used in code.co_names]
        elif isinstance(thing, type):
            members = vars(thing).values()
            cells = {member.__code__.co_filename for member in members if isinstance(member, FunctionType)}
            lines = [line for cell in sorted(cells) for line in linecache.getlines(cell)]
            found[name] = b""  # as in sessions of earlier versions
            found[f"class {name}"], _ = _bindings("".join(lines).encode()).get(name, (b"", ()))
            pending += [*thing.__bases__, *members]
        else:
            pending.append(type(thing))
    return found, modules


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _compiled(code: CodeType) -> tuple[object, ...]:
    """Returns what code does, as values that read the same in every process."""
    constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_code, code.co_names, [sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in constants]


def changed_files(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns the names in an earlier answer whose digest differs now, or that are missing."""
    return [name for name, digest in there.items() if here.get(name) != digest]


def imported_files(path: Path) -> dict[str, Path]:
    """Returns the files of modules that a script imports. Modules beside it come first."""
    return _imported(_imports(_read(path), ""), [str(path.parent), *sys.path])


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


def _imported(modules: Iterable[str], search_path: Sequence[str] | None) -> dict[str, Path]:
    """Returns the files of modules and of all that they import, by name."""
    found: dict[str, Path] = {}
    for name in modules:
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
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*parents, node.module]))
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)  # finds ``base`` on the way


def _parsed(source: bytes) -> ast.Module:
    """Returns the statements of a source, none if it can't be compiled; its digest still counts."""
    try:
        with PARSING:
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _source_of(thing: Any) -> bytes:
    """Returns the source of a class, function or module; empty in an interactive session."""
    with suppress(OSError, TypeError), PARSING:
        return inspect.getsource(thing).encode(errors="surrogateescape")
    return b""


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]
