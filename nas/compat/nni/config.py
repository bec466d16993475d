"""The configuration file of an NNI experiment: every field is read, refused by its name, or told to be without effect.

The fields are those of NNI v0.5 to v1.9, and of v2 under their new names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int

PLATFORMS = ("remote", "pai", "paiYarn", "openpai", "kubeflow", "frameworkcontroller", "dlts", "aml", "adl", "hybrid")
_HERE = "trials run as processes of this machine, or, with runner=remote, of others (docs/guides/remote_workers.md)"
_HANDLED = """
    experimentName experimentType trialConcurrency maxTrialNum maxTrialNumber maxExecDuration maxExperimentDuration
    maxTrialDuration trainingServicePlatform trainingService searchSpacePath searchSpaceFile searchSpace useAnnotation
    multiPhase multiThread logDir experimentWorkingDirectory tuner assessor advisor localConfig
    trial trialCommand trialCodeDirectory trialGpuNumber
"""
_QUIET = frozenset(("authorName", "description"))
_NO_EFFECT = {
    **dict.fromkeys(("logLevel", "debug"), "the logs of trials and of the tuner keep everything"),
    "logCollection": "the store keeps the log of every attempt",
    "versionCheck": "there is one version",
    "nniManagerIp": "trials speak with the experiment on their own machine",
    **dict.fromkeys(("machineList", "remoteConfig"), _HERE),
    **dict.fromkeys(("paiConfig", "paiYarnConfig", "kubeflowConfig", "frameworkcontrollerConfig"), _HERE),
    **dict.fromkeys(("dltsConfig", "amlConfig", "adlConfig", "hybridConfig"), _HERE),
    "sharedStorage": "say --root URL for the records, and mount the share that your trials use yourself",
    "tunerGpuIndices": "the tuner sees the GPUs that this command sees",
    "reuse": "say multiPhase: true where one process should try many configurations",
}
_TRIAL_NO_EFFECT = """
    cpuNum memoryMB image shmMB dataDir outputDir virtualCluster authFile portList gpuType sharedStorage
    nniManagerNFSMountPath containerNFSMountPath paiStorageConfigName paiStoragePlugin paiConfigPath
    taskRoles worker master ps
"""
_CHOICE = "name classArgs codeDir codeDirectory classFileName className includeIntermediateResults"
"""Of a tuner or an assessor, besides the name of a builtin one and what has no effect."""
_CHOICE_NO_EFFECT = frozenset(("gpuNum", "gpuIndices", "checkpointDir"))
_LOCAL_NO_EFFECT = frozenset(("maxTrialNumPerGpu", "maxTrialNumberPerGpu", "useActiveGpu"))
_REFUSED = {
    "advisor": "advisors (Hyperband, BOHB) are not supported: for successive halving use `python -m flows.search "
    "stopper=asha` (docs/guides/stoppers.md)",
    "useAnnotation": "annotated code is not supported: write searchSpacePath and call nni.get_next_parameter()",
    "nasMode": "the NAS mode of v1.0 is not supported",
}
_DURATION = re.compile(r"([1-9][0-9]*)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerChoice:
    """A tuner or assessor: a builtin one by its name, or a class of the user's own.

    Attributes:
        builtin: The name, or None.
        class_file: The module's file, below ``code_dir``.
        arguments: ``classArgs``.
    """

    builtin: str | None = None
    code_dir: str = "."
    class_file: str = ""
    class_name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    includes_intermediate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What an experiment's configuration says.

    Attributes:
        folder: Where the file lies; all paths in it are relative to that.
        space: What the search space's file holds, or None.
        most_jobs: How many jobs may begin; None: as many as the time allows.
        gpus: Which GPUs there are by ``localConfig``; None: all.
        notes: What of the file has no effect here, and what takes its place.
    """

    name: str
    folder: Path
    command: str
    code_dir: Path
    concurrency: int
    space: Mapping[str, Any] | None
    tuner: TunerChoice
    assessor: TunerChoice | None = None
    most_jobs: int | None = None
    hours: float | None = None
    trial_timeout_s: float | None = None
    multi_phase: bool = False
    multi_thread: bool = False
    gpus_per_trial: int | None = None
    gpus: tuple[int, ...] | None = None
    output_dir: Path | None = None
    notes: tuple[str, ...] = ()


def read_experiment(path: str | Path) -> Experiment:
    """Returns the experiment of a configuration file.

    Raises:
        ConfigurationError: it can't be read, or asks for what is not there, by the field's name.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigurationError(f"can't read the configuration {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration {path} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"the configuration {path} must be a mapping of fields")
    return _Reader(content, Path(path).resolve().parent).read()


class _Reader:
    """Reads a file's content, and gathers what has no effect."""

    def __init__(self, content: Mapping[str, Any], folder: Path) -> None:
        self._content = {str(key): value for key, value in content.items() if value is not None}
        self._folder = folder
        self._notes: list[str] = []

    def read(self) -> Experiment:
        content = self._content
        self._refuse()
        self._note_platform()
        trial = self._trial()
        local = self._mapping(content, "localConfig") or self._mapping(content, "trainingService")
        tuner = self._tuner()
        space = self._space(needed=tuner.builtin is not None)
        for name in sorted(content.keys() & _NO_EFFECT.keys()):
            self._note(name, _NO_EFFECT[name])
        seconds = self._duration("maxExecDuration", "maxExperimentDuration")
        concurrency = self._whole(content, "trialConcurrency", least=1)
        if concurrency is None:
            raise ConfigurationError("trialConcurrency is missing: how many jobs run at a time")
        code_dir = self._folder / str(trial.get("codeDir", "."))
        if not code_dir.is_dir():
            raise ConfigurationError(f"trial.codeDir ({trial.get('codeDir')}) is no folder beside the configuration")
        return Experiment(
            name=str(content.get("experimentName", "experiment")),
            folder=self._folder,
            command=str(trial["command"]),
            code_dir=code_dir.resolve(),
            concurrency=concurrency,
            space=space,
            tuner=tuner,
            assessor=self._assessor(),
            most_jobs=self._whole(content, "maxTrialNum", "maxTrialNumber", least=1),
            hours=None if seconds is None else seconds / 3600,
            trial_timeout_s=self._duration("maxTrialDuration"),
            multi_phase=self._switch("multiPhase"),
            multi_thread=self._switch("multiThread"),
            gpus_per_trial=self._whole(trial, "gpuNum", least=0),
            gpus=self._gpus(local or {}),
            output_dir=self._output_dir(),
            notes=tuple(self._notes),
        )

    def _note(self, name: str, why: str) -> None:
        self._notes.append(f"{name} has no effect: {why}")

    def _refuse(self) -> None:
        """Refuses fields that ask for what is not there, and those that nobody knows."""
        for name, why in _REFUSED.items():
            if self._content.get(name):
                raise ConfigurationError(f"{name}: {why}")
        unknown = self._content.keys() - set(_HANDLED.split()) - _QUIET - _NO_EFFECT.keys() - _REFUSED.keys()
        if unknown:
            raise ConfigurationError(
                f"{', '.join(sorted(unknown))}: no field of NNI's v1 or v2 configuration that is known here; "
                "docs/reference/nni.md lists them"
            )
        kind = self._content.get("experimentType", "hpo")
        if kind != "hpo":
            raise ConfigurationError(f"experimentType ({kind}) must be hpo: other experiments are not supported")

    def _note_platform(self) -> None:
        service = self._content.get("trainingService", {})
        listed = service[0] if isinstance(service, list) and service else service
        of_service = listed.get("platform") if isinstance(listed, dict) else None
        platform = self._content.get("trainingServicePlatform", of_service or "local")
        if platform == "local":
            return
        if platform not in PLATFORMS:
            raise ConfigurationError(f"trainingServicePlatform ({platform!r}) must be local or {', '.join(PLATFORMS)}")
        gone = "OpenPAI no longer exists; " if "pai" in str(platform).lower() else ""
        self._note(f"trainingServicePlatform {platform}", f"{gone}{_HERE}")

    def _trial(self) -> dict[str, Any]:
        """Returns the trial's fields by their v1 names."""
        trial = dict(self._mapping(self._content, "trial") or {})
        for new, old in (("trialCommand", "command"), ("trialCodeDirectory", "codeDir"), ("trialGpuNumber", "gpuNum")):
            if new in self._content:
                trial.setdefault(old, self._content[new])
        if trial.get("nasMode"):
            raise ConfigurationError(f"trial.nasMode: {_REFUSED['nasMode']}")
        if not isinstance(trial.get("command"), str) or not trial["command"].strip():
            raise ConfigurationError("trial.command is missing: the command line that runs one trial")
        for name in sorted(trial.keys() & set(_TRIAL_NO_EFFECT.split())):
            self._note(f"trial.{name}", _HERE)
        unknown = trial.keys() - {"command", "codeDir", "gpuNum", "nasMode", *_TRIAL_NO_EFFECT.split()}
        if unknown:
            raise ConfigurationError(f"trial.{sorted(unknown)[0]}: trial has command, codeDir and gpuNum")
        return trial

    def _tuner(self) -> TunerChoice:
        content = self._mapping(self._content, "tuner")
        if content is None:
            raise ConfigurationError("tuner is missing: name builtinTunerName, or classFileName and className")
        return self._choice("tuner", content, "builtinTunerName")

    def _assessor(self) -> TunerChoice | None:
        content = self._mapping(self._content, "assessor")
        return None if content is None else self._choice("assessor", content, "builtinAssessorName")

    def _choice(self, kind: str, content: Mapping[str, Any], builtin: str) -> TunerChoice:
        known = {builtin, *_CHOICE.split(), *_CHOICE_NO_EFFECT}
        if unknown := content.keys() - known:
            raise ConfigurationError(f"{kind}.{sorted(unknown)[0]}: {kind} has {', '.join(sorted(known))}")
        for name in sorted(content.keys() & _CHOICE_NO_EFFECT):
            self._note(f"{kind}.{name}", f"the {kind} sees what this command sees")
        arguments = self._mapping(content, "classArgs") or {}
        include = content.get("includeIntermediateResults", False)
        name = content.get(builtin, content.get("name"))
        if name is not None and name != "Customized":
            return TunerChoice(builtin=str(name), arguments=arguments, includes_intermediate=bool(include))
        class_name = str(content.get("className", ""))
        class_file = str(content.get("classFileName", ""))
        if "." in class_name and not class_file:  # v2: file.Class
            module, _, class_name = class_name.rpartition(".")
            class_file = module.replace(".", "/") + ".py"
        if not class_name or not class_file:
            raise ConfigurationError(f"{kind}: name {builtin}, or classFileName and className")
        where = str(content.get("codeDir", content.get("codeDirectory", ".")))
        if not (self._folder / where / class_file).is_file():
            raise ConfigurationError(f"{kind}.classFileName ({class_file}) is not in {where}, beside the configuration")
        return TunerChoice(
            code_dir=where, class_file=class_file, class_name=class_name, arguments=arguments,
            includes_intermediate=bool(include),
        )  # fmt: skip

    def _space(self, *, needed: bool) -> Mapping[str, Any] | None:
        inline = self._content.get("searchSpace")
        if isinstance(inline, dict):
            return inline
        name = self._content.get("searchSpacePath", self._content.get("searchSpaceFile"))
        if name is None:
            if needed:
                raise ConfigurationError("searchSpacePath is missing: a builtin tuner needs a search space")
            return None
        try:
            content = json.loads((self._folder / str(name)).read_text())
        except OSError as error:
            raise ConfigurationError(f"searchSpacePath ({name}): {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"searchSpacePath ({name}) is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise ConfigurationError(f"searchSpacePath ({name}) must hold an object: a name to its _type and _value")
        return content

    def _gpus(self, local: Mapping[str, Any]) -> tuple[int, ...] | None:
        for name in sorted(local.keys() & _LOCAL_NO_EFFECT):
            self._note(
                f"localConfig.{name}", "trialConcurrency says how many jobs run, each with gpuNum GPUs of its own"
            )
        indices = local.get("gpuIndices")
        if indices is None:
            return None
        numbers = indices if isinstance(indices, list) else str(indices).split(",")
        if not all(str(number).strip().isdecimal() for number in numbers):
            raise ConfigurationError(f"localConfig.gpuIndices ({indices}) must be numbers such as 0,1")
        return tuple(int(number) for number in numbers)

    def _output_dir(self) -> Path | None:
        name = self._content.get("logDir", self._content.get("experimentWorkingDirectory"))
        return None if name is None else (self._folder / Path(str(name)).expanduser()).resolve()

    def _mapping(self, content: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        value = content.get(name)
        if isinstance(value, list) and name == "trainingService":
            return None
        if value is not None and not isinstance(value, dict):
            raise ConfigurationError(f"{name} ({value!r:.100}) must hold fields of its own")
        return value

    def _whole(self, content: Mapping[str, Any], *names: str, least: int) -> int | None:
        for name in names:
            value = content.get(name)
            if value is None:
                continue
            check_int(name, value, least)
            return int(value)
        return None

    def _switch(self, name: str) -> bool:
        value = self._content.get(name, False)
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} ({value!r}) must be true or false")
        return value

    def _duration(self, *names: str) -> float | None:
        """Seconds."""
        for name in names:
            value = self._content.get(name)
            if value is None:
                continue
            found = _DURATION.fullmatch(str(value))
            if found is None or isinstance(value, bool):
                raise ConfigurationError(f"{name} ({value!r}) must be a whole number and s, m, h or d, as 1h")
            return float(found[1]) * _SECONDS[found[2]]
        return None
