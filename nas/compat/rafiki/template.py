"""Model templates: loads the class of a user's file and checks it before anything runs."""

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
from nas.core.parsing import signature_of
from nas.core.tracebacks import raise_ctrl_c, text_of

SDK = Path(__file__).with_name("sdk")
"""The folder of the modules ``rafiki`` and ``singa_auto``."""
PACKAGES = ("rafiki", "singa_auto")
METHODS = ("get_knob_config", "train", "evaluate", "predict", "dump_parameters", "load_parameters")
WRAPPED_METHODS = ("train", "evaluate", "predict", "dump_parameters", "load_parameters", "destroy")


@dataclass(frozen=True, slots=True)
class Template:
    """A model class.

    Attributes:
        file: The file that defines it.
        class_: The class.
        knobs: The result of its ``get_knob_config``.
    """

    file: Path
    class_: type[BaseModel]
    knobs: Mapping[str, BaseKnob]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.class_.__name__

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Makes Rafiki's modules and the modules beside the file importable within the context."""
        with importing(self.file):
            yield

    def with_imports(self, model: BaseModel) -> BaseModel:
        """Returns the model with methods that can import these modules when called outside of the context."""
        for name in WRAPPED_METHODS:
            setattr(model, name, self.importing()(getattr(model, name)))
        return model

    def load(self, model: BaseModel, params: Params) -> BaseModel:
        """Loads parameters into a new model and returns it; destroys the model if that fails."""
        try:
            with self.method_in_errors("load_parameters"):
                model.load_parameters(params)
        except BaseException:
            destroy_after_error(model)
            raise
        return model

    def takes(self, method: str, name: str) -> bool:
        """Returns whether the method accepts a keyword argument of this name."""
        parameters = signature_of(getattr(self.class_, method)).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def check_call(self, method: str, *arguments: str, **named: object) -> None:
        """Checks that the method accepts these arguments.

        Raises:
            ConfigurationError: it does not.
        """
        function = getattr(self.class_, method) if method != "__init__" else self.class_
        own = () if method == "__init__" else ("self",)
        try:
            signature_of(function).bind(*own, *arguments, **named)
        except TypeError as error:
            call = ", ".join([*arguments, *(f"{name}=..." for name in named)])
            raise ConfigurationError(f"{self.name}.{method} in {self.file} must accept ({call}): {error}") from error

    @contextmanager
    def method_in_errors(self, method: str) -> Iterator[None]:
        """Adds a note with the method's name to an error that it raises."""
        try:
            yield
        except (TrialStopped, HeirloomError):
            raise
        except BaseException as error:
            raise_ctrl_c(error)
            error.add_note(f"{self.name}.{method} raised {type(error).__name__}: {text_of(error)}")
            raise


def destroy_after_error(model: BaseModel) -> None:
    """Destroys the model after an error. A second error is only printed."""
    try:
        model.destroy()
    except Exception:
        traceback.print_exc()


class _ImportPath:
    """Makes folders importable for the code of templates, in any number of threads.

    A module from one of these folders is in ``sys.modules`` only while the folder is active. It is the same module
    object the next time. Folders that are in the process's path anyway are not touched.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._n_users: Counter[str] = Counter()
        self._modules: dict[str, dict[str, ModuleType]] = {}
        """Imported modules by folder and name."""
        self._hidden: dict[str, ModuleType] = {}
        """Other modules of the same names, such as an installed Rafiki, while ours replace them."""
        self._other_modules: dict[str, ModuleType] = {}
        """Modules from none of these folders, by name: a process may have thousands."""
        self._outer_path: frozenset[str] = frozenset()
        """``sys.path`` while no folder is active. A folder that a template adds itself is removed, too."""

    @contextmanager
    def activate(self, file: Path) -> Iterator[None]:
        """Puts Rafiki's modules before all others, and the file's folder after them."""
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
            self._outer_path = frozenset(sys.path)
        self._n_users[folder] += 1
        if self._n_users[folder] == 1:
            if folder not in self._modules and folder not in map(os.path.realpath, sys.path):
                self._modules[folder] = {}
                self._other_modules.clear()
            self._arrange()

    def _leave(self, folder: str) -> None:
        self._n_users[folder] -= 1
        if not self._n_users[folder]:
            del self._n_users[folder]
            self._arrange()

    def _arrange(self) -> None:
        """Updates ``sys.path`` and ``sys.modules``; of two modules with one name the newest folder's wins."""
        active = [folder for folder in self._n_users if folder in self._modules]
        self._collect()
        visible: dict[str, ModuleType] = {}
        for i, folder in enumerate(active):
            newer = active[i + 1 :]
            replaced = {name for name in self._modules[folder] if any(_has_module(other, name) for other in newer)}
            visible |= {name: module for name, module in self._modules[folder].items() if name not in replaced}
        for modules in self._modules.values():
            for name, module in modules.items():
                if sys.modules.get(name) is module and visible.get(name) is not module:
                    del sys.modules[name]
        for name, module in visible.items():
            if sys.modules.get(name, module) != module:
                self._hidden[name] = sys.modules[name]
        sys.modules.update(visible)
        rest = [path for path in sys.path if path not in self._modules or path in self._outer_path]
        first = [folder for folder in active if folder == str(SDK)]
        sys.path[:] = [*first, *rest, *(folder for folder in reversed(active) if folder not in first)]
        if not first:
            sys.modules.update(self._hidden)
            self._hidden.clear()

    def _collect(self) -> None:
        """Finds the modules of these folders, and removes those of an installed Rafiki for now."""
        known = self._other_modules
        new = [(name, module) for name, module in list(sys.modules.items()) if known.get(name, self) is not module]
        tops = {name.partition(".")[0] for name, _ in new} & sys.modules.keys()
        folders = {top: _import_folder(top, sys.modules[top]) for top in tops}
        for name, module in new:
            top = name.partition(".")[0]
            if (folder := folders.get(top)) in self._modules:
                self._modules[folder][name] = module
            elif top in PACKAGES:
                self._hidden[name] = sys.modules.pop(name)
            else:
                known[name] = module


def _import_folder(name: str, module: ModuleType) -> str | None:
    """Returns the folder in which a module was found under this name."""
    spec = getattr(module, "__spec__", None)
    packages = getattr(spec, "submodule_search_locations", None) or ()
    location = next(iter(packages), getattr(spec, "origin", None))
    if not isinstance(location, str):
        return None
    folder, file = os.path.split(location)
    return folder if file.partition(".")[0] == name else None


def _has_module(folder: str, name: str) -> bool:
    """Returns whether a folder contains a module of this name."""
    path = os.path.join(folder, name.partition(".")[0])
    return os.path.isdir(path) or os.path.isfile(f"{path}.py")


_path = _ImportPath()


def importing(file: Path) -> AbstractContextManager[None]:
    """Makes Rafiki's modules and the modules beside the file importable within the context."""
    return _path.activate(file)


def load_template(file: object, class_name: str | None = None) -> Template:
    """Returns the model class of a file and its knobs.

    Args:
        file: The path of the file.
        class_name: The class; None: the only model class that the file defines.

    Raises:
        ConfigurationError: the file or class is missing, the code raises, or a method of the class is missing.
    """
    if not file:
        raise ConfigurationError(
            "problem.file is missing: add problem.file=Model.py, a file with a class that extends BaseModel"
        )
    path = Path(str(file))
    if path.suffix != ".py":
        raise ConfigurationError(
            f"problem.file={file}: must be a Python file. Unpack an archive and give the file in it"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"problem.file={file}: can't be read: {error.strerror or error}") from error
    digest = hashlib.sha256(content).hexdigest()[:16]
    with importing(path):
        class_ = _model_class(_module(path, digest), path, class_name)
        _check_methods(class_, path)
        return Template(path, class_, _knobs(class_, path))


def _module(path: Path, digest: str) -> ModuleType:
    """Returns the file as a module with a unique name.

    It is loaded once per process, because trials may share attributes of its classes.
    """
    suffix = hashlib.sha256(f"{path.resolve()} {digest}".encode()).hexdigest()[:16]
    name = f"{path.stem}_{suffix}"
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
        known = (error.name or "").partition(".")[0] in PACKAGES
        remedy = "docs/reference/rafiki.md lists all supported modules" if known else "Install it where the search runs"
        raise ConfigurationError(f"{path} imports {error.name}, which cannot be found. {remedy}") from error
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise ConfigurationError(f"{path}{_line_in(error, path)}: {type(error).__name__}: {text_of(error)}") from error
    return module


def _line_in(error: BaseException, path: Path) -> str:
    """Returns the line of the file where an error occurred, for a message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f", line {lines[-1]}" if lines else ""


def _model_class(module: ModuleType, path: Path, class_name: str | None) -> type[BaseModel]:
    models = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    }
    if class_name is None:
        if len(models) != 1:
            if models:
                raise ConfigurationError(f"problem.class_name must be one of {', '.join(models)} in {path}")
            raise ConfigurationError(f"{path} must define a class that extends BaseModel")
        return next(iter(models.values()))
    found = getattr(module, str(class_name), None)
    if not isinstance(found, type):
        known = f"; it defines {', '.join(models)}" if models else ""
        raise ConfigurationError(f"problem.class_name={class_name}: {path} has no such class{known}")
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
    method = f"{class_.__name__}.get_knob_config in {path}"
    if inspect.isfunction(inspect.getattr_static(class_, "get_knob_config")):
        parameters = signature_of(class_.get_knob_config).parameters.values()
        if any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters):
            raise ConfigurationError(f"{method} must be a @staticmethod without arguments")
    try:
        knobs: Any = class_.get_knob_config()
    except Exception as error:
        where = f"{method}{_line_in(error, path)}"
        raise ConfigurationError(f"{where}: {type(error).__name__}: {text_of(error)}") from error
    if not isinstance(knobs, Mapping):
        raise ConfigurationError(f"{method} must return a dict of knobs by name, not {knobs!r:.100}")
    for name, knob in knobs.items():
        if not isinstance(name, str) or not isinstance(knob, BaseKnob):
            raise ConfigurationError(f"{method}: {name!r}={knob!r:.100}: must be a knob with a string as its name")
    return dict(knobs)
