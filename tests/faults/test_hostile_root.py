"""Values of a hostile root reach no path, URL, file system, loader or shell."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from flows.cli.command import Invocation, run_command
from flows.cli.trusted_code import trusted_spec
from flows.engine.runner import Engine
from flows.final import final
from flows.gc import gc
from flows.report import report
from flows.verify import verify
from nas.core.errors import ConfigurationError, HeirloomError
from nas.core.metric import Metric
from nas.core.names import check_name
from nas.core.reference import Reference
from nas.inheritance.donors.other_searches import other_search_checkpoint
from nas.problems.images.graph_recipes import WIDTHS, image_graphs
from nas.problems.tabular import TabularProblem
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.spaces.space import Space
from nas.spaces.supernet import SupernetSpace
from nas.spaces.transformer import TransformerSpace
from nas.stoppers.base import Stopper
from nas.storage.backends.local import LocalBlobStore
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.record_format import decode_record, encode_record
from nas.storage.record_values import checked_exactly
from nas.storage.records import Records
from nas.storage.verified import digest_of
from nas.training.problem import Problem
from nas.tuners.autogrow import AutoGrowTuner
from nas.tuners.base import Tuner
from nas.tuners.supernet import SupernetTuner
from tests.support.sample_searches import trial, write_search

CANARY = "hostile-canary"
"""Part of each hostile text, by which it is found in what the process does."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
DOES = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
EXAMPLES = Path(__file__).parents[2] / "examples"
WRAPPERS = ("ConstrainedTuner", "InitialTuner", "_RecordingTuner")
"""Tuners that no record names; a tuner is the argument of their constructors."""
PICKLE = 'c__builtin__\nexec\n(S\'open("hostile-canary", "w")\'\ntR.'


POINTS = "points are data that each trial gets"
COLUMNS = "names of columns, which are looked up in a table"
COLUMN_NAMES = dict.fromkeys(("metrics", "parameters", "letters", "known", "tests", "seconds"), COLUMNS)
OWN_TEXT: dict[str, dict[str, str]] = {
    "BatchTuner": {"points": POINTS},
    "CellsProblem": {"table_column": COLUMNS},
    "Cifar10Problem": {"rules": "checked by name"},
    "DigitsProblem": {"rules": "checked by name"},
    "FashionMnistProblem": {"rules": "checked by name"},
    "LanguageProblem": {"rules": "checked by name"},
    "NniProblem": {"space": POINTS},
    "NniTuner": {"search_space": POINTS, "parents": "names of parameters in points"},
    "RepeatingTuner": {"arguments": "checked by name"},
    "NasBench201Problem": COLUMN_NAMES,
    "ScreenedTuner": {"proxies": "names of static metrics"},
    "SquadProblem": {"rules": "checked by name"},
    "TabularProblem": COLUMN_NAMES,
    "WeightsFileProblem": {"name": POINTS},
}
"""Arguments that a record may give with any text, or as any object, and why they do no harm."""


class Watch:
    """Audit events of this process that a hostile value could have caused, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)  # it can't be removed again

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_on and (event in DOES or (event != "compile" and CANARY in repr(args[:2]))):
            self.seen.append(f"{event} {args[:2]!r:.200}")

    @contextmanager
    def on(self) -> Iterator[None]:
        self.is_on, self.seen = True, []
        try:
            yield
        finally:
            self.is_on = False


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def classes(base: type, *packages: str) -> list[type]:
    """Returns the classes of a kind that Heirloom has, by looking at all of its modules."""
    found = {base}
    for package in packages:
        module = importlib.import_module(package)
        for info in pkgutil.walk_packages(module.__path__, f"{package}."):
            # A module for another framework needs that framework, which tests do not install.
            if (
                not info.name.startswith("nas.integrations.")
                and ".sdk" not in info.name
                and not info.name.endswith("__main__")
            ):
                for value in vars(importlib.import_module(info.name)).values():
                    if isinstance(value, type) and issubclass(value, base) and value.__module__.startswith("nas."):
                        found.add(value)
    return sorted((found - {base}), key=lambda class_: class_.__qualname__)


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def arguments_of(class_: type) -> list[str]:
    injected = () if issubclass(class_, Problem) else ("metrics", "seed", "space")
    return [name for name in inspect.signature(class_).parameters if name not in injected]


def hostile_values(victim: Path) -> list[Any]:
    """Returns values that have opened, written or run something in some program."""
    chained = f"simplecache::zip://{CANARY}.py::file://{victim}/{CANARY}.zip.csv"
    return [
        chained,
        f"{victim}/{CANARY}.csv",
        f"file://{victim}/{CANARY}.csv.gz",
        f"http://127.0.0.1:9/{CANARY}.csv",
        f"; touch {victim}/{CANARY}",
        f"../../{CANARY}",
        f"{CANARY}.Module",
        PICKLE,
        {"simplecache": {"cache_storage": f"{victim}/{CANARY}", "same_names": True}},
        {"_target_": f"{CANARY}.run", "fo": chained, "target_protocol": "file"},
        [chained, {"path": chained}],
        {CANARY: {"type": "Choice", "options": [chained], "_type": "choice", "_value": [chained]}},
        -(2**63),
        1e308,
        True,
        None,
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data that a command line names, and a zip that a hostile URL names."""
    folder = tmp_path_factory.mktemp("data")
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(b"")
    for name in ("file.npz", "train.csv", "weights.safetensors"):
        (folder / name).write_bytes(b"")
    (folder / "table.csv").write_text("a,b\n0.5,1\n0.7,2\n")
    shutil.copy(EXAMPLES / "05_rafiki_template" / "linear.py", folder)
    with zipfile.ZipFile(folder / f"{CANARY}.zip.csv", "w") as file:
        file.writestr(f"{CANARY}.py", "print('code of the hostile root')")
    return folder


def baseline(class_: type, data: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns valid arguments of a class: those in a record, and those on a command line."""
    recorded: dict[str, dict[str, Any]] = {
        "BatchTuner": {"points": [{"x": 1}]},
        "RepeatingTuner": {"builtin": "TPE"},
        "NasBench201Problem": {"metrics": {"accuracy": {"column": "a"}}, "parameters": ["b"]},
        "TabularProblem": {"metrics": {"accuracy": {"column": "a"}}, "parameters": ["b"]},
        "WeightsFileProblem": {"name": "x"},
    }
    named: dict[str, dict[str, Any]] = {
        "Cifar10Problem": {"data_file": f"{data}/file.npz"},
        "FashionMnistProblem": {"data_root": str(data)},
        "NniProblem": {"command": "true"},
        "NniTuner": {"class_file": "tuner.py", "class_name": "Tuner"},
        "RafikiProblem": {"file": f"{data}/linear.py", **dict.fromkeys(("train_data", "val_data"), str(data))},
        "NasBench201Problem": {"table": f"{data}/table.csv"},
        "SquadProblem": {"data_file": f"{data}/train.csv"},
        "TabularProblem": {"table": f"{data}/table.csv"},
        "WeightsFileProblem": {"file": f"{data}/weights.safetensors"},
    }
    return recorded.get(class_.__name__, {}), named.get(class_.__name__, {})


def build(class_: type, recorded: dict[str, Any], named: dict[str, Any], *, trust: bool = False) -> Any:
    """Builds a class as a command does that reads its spec from a record."""
    group = next(kind.__name__.lower() for kind in (Problem, Tuner, Stopper) if issubclass(class_, kind))
    stored = {"target": f"{class_.__module__}.{class_.__qualname__}", "arguments": recorded}
    spec = trusted_spec(group, stored, Invocation({"trust": trust, group: named}))
    metrics, subnets = (Metric("accuracy"),), ParameterSpace({"x": Int(1, 9)})
    space: Space = subnets
    if issubclass(class_, SupernetTuner):
        space = SupernetSpace(subnets)
    elif issubclass(class_, AutoGrowTuner):
        space = TransformerSpace()
    if group == "problem":
        problem = spec.build()
        return problem.space.to_json(), problem.abilities, problem.metrics
    return spec.build(*((space,) if group == "tuner" else ()), metrics)


BUILT = [class_ for kind in (Problem, Tuner, Stopper) for class_ in classes(kind, "nas")]
BUILT = [class_ for class_ in BUILT if class_.__name__ not in WRAPPERS and not inspect.isabstract(class_)]
SLOW = {"RafikiProblem"}  # each time it reads a template, which imports scikit-learn


@pytest.mark.parametrize(
    "class_",
    [pytest.param(class_, marks=[pytest.mark.slow] if class_.__name__ in SLOW else []) for class_ in BUILT],
    ids=[class_.__name__ for class_ in BUILT],
)
def test_hostile_arguments_do_nothing(class_: type, watch: Watch, data: Path, tmp_path: Path) -> None:
    """A hostile value of any argument in a record opens, writes, runs and imports nothing that it names."""
    recorded, named = baseline(class_, data)
    build(class_, recorded, named)  # else a hostile value of one argument is refused for another one
    before = everything(data)
    accepted = set()
    for argument in arguments_of(class_):
        others = {key: value for key, value in named.items() if key != argument}
        for value in hostile_values(data):
            with watch.on(), suppress(HeirloomError):
                build(class_, {**recorded, argument: value}, others)
                accepted |= {argument} if CANARY in repr(value) else set()
            assert watch.seen == [], f"{argument}={value!r}"
    assert everything(data) == before
    assert accepted <= OWN_TEXT.get(class_.__name__, {}).keys()


DECLARED = ("data_arguments", "code_arguments", "foreign_arguments")


@pytest.mark.parametrize("class_", BUILT, ids=lambda class_: class_.__name__)
def test_arguments_of_any_kind_are_declared(class_: type) -> None:
    """An argument that may hold anything is data, code or for foreign code, or this file says who reads it."""
    parameters = inspect.signature(class_).parameters
    anything = {name for name in arguments_of(class_) if "Any" in str(parameters[name].annotation)}
    declared = {name for kind in DECLARED for name in getattr(class_, kind, ())}

    assert anything - declared <= OWN_TEXT.get(class_.__name__, {}).keys()
    assert declared <= parameters.keys() | {"data_root"}


FOREIGN = [(class_, name) for class_ in BUILT for name in sorted(getattr(class_, "foreign_arguments", ()))]


@pytest.mark.parametrize(("class_", "argument"), FOREIGN, ids=[f"{c.__name__}.{name}" for c, name in FOREIGN])
def test_foreign_code_gets_only_numbers_from_a_record(class_: type, argument: str) -> None:
    """Text for a template, a tuner or a library comes from the command line or with trust=true; numbers may not."""
    group = "problem" if issubclass(class_, Problem) else "tuner"

    def spec(value: object, *, trust: bool = False, **named: object) -> dict[str, Any]:
        stored = {"target": f"{class_.__module__}.{class_.__qualname__}", "arguments": {argument: value}}
        return trusted_spec(group, stored, Invocation({"trust": trust, group: named})).arguments

    refusal = rf"names text that its {group} gets, .*: add '?{group}\.{argument}="
    for text in ({"x": CANARY}, {"x": [1, CANARY]}, {"x": {"y": 1}}, [["x", 1]], CANARY):
        with pytest.raises(ConfigurationError, match=refusal):
            spec(text)
        assert spec(text, trust=True) == spec({}, **{argument: text}) == {argument: text}
    for plain in ({"x": 1, "y": [0.5, True]}, {}, None):
        assert spec(plain) == {argument: plain}


def test_hostile_arguments_would_do_something(watch: Watch, data: Path) -> None:
    """The same values do open files where a command line or trust=true gives them, so the test above can fail."""
    chained, path = hostile_values(data)[:2]
    recorded, _ = baseline(TabularProblem, data)

    named_table = ({"table": path}, {}, False)
    trusted_table = ({}, {"table": path}, True)
    for named, more, trust in (named_table, trusted_table, ({"table": chained}, {}, False)):
        with watch.on(), suppress(Exception):
            build(TabularProblem, {**recorded, **more}, named, trust=trust)
        assert watch.seen, (named, more)


@pytest.mark.parametrize("value", [0, -1], ids=["chained", "options"])
def test_trust_gives_no_chained_urls_and_no_options(data: Path, value: int) -> None:
    """Not even trust=true takes a URL with another one inside, or options of a file system, from a record."""
    chained, options = hostile_values(data)[0], {"simplecache": {"cache_storage": "/x"}}
    recorded, _ = baseline(TabularProblem, data)
    found = {"table": chained} if value == 0 else {"table": "a.csv", "options": options}

    with pytest.raises(HeirloomError, match=r"is not trusted with data: add problem\.(table='?|options=\.\.\.)"):
        build(TabularProblem, {**recorded, **found}, {}, trust=True)


@pytest.mark.parametrize("class_", classes(Space, "nas"), ids=lambda class_: class_.__name__)
def test_hostile_spaces_and_points_do_nothing(class_: type, watch: Watch, data: Path) -> None:
    """A space built from hostile values, or asked about a hostile point, does nothing with them."""
    spaces: list[Any] = [ParameterSpace({"x": Int(1, 9)}), image_graphs((1, 8, 8), WIDTHS, 10**9)]
    for argument in arguments_of(class_):
        for value in hostile_values(data):
            with watch.on(), suppress(Exception):  # any: records build no space
                spaces.append(class_(**{argument: value}))
            assert watch.seen == [], f"{argument}={value!r}"
    for space in spaces:
        for value in hostile_values(data):
            for point in ({"x": value}, {"network": value}, {CANARY: value}, value):
                with watch.on(), suppress(HeirloomError):
                    space.validate(point)
                assert watch.seen == [], point


def test_no_root_is_a_chained_url(watch: Watch, data: Path) -> None:
    """A storage has one file system: caches and archives around it are refused before they are made."""
    for url in (f"simplecache::file://{data}/{CANARY}", f"filecache::memory://{CANARY}", f"zip://::{data}/{CANARY}"):
        with watch.on(), pytest.raises(ConfigurationError, match=r"storage\.root=.*: must be one URL"):
            open_root(url, {"simplecache": {"cache_storage": str(data / CANARY)}})
        assert watch.seen == []


HOSTILE_PATHS = [
    f"../../{CANARY}",
    f"/{CANARY}",
    f"a/../../{CANARY}",
    f"{CANARY}\n",
    f"a//{CANARY}",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize("class_", classes(BlobStore, "nas"), ids=lambda class_: class_.__name__)
def test_hostile_paths_leave_no_root(class_: type, path: str, watch: Watch, tmp_path: Path) -> None:
    """No path of a record opens a file outside its root, in any storage."""
    root = open_root(f"{tmp_path}/root" if class_ is LocalBlobStore else "memory://hostile-root/root", retry_s=0)
    assert type(root) is class_
    reads: list[Callable[[], object]] = [
        lambda: root.read(Reference(path, 1, digest_of(b"1"))),
        lambda: checked_exactly(Reference, {"path": path, "bytes": 1, "digest": digest_of(b"1")}),
        lambda: other_search_checkpoint(Records(root.subfolder("mine")), f"{path}:1"),
        lambda: Records(root.subfolder(check_name(path))).header(),
    ]
    for read in reads:
        with watch.on(), pytest.raises(HeirloomError):
            read()
        assert [one for one in watch.seen if str(tmp_path) not in one or ".." in one] == []


COMMANDS: dict[str, tuple[Callable[[Invocation], int], tuple[str, ...]]] = {
    "report": (report, ("format=html",)),
    "verify": (verify, ()),
    "gc": (gc, ("keep=best:1", "dry_run=true")),
    "final": (lambda invocation: final(invocation, Engine()), ("runner=debug", "slots=1", "threads=1")),
}


OWN = [class_ for class_ in classes(Problem, "nas") if class_.data_arguments & {*arguments_of(class_)}]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "class_",
    [pytest.param(class_, marks=[] if class_ is TabularProblem else [pytest.mark.slow]) for class_ in OWN],
    ids=[class_.__name__ for class_ in OWN],
)
def test_commands_take_no_data_from_a_record(
    class_: type, command: str, watch: Watch, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a root that names hostile data everywhere, no command opens, writes or runs what it names."""
    monkeypatch.chdir(tmp_path)
    chained, *_ = hostile_values(data)
    options = {"simplecache": {"cache_storage": str(data / CANARY), "same_names": True}}
    storage = {"root": f"simplecache::file://{data}/{CANARY}", "options": options}
    recorded, named = baseline(class_, data)
    texts = {name: options if "options" in name else chained for name in class_.data_arguments}
    texts = {name: value for name, value in texts.items() if name in arguments_of(class_)}
    identity = {
        "problem": {
            "target": f"{class_.__module__}.{class_.__qualname__}",
            "arguments": {**recorded, **named, **texts},
        },
        "tuner": {"target": "nas.tuners.cmaes.CmaEsTuner", "arguments": {}},  # gc needs the problem to build it
        "init": {"points": [{"x": chained}], "weights": chained},
        "storage": storage,
    }
    records = write_search(tmp_path / "root", "s", [trial(n, score=0.5) for n in range(3)], identity=identity)
    header = decode_record(Path(str(records.files.local_path("search.json"))).read_bytes())
    records.files.replace("search.json", encode_record({**header, "storage": storage, "data": {"table": chained}}))
    before = everything(data)
    body, words = COMMANDS[command]
    with watch.on():
        status = run_command(command, body, ["name=s", f"storage.root={tmp_path}/root", *words])

    assert watch.seen == []
    assert everything(data) == before
    assert status == (2 if command == "final" else 1 if command == "verify" else 0)
