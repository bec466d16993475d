"""docs/reference/nni.md lists every field, method and command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from nas.compat.nni import config
from nas.compat.nni.sdk import SDK

GUIDE = (Path(__file__).parents[2] / "docs" / "reference" / "nni.md").read_text()
NAMED = {name for code in re.findall(r"`([^`\n]+)`", GUIDE) for name in re.findall(r"\w+", code)}
COMMANDS = {
    "create": (),
    "resume": (),
    "view": (),
    "stop": (),
    "update": ("searchspace", "concurrency", "duration", "trialnum"),
    "experiment": ("export", "import", "list", "show", "status", "save", "load", "delete"),
    "trial": ("ls", "kill", "export"),
    "log": ("stdout", "stderr", "trial"),
    "config": ("show",),
    "webui": ("url",),
    "top": (),
    "tensorboard": ("start", "stop"),
    "ss_gen": (),
    "package": (),
    "algo": (),
    "platform": ("clean",),
}
PUBLIC = """
from nni.tuner import Tuner
for base in Tuner.__mro__[:-1]:
    print(*(name for name, found in vars(base).items() if callable(found) and not name.startswith("__")))
"""


def test_every_field_is_in_the_guide() -> None:
    """The guide lists the fields that are read, those without effect and those that are refused."""
    read = " ".join((config._READ, config._TRIAL_NO_EFFECT, config._CLASS, config._LOCAL)).split()
    told = (*config._SILENT, *config._NO_EFFECT, *config._REFUSED, *config._CLASS_NO_EFFECT, *config._LOCAL_NO_EFFECT)
    named_alone = ("command", "codeDir", "gpuNum", "builtinTunerName", "builtinAssessorName")

    assert {*read, *told, *named_alone} - NAMED == set()


def test_every_method_of_a_tuner_is_in_the_guide() -> None:
    """The guide lists all methods that an own tuner may define or call."""
    environment = {**os.environ, "PYTHONPATH": str(SDK)}
    methods = subprocess.check_output([sys.executable, "-c", PUBLIC], env=environment, text=True).split()

    assert "generate_parameters" in methods
    assert set(methods) - NAMED == set()


def test_every_refused_name_is_in_the_guide() -> None:
    """The guide lists the classes and modules of nni that code cannot import."""
    code = "from nni.missing import _REASONS; print(*_REASONS)"
    environment = {**os.environ, "PYTHONPATH": str(SDK)}
    names = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()

    assert "gridsearch_tuner" in names
    assert set(names) - {"get_next_parameters"} - NAMED == set()


def test_every_command_is_in_the_guide() -> None:
    """The guide lists all commands of ``nnictl`` in one table."""
    table = GUIDE.partition("\n## What `nnictl` did\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    lacking = [command for command in COMMANDS if not any(f"`{command}" in row for row in rows)]
    lacking += [f"{c} {s}" for c, subjects in COMMANDS.items() for s in subjects if f"`{c} {s}`" not in table]

    assert lacking == []
