"""A model template: the class in a user's file, loaded and looked over before anything runs."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nas.compat.rafiki.knobs import BaseKnob
from nas.compat.rafiki.model import BaseModel, Params
from nas.core.errors import ConfigurationError, HeirloomError, TrialStopped

SDK = Path(__file__).with_name("sdk")
"""The folder in which a template's code finds ``import rafiki`` and ``import singa_auto``."""
OURS = ("rafiki", "singa_auto")
METHODS = ("get_knob_config", "train", "evaluate", "predict", "dump_parameters", "load_parameters")

GUIDED = ("train", "evaluate", "predict", "dump_parameters", "load_parameters", "destroy")


@dataclass(frozen=True, slots=True)
class Template:
    """A model class.

    Attributes:
        file: Where it lies.
        class_: The class.
        knobs: What its ``get_knob_config`` gave.
        digest: Of the file's content, 16 hexadecimal digits.
    """

    file: Path
    class_: type[BaseModel]
    knobs: Mapping[str, BaseKnob]
    digest: str

    @property
    def name(self) -> str:
        """The class's."""
        return self.class_.__name__

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Lets code find the modules of Rafiki's, and those beside the file."""
        with importing(self.file):
            yield

    def guided(self, model: BaseModel) -> BaseModel:
        """Returns the model, whose methods find those modules also when they are called from elsewhere."""
        for name in GUIDED:
            setattr(model, name, self.importing()(getattr(model, name)))
        return model

    def loaded(self, model: BaseModel, params: Params) -> BaseModel:
        """Returns the fresh model, that has loaded these; it is destroyed where it can't."""
        try:
            with self.blaming("load_parameters"):
                model.load_parameters(params)
        except BaseException:
            destroy_after_error(model)
            raise
        return model

    def takes(self, method: str, name: str) -> bool:
        """Returns whether the method takes a keyword argument of this name."""
        parameters = inspect.signature(getattr(self.class_, method)).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def check_call(self, method: str, *arguments: str, **named: object) -> None:
        """Returns if the method can be called so.

        Raises:
            ConfigurationError: it can't.
        """
        called = getattr(self.class_, method) if method != "__init__" else self.class_
        own = () if method == "__init__" else ("self",)
        try:
            inspect.signature(called).bind(*own, *arguments, **named)
        except TypeError as error:
            shown = ", ".join([*arguments, *(f"{name}=..." for name in named)])
            raise ConfigurationError(f"{self.name}.{method} in {self.file} can't take ({shown}): {error}") from error

    @contextmanager
    def blaming(self, method: str) -> Iterator[None]:
        """Notes in an error that it is the method's."""
        try:
            yield
        except (TrialStopped, HeirloomError):
            raise
        except (Exception, SystemExit) as error:
            error.add_note(f"{self.name}.{method} raised {type(error).__name__}: {error}")
            raise


def destroy_after_error(model: BaseModel) -> None:
    """Destroys the model; of two errors the first counts, the other is in the log."""
    try:
        model.destroy()
    except Exception:
        traceback.print_exc()


class _Path:
    """What templates' code can import while it runs, in however many threads: ours, and what lies beside the file.

    A module that was found in one of our folders is in ``sys.modules`` only while somebody is inside that folder, and
    is the same one the next time. Folders that the process has in its path anyway are left to it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._n_users: Counter[str] = Counter()
        self._modules: dict[str, dict[str, ModuleType]] = {}
        """By folder and name, what was imported from there."""
        self._foreign: dict[str, ModuleType] = {}
        """Modules of others, an installed Rafiki for one, while ours stand in their place."""
        self._own: frozenset[str] = frozenset()
        """The path while nobody was inside: what a template adds of its own folder is taken out, too."""

    @contextmanager
    def of(self, file: Path) -> Iterator[None]:
        """With the modules of Rafiki's before all others, and the file's folder after them."""
        folders = [str(SDK), str(file.parent.resolve())]
        with self._lock:
            for folder in folders:
                self._enter(folder)
        try:
            yield
        finally:
            with self._lock:
                for folder in reversed(folders):
                    self._leave(folder)

    def _enter(self, folder: str) -> None:
        if not self._n_users:
            self._own = frozenset(sys.path)
        self._n_users[folder] += 1
        if self._n_users[folder] == 1:
            if folder in self._modules or folder not in map(os.path.realpath, sys.path):
                self._modules.setdefault(folder, {})
            self._arrange()

    def _leave(self, folder: str) -> None:
        self._n_users[folder] -= 1
        if not self._n_users[folder]:
            del self._n_users[folder]
            self._arrange()

    def _arrange(self) -> None:
        """Makes ``sys.path`` and ``sys.modules`` what those who are inside find; of two of one name the newest's."""
        inside = [folder for folder in self._n_users if folder in self._modules]
        self._gather()
        shown: dict[str, ModuleType] = {}
        for place, folder in enumerate(inside):
            newer = inside[place + 1 :]
            found = self._modules[folder].items()
            shown |= {name: module for name, module in found if not any(_offers(other, name) for other in newer)}
        for name, module in [item for modules in self._modules.values() for item in modules.items()]:
            if sys.modules.get(name) is module and shown.get(name) is not module:
                del sys.modules[name]
        self._foreign |= {
            name: sys.modules[name] for name in shown if sys.modules.get(name, shown[name]) != shown[name]
        }
        sys.modules.update(shown)
        rest = [path for path in sys.path if path not in self._modules or path in self._own]
        first = [folder for folder in inside if folder == str(SDK)]
        sys.path[:] = [*first, *rest, *(folder for folder in reversed(inside) if folder not in first)]
        if not first:
            sys.modules.update(self._foreign)
            self._foreign.clear()

    def _gather(self) -> None:
        """Learns which modules are of our folders, and puts an installed Rafiki aside."""
        tops = {name: _home(name, module) for name, module in list(sys.modules.items()) if "." not in name}
        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0]
            if (folder := tops.get(top)) in self._modules:
                self._modules[folder][name] = module
            elif top in OURS:
                self._foreign[name] = sys.modules.pop(name)


def _home(name: str, module: ModuleType) -> str | None:
    """Returns the folder of the path in which a module was found by this name."""
    spec = getattr(module, "__spec__", None)
    place = next(iter(getattr(spec, "submodule_search_locations", None) or ()), getattr(spec, "origin", None))
    if not isinstance(place, str):
        return None
    folder, file = os.path.split(place)
    return folder if file.partition(".")[0] == name else None


def _offers(folder: str, name: str) -> bool:
    """Returns whether a folder has a module of this name."""
    path = os.path.join(folder, name.partition(".")[0])
    return os.path.isdir(path) or os.path.isfile(f"{path}.py")


_path = _Path()


def importing(file: Path) -> AbstractContextManager[None]:
    """Lets code find the modules of Rafiki's, and those beside the file; see ``Template.importing``."""
    return _path.of(file)


def load_template(file: object, class_name: str | None = None) -> Template:
    """Returns the model class of a file, and its knobs.

    Args:
        file: A path.
        class_name: None: the only model class that the file defines.

    Raises:
        ConfigurationError: there is no such file or class, its code raises, or it is no whole model, by method.
    """
    if not file:
        raise ConfigurationError(
            "no model template: add problem.file=Model.py, a file with a class that extends BaseModel"
        )
    path = Path(str(file))
    if path.suffix != ".py":
        raise ConfigurationError(
            f"problem.file ({file}) must be a Python file; unpack an archive, and name the file in it"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"problem.file ({file}) can't be read: {error.strerror or error}") from error
    digest = hashlib.sha256(content).hexdigest()[:16]
    with importing(path):
        class_ = _class_of(_module(path, digest), path, class_name)
        _check_methods(class_, path)
        return Template(path, class_, _knobs(class_, path), digest)


def _module(path: Path, digest: str) -> ModuleType:
    """The file as a module of a name of its own; loaded once a process, as its classes may hold what trials share."""
    place = hashlib.sha256(f"{path.resolve()} {digest}".encode()).hexdigest()
    name = f"{path.stem}_{place[:16]}"
    if (loaded := sys.modules.get(name)) is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise ConfigurationError(f"{path}, line {error.lineno}: {error.msg}") from error
    except ModuleNotFoundError as error:
        del sys.modules[name]
        known = (error.name or "").partition(".")[0] in OURS
        remedy = "docs/reference/rafiki.md lists what is" if known else "install it where the search runs"
        raise ConfigurationError(f"{path} imports {error.name}, which is not here; {remedy}") from error
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise ConfigurationError(f"{path}{_where(error, path)}: {type(error).__name__}: {error}") from error
    return module


def _where(error: BaseException, path: Path) -> str:
    """Returns the last line of the file that an error came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f", line {lines[-1]}" if lines else ""


def _class_of(module: ModuleType, path: Path, class_name: str | None) -> type[BaseModel]:
    models = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    }
    if class_name is None:
        if len(models) != 1:
            which = f"one of {', '.join(models)}" if models else "a class that extends BaseModel; the file defines none"
            raise ConfigurationError(f"problem.class_name: {path} needs it: {which}")
        return next(iter(models.values()))
    found = getattr(module, str(class_name), None)
    if not isinstance(found, type):
        known = f"; it defines {', '.join(models)}" if models else ""
        raise ConfigurationError(f"problem.class_name ({class_name}): {path} has no such class{known}")
    if not issubclass(found, BaseModel):
        raise ConfigurationError(f"{class_name} in {path} must extend rafiki.model.BaseModel")
    return found


def _check_methods(class_: type[BaseModel], path: Path) -> None:
    if missing := [name for name in METHODS if getattr(class_, name) is getattr(BaseModel, name)]:
        raise ConfigurationError(f"{class_.__name__} in {path} must define {', '.join(missing)}")
    if inspect.isabstract(class_):
        missing = sorted(class_.__abstractmethods__)
        raise ConfigurationError(f"{class_.__name__} in {path} must define {', '.join(missing)}")


def _knobs(class_: type[BaseModel], path: Path) -> dict[str, BaseKnob]:
    what = f"{class_.__name__}.get_knob_config in {path}"
    if inspect.isfunction(inspect.getattr_static(class_, "get_knob_config")):
        parameters = inspect.signature(class_.get_knob_config).parameters.values()
        if any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters):
            raise ConfigurationError(f"{what} must be a @staticmethod without arguments")
    try:
        knobs: Any = class_.get_knob_config()
    except Exception as error:
        raise ConfigurationError(f"{what}{_where(error, path)}: {type(error).__name__}: {error}") from error
    if not isinstance(knobs, Mapping):
        raise ConfigurationError(f"{what} must return a dict of knobs by name, not {knobs!r:.100}")
    for name, knob in knobs.items():
        if not isinstance(name, str) or not isinstance(knob, BaseKnob):
            raise ConfigurationError(f"{what}: {name!r} ({knob!r:.100}) must be a knob, by a name that is a text")
    return dict(knobs)
