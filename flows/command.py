"""What every command shares: Hydra's composition, one clear line for a mistake, and the exit status.

The only module that imports Hydra; what leaves it is plain Python.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nas.errors import ConfigurationError, HeirloomError, SearchInterruptedError
from nas.spec import Spec

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OK, FAILED, MISTAKE = 0, 1, 2
GROUPS = ("problem", "tuner", "stopper")
"""Groups whose yaml says how to build a class; a ``_target_`` of the user's own takes any arguments."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One composed configuration, as plain data.

    Attributes:
        values: The whole configuration; interpolations are resolved.
        named: Keys and groups that the command line sets.
        swept: Keys and values that a multirun varies, as this job has them.
    """

    values: Mapping[str, Any]
    named: frozenset[str] = frozenset()
    swept: Mapping[str, str] = field(default_factory=dict)

    def spec(self, group: str) -> Spec | None:
        """What a group says to build, or None where it was not chosen."""
        chosen = self.values.get(group)
        if chosen is None:
            return None
        if not isinstance(chosen, Mapping) or not chosen.get("_target_"):
            raise ConfigurationError(
                f"{group} ({chosen}) must be a choice of the group {group}, or set {group}._target_"
            )
        return Spec(str(chosen["_target_"]), {key: value for key, value in chosen.items() if key != "_target_"})


def run_command(config: str, body: Callable[[Invocation], int], argv: Sequence[str] | None = None) -> int:
    """Composes ``conf/<config>.yaml`` with the command line, runs ``body`` once a job, and gives the exit status.

    A mistake of the user's is one line on standard error and status 2, a failed search or store one line and 1, an
    interruption 130 or 143. The error of one job of a multirun does not end the others. Anything else is a bug and
    keeps its traceback.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    statuses = [OK]
    given = list(sys.argv[1:] if argv is None else argv)
    sweep_folder = tempfile.mkdtemp(prefix="heirloom-multirun-")  # Hydra writes a multirun.yaml, come what may

    def job(configuration: DictConfig) -> None:
        statuses.append(_guarded(lambda: composed(configuration)))
        if statuses[-1] > 128:  # an interruption ends the other jobs too
            raise KeyboardInterrupt

    def composed(configuration: DictConfig) -> int:
        overrides = list(HydraConfig.get().overrides.task)
        plain = OmegaConf.to_container(configuration, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        refuse_unknown_keys(config, plain)
        swept_keys = _swept_keys(given)
        pairs = [text.lstrip("+~").partition("=")[::2] for text in overrides]
        invocation = Invocation(
            values={str(key): value for key, value in plain.items()},
            named=frozenset(key for key, _ in pairs),
            swept={key: value for key, value in sorted(pairs) if key in swept_keys},
        )
        return body(invocation)

    argv_before = sys.argv
    try:
        sys.argv = [argv_before[0], *_with_free_targets(config, given), f"hydra.sweep.dir={sweep_folder}"]
        hydra.main(version_base="1.3", config_path="../conf", config_name=config)(job)()
    except (HydraException, OmegaConfBaseException) as error:
        complain(_one_line(error))
        statuses.append(MISTAKE)
    except KeyboardInterrupt:
        statuses.append(130)
    except HeirloomError as error:
        complain(str(error))
        statuses.append(MISTAKE)
    finally:
        sys.argv = argv_before
        shutil.rmtree(sweep_folder, ignore_errors=True)
    return max(statuses)


def refuse_unknown_keys(config: str, values: Mapping[Any, Any]) -> None:
    """Refuses what ``+key=value`` added to the configuration but nothing would read.

    Raises:
        ConfigurationError: a key that ``conf/<config>.yaml`` does not hold.
    """
    from importlib.resources import files

    from omegaconf import OmegaConf

    page = OmegaConf.create(files("conf").joinpath(f"{config}.yaml").read_text())
    assert isinstance(page, Mapping)
    groups = [str(key).removeprefix("optional ").split("/")[-1] for e in page["defaults"] if e != "_self_" for key in e]
    known = {*(str(key) for key in page if key != "defaults"), *groups, *GROUPS}
    for key, value in values.items():
        if key not in known:
            raise ConfigurationError(f"unknown key {key}; the keys are {', '.join(sorted(known - {'hydra'}))}")
        inner = page.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping) and (unknown := sorted(set(value) - set(inner))):
            raise ConfigurationError(f"unknown key {key}.{unknown[0]}; the keys are {', '.join(sorted(inner))}")


def _guarded(body: Callable[[], int]) -> int:
    try:
        return body()
    except SearchInterruptedError as error:
        complain(str(error))
        return 128 + error.signal if error.signal else FAILED
    except ConfigurationError as error:
        complain(str(error))
        return MISTAKE
    except HeirloomError as error:
        complain(str(error))
        return FAILED
    except BrokenPipeError:  # standard output was closed (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED


def complain(line: str) -> None:
    """Prints one line on standard error."""
    print("heirloom: " + " ".join(line.split()), file=sys.stderr, flush=True)


def _one_line(error: Exception) -> str:
    text = str(error).partition("Config search path")[0].partition("To append to your config use")[0]
    if error.__cause__ is not None and not text.strip():
        text = str(error.__cause__)
    return text.replace("\n\t", " ").partition("full_key:")[0]


def _parsed(argv: Sequence[str]) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed = OverridesParser.create(), []
    for text in argv:
        if "=" in text and not text.startswith("-"):
            try:
                parsed.append(parser.parse_override(text))
            except HydraException:
                continue  # Hydra meets it again, and says what is wrong with it
    return parsed


def _swept_keys(argv: Sequence[str]) -> set[str]:
    return {str(override.key_or_group) for override in _parsed(argv) if override.is_sweep_override()}


def _with_free_targets(config: str, argv: Sequence[str]) -> list[str]:
    """The overrides, such that ``problem._target_=my.Class problem.width=64`` works as it stands.

    Hydra refuses keys that the chosen yaml does not hold. Where a group's ``_target_`` is given and no choice of the
    group is, the choice becomes ``custom`` (a yaml with nothing but a target), and its keys are added.
    """
    result = list(argv)
    if config == "final":  # the search's record holds the rest of these groups
        prefixes = tuple(f"{group}." for group in GROUPS)
        return ["++" + text if text.startswith((*prefixes, "storage.options.")) else text for text in result]
    keys = {text.lstrip("+~").partition("=")[0] for text in argv if not text.startswith("-")}
    for group in GROUPS:
        if f"{group}._target_" not in keys or group in keys:
            continue
        result = ["++" + text.lstrip("+") if text.lstrip("+").startswith(f"{group}.") else text for text in result]
        result.append(f"+{group}=custom" if group == "tuner" else f"{group}=custom")
    return ["++" + text if text.startswith("storage.options.") else text for text in result]
