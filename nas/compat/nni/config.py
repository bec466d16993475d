"""The configuration file of an NNI experiment.

Knows the fields of v0.5 to v1.9, and those of v2. Each is read, refused by its name, or reported to have no effect.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_bool, check_int

PLATFORMS = ("remote", "pai", "paiYarn", "openpai", "kubeflow", "frameworkcontroller", "dlts", "aml", "adl", "hybrid")
_RUNNERS = "trials run as processes of this machine, or with runner=dask or ray on a cluster (docs/guides/clusters.md)"
_READ = """
    experimentName experimentType trialConcurrency maxTrialNum maxTrialNumber maxExecDuration maxExperimentDuration
    maxTrialDuration trainingServicePlatform trainingService searchSpacePath searchSpaceFile searchSpace useAnnotation
    multiPhase multiThread logDir experimentWorkingDirectory tuner assessor advisor localConfig
    trial trialCommand trialCodeDirectory trialGpuNumber
"""
_SILENT = frozenset(("authorName", "description"))
"""Fields without effect that are not reported."""
_NO_EFFECT = {
    **dict.fromkeys(("logLevel", "debug"), "the logs of trials and of the tuner contain everything"),
    "logCollection": "the storage keeps the log of each attempt",
    "versionCheck": "there is only one version",
    "nniManagerIp": "trials connect to a process on their own machine",
    **dict.fromkeys(("machineList", "remoteConfig"), _RUNNERS),
    **dict.fromkeys(("paiConfig", "paiYarnConfig", "kubeflowConfig", "frameworkcontrollerConfig"), _RUNNERS),
    **dict.fromkeys(("dltsConfig", "amlConfig", "adlConfig", "hybridConfig"), _RUNNERS),
    "sharedStorage": "use --root URL for the records, and mount the share of your trials yourself",
    "tunerGpuIndices": "the tuner sees the GPUs that this command sees",
    "reuse": "set multiPhase: true to let one process try many configurations",
}
"""Fields without effect, each with the reason or the replacement."""
_TRIAL_NO_EFFECT = """
    cpuNum memoryMB image shmMB dataDir outputDir virtualCluster authFile portList gpuType sharedStorage
    nniManagerNFSMountPath containerNFSMountPath paiStorageConfigName paiStoragePlugin paiConfigPath
    taskRoles worker master ps
"""
_CLASS = "name classArgs codeDir codeDirectory classFileName className includeIntermediateResults"
"""Fields of a tuner or assessor, besides builtin names and those without effect."""
_CLASS_NO_EFFECT = frozenset(("gpuNum", "gpuIndices", "checkpointDir"))
_LOCAL = "gpuIndices maxTrialNumPerGpu maxTrialNumberPerGpu"
"""Fields of this machine, besides those without effect."""
_LOCAL_NO_EFFECT = {
    "useActiveGpu": "trials also get GPUs that other programs use",
    "reuseMode": _NO_EFFECT["reuse"],
    **dict.fromkeys(("trialCommand", "trialCodeDirectory", "trialGpuNumber"), "it is read at the top of the file"),
    "nniManagerIp": _NO_EFFECT["nniManagerIp"],
}
_REFUSED = {
    "advisor": "advisors (Hyperband, BOHB) are not supported. For successive halving use the command `search "
    "stopper=asha` (docs/guides/stoppers.md)",
    "useAnnotation": "annotated code is not supported. Write searchSpacePath and call nni.get_next_parameter()",
    "nasMode": "the NAS mode of v1.0 is not supported",
}
_DURATION = re.compile(r"([1-9][0-9]*)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerChoice:
    """A builtin tuner or assessor, or a class of the user.

    Attributes:
        builtin: The name of a builtin one, or None.
        class_file: The module's file in ``code_dir``.
        arguments: ``classArgs``.
    """

    builtin: str | None = None
    code_dir: str = "."
    class_file: str = ""
    class_name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    include_intermediate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The configuration of an experiment.

    Attributes:
        folder: The folder of the configuration file. All paths in the file are relative to it.
        space: The content of the search space file, or None.
        max_jobs: Most jobs that may start; None: as many as the time allows.
        gpus: The GPUs of ``localConfig``; None: all.
        jobs_per_gpu: Most jobs that share a GPU.
        notes: One line for each field without effect.
    """

    name: str
    folder: Path
    command: str
    code_dir: Path
    concurrency: int
    space: Mapping[str, Any] | None
    tuner: TunerChoice
    assessor: TunerChoice | None = None
    max_jobs: int | None = None
    hours: float | None = None
    trial_timeout_s: float | None = None
    multi_phase: bool = False
    multi_thread: bool = False
    gpus_per_trial: int | None = None
    gpus: tuple[int, ...] | None = None
    jobs_per_gpu: int = 1
    output_dir: Path | None = None
    notes: tuple[str, ...] = ()


def read_experiment(path: str | Path) -> Experiment:
    """Returns the experiment of a configuration file.

    Raises:
        ConfigurationError: the file can't be read, or a field is invalid or not supported.
    """
    import yaml

    from nas.compat.nni.yaml_scalars import read_yaml

    try:
        content = read_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"can't read the configuration {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration {path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"the configuration {path} must be a mapping of fields")
    return _Reader(content, Path(path).resolve().parent).read()


def check_fields(owner: str, given: Iterable[object], known: Iterable[object], remedy: str) -> None:
    """Checks that each field is known.

    Raises:
        ConfigurationError: one is not; the message names the first by the alphabet.
    """
    if unknown := {*given} - {*known}:
        raise ConfigurationError(f"{owner}.{min(map(str, unknown))}: {remedy}")


class _Reader:
    """Reads the content of a file and collects the fields without effect."""

    def __init__(self, content: Mapping[str, Any], folder: Path) -> None:
        self._content = {str(key): value for key, value in content.items() if value is not None}
        self._folder = folder
        self._notes: list[str] = []

    def read(self) -> Experiment:
        content = self._content
        self._refuse()
        self._note_platforms()
        trial = self._trial()
        local = self._local()
        tuner = self._tuner()
        space = self._space()
        for name in sorted(content.keys() & _NO_EFFECT.keys()):
            self._note(name, _NO_EFFECT[name])
        seconds = self._duration("maxExecDuration", "maxExperimentDuration")
        concurrency = self._integer(content, "trialConcurrency", least=1)
        if concurrency is None:
            raise ConfigurationError("trialConcurrency is missing: set the number of jobs at a time")
        code_dir = self._folder / os.path.expanduser(str(trial.get("codeDir", ".")))
        if not code_dir.is_dir():
            raise ConfigurationError(f"trial.codeDir={trial.get('codeDir')}: must be an existing folder")
        return Experiment(
            name=str(content.get("experimentName", "experiment")),
            folder=self._folder,
            command=str(trial["command"]),
            code_dir=code_dir.resolve(),
            concurrency=concurrency,
            space=space,
            tuner=tuner,
            assessor=self._assessor(),
            max_jobs=self._integer(content, "maxTrialNum", "maxTrialNumber", least=1),
            hours=None if seconds is None else seconds / 3600,
            trial_timeout_s=self._duration("maxTrialDuration"),
            multi_phase=self._boolean("multiPhase"),
            multi_thread=self._boolean("multiThread"),
            gpus_per_trial=self._integer(trial, "gpuNum", least=0),
            gpus=self._gpus(local),
            jobs_per_gpu=self._integer(local, "maxTrialNumPerGpu", "maxTrialNumberPerGpu", least=1) or 1,
            output_dir=self._output_dir(),
            notes=tuple(self._notes),
        )

    def _note(self, name: str, why: str) -> None:
        note = f"{name} has no effect: {why}"
        if note not in self._notes:
            self._notes.append(note)

    def _refuse(self) -> None:
        """Refuses unsupported and unknown fields."""
        for name, why in _REFUSED.items():
            if self._boolean(name) if name == "useAnnotation" else self._content.get(name):
                raise ConfigurationError(f"{name}: {why}")
        unknown = self._content.keys() - set(_READ.split()) - _SILENT - _NO_EFFECT.keys() - _REFUSED.keys()
        if unknown:
            raise ConfigurationError(
                f"{', '.join(sorted(unknown))}: not a known field of NNI's v1 or v2 configuration. "
                "docs/reference/nni.md lists all"
            )
        kind = self._content.get("experimentType", "hpo")
        if kind != "hpo":
            raise ConfigurationError(f"experimentType={kind}: must be hpo. Other experiments are not supported")

    def _services(self) -> list[dict[str, Any]]:
        """Returns the entries of ``trainingService``, which may be a list, each with its platform."""
        given = self._content.get("trainingService", [])
        default = {"platform": self._content.get("trainingServicePlatform", "local")}
        services = given if isinstance(given, list) else [given]
        return [default | (self._mapping({"trainingService": s}, "trainingService") or {}) for s in services]

    def _platforms(self) -> list[object]:
        """Returns the named platforms; ``local`` without any."""
        named = self._content.get("trainingServicePlatform", "local")
        return [service["platform"] for service in self._services()] or [named]

    def _note_platforms(self) -> None:
        for platform in self._platforms():
            if platform != "local" and platform not in PLATFORMS:
                allowed = ", ".join(PLATFORMS)
                raise ConfigurationError(f"trainingServicePlatform={platform!r}: must be local or {allowed}")
            if platform != "local":
                reason = "OpenPAI no longer exists; " if "pai" in str(platform).lower() else ""
                self._note(f"trainingServicePlatform {platform}", f"{reason}{_RUNNERS}")

    def _local(self) -> dict[str, Any]:
        """Returns the fields of this machine, from ``trainingService`` or ``localConfig``, and notes those ignored."""
        groups = [("trainingService", s) for s in self._services() if s.pop("platform") == "local"]
        local: dict[str, Any] = {}
        for owner, group in (*groups, ("localConfig", self._mapping(self._content, "localConfig") or {})):
            known = (*_LOCAL.split(), *_LOCAL_NO_EFFECT)
            check_fields(owner, group, known, f"the fields of this machine are {', '.join(known)}")
            for name in sorted(group.keys() & _LOCAL_NO_EFFECT.keys()):
                self._note(f"{owner}.{name}", _LOCAL_NO_EFFECT[name])
            local |= group
        return local

    def _trial(self) -> dict[str, Any]:
        """Returns the fields of the trial by their v1 names."""
        trial = dict(self._mapping(self._content, "trial") or {})
        for new, old in (("trialCommand", "command"), ("trialCodeDirectory", "codeDir"), ("trialGpuNumber", "gpuNum")):
            if new in self._content:
                trial.setdefault(old, self._content[new])
        if trial.get("nasMode"):
            raise ConfigurationError(f"trial.nasMode: {_REFUSED['nasMode']}")
        if not isinstance(trial.get("command"), str) or not trial["command"].strip():
            if places := self._commands_of_roles(trial):
                raise ConfigurationError(
                    f"trial.command is missing: {' and '.join(places)} of {self._platforms()[0]} would run in "
                    "containers, but a trial here is one process of a machine. Write its command line as trial.command"
                )
            raise ConfigurationError("trial.command is missing: write the command line that runs one trial")
        for name in sorted(trial.keys() & set(_TRIAL_NO_EFFECT.split())):
            self._note(f"trial.{name}", _RUNNERS)
        known = ("command", "codeDir", "gpuNum", "nasMode", *_TRIAL_NO_EFFECT.split())
        check_fields("trial", trial, known, "the fields of trial are command, codeDir and gpuNum")
        return trial

    def _commands_of_roles(self, trial: Mapping[str, Any]) -> list[str]:
        """Returns the fields that contain commands of Kubeflow's, FrameworkController's or OpenPAI's roles."""
        found = []
        for name, group in (("trial", trial), ("trainingService", self._content.get("trainingService"))):
            roles = dict(group) if isinstance(group, dict) else {}
            listed = roles.pop("taskRoles", None)
            roles |= {f"taskRoles[{i}]": role for i, role in enumerate(listed if isinstance(listed, list) else ())}
            found += [
                f"{name}.{key}.command" for key, role in roles.items() if isinstance(role, dict) and "command" in role
            ]
        return found

    def _tuner(self) -> TunerChoice:
        content = self._mapping(self._content, "tuner")
        if content is None:
            raise ConfigurationError("tuner is missing: set builtinTunerName, or classFileName and className")
        return self._choice("tuner", content, "builtinTunerName")

    def _assessor(self) -> TunerChoice | None:
        content = self._mapping(self._content, "assessor")
        return None if content is None else self._choice("assessor", content, "builtinAssessorName")

    def _choice(self, kind: str, content: Mapping[str, Any], builtin: str) -> TunerChoice:
        known = {builtin, *_CLASS.split(), *_CLASS_NO_EFFECT}
        check_fields(kind, content, known, f"the fields of {kind} are {', '.join(sorted(known))}")
        for name in sorted(content.keys() & _CLASS_NO_EFFECT):
            self._note(f"{kind}.{name}", f"the {kind} sees what this command sees")
        arguments = self._mapping(content, "classArgs") or {}
        include = content.get("includeIntermediateResults", False)
        include = check_bool(f"{kind}.includeIntermediateResults", include)
        name = content.get(builtin, content.get("name"))
        if name is not None and name != "Customized":
            return TunerChoice(builtin=str(name), arguments=arguments, include_intermediate=include)
        class_name = str(content.get("className", ""))
        class_file = str(content.get("classFileName", ""))
        if "." in class_name and not class_file:  # v2: file.Class
            module, _, class_name = class_name.rpartition(".")
            class_file = module.replace(".", "/") + ".py"
        if not class_name or not class_file:
            raise ConfigurationError(f"{kind} must have {builtin}, or classFileName and className")
        code_dir = os.path.expanduser(str(content.get("codeDir", content.get("codeDirectory", "."))))
        if not (self._folder / code_dir / class_file).is_file():
            raise ConfigurationError(f"{kind}.classFileName={class_file}: must be a file in {self._folder / code_dir}")
        return TunerChoice(
            code_dir=code_dir, class_file=class_file, class_name=class_name, arguments=arguments,
            include_intermediate=include,
        )  # fmt: skip

    def _space(self) -> Mapping[str, Any] | None:
        inline = self._mapping(self._content, "searchSpace")
        if inline is not None:
            return inline
        name = self._content.get("searchSpacePath", self._content.get("searchSpaceFile"))
        if name is None:
            return None
        try:
            content = json.loads((self._folder / os.path.expanduser(str(name))).read_bytes())
        except OSError as error:
            raise ConfigurationError(f"searchSpacePath={name}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"searchSpacePath={name}: not JSON: {error}") from error
        if not isinstance(content, dict):
            raise ConfigurationError(f"searchSpacePath={name}: must contain an object: a name to its _type and _value")
        return content

    def _gpus(self, local: Mapping[str, Any]) -> tuple[int, ...] | None:
        indices = local.get("gpuIndices")
        if indices is None:
            return None
        numbers = indices if isinstance(indices, list) else str(indices).split(",")
        if not numbers or not all(str(number).strip().isdecimal() for number in numbers):
            raise ConfigurationError(f"localConfig.gpuIndices={indices}: must be numbers such as 0,1")
        return tuple(dict.fromkeys(int(number) for number in numbers))

    def _output_dir(self) -> Path | None:
        name = self._content.get("logDir", self._content.get("experimentWorkingDirectory"))
        return None if name is None else (self._folder / os.path.expanduser(str(name))).resolve()

    def _mapping(self, content: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        value = content.get(name)
        if value is not None and not isinstance(value, dict):
            raise ConfigurationError(f"{name}={value!r:.100}: must be a mapping of fields")
        return value

    def _integer(self, content: Mapping[str, Any], *names: str, least: int) -> int | None:
        for name in names:
            value = content.get(name)
            if value is None:
                continue
            check_int(name, value, least)
            return int(value)
        return None

    def _boolean(self, name: str) -> bool:
        return check_bool(name, self._content.get(name, False))

    def _duration(self, *names: str) -> float | None:
        """Returns the first of these fields in seconds."""
        for name in names:
            value = self._content.get(name)
            if value is None:
                continue
            match = _DURATION.fullmatch(str(value))
            if match is None or isinstance(value, bool):
                raise ConfigurationError(f"{name}={value!r}: must be a whole number with s, m, h or d, such as 1h")
            return float(match[1]) * _SECONDS[match[2]]
        return None
