"""Heirloom: neural architecture search in which children inherit their parents' weights.

The names below are loaded when first used: importing ``nas`` imports neither torch, pandas nor Prefect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nas.core.budget import Budget
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric
    from nas.core.point import Point
    from nas.core.policy import Policy, PolicyPlan, Stage
    from nas.core.spec import Spec
    from nas.core.trial import Proposal, State, Trial
    from nas.inheritance.donors.index import DonorIndex
    from nas.inheritance.donors.ranking import LineageDonors
    from nas.inheritance.inherit import inherit
    from nas.search.api import run_search
    from nas.search.definition import Search
    from nas.search.runner import Summary
    from nas.spaces.parameters.nni_json import load_nni_space
    from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
    from nas.spaces.space import Space
    from nas.stoppers.base import Stopper
    from nas.storage.maintenance.gc.retention import Retention
    from nas.storage.signature import Signature
    from nas.training.job import Job
    from nas.training.problem import Problem
    from nas.training.trial_run import TrialRun
    from nas.tuners.base import STOP, WAIT, Tuner

    __version__: str

_HOMES = {
    "Budget": "nas.core.budget",
    "Choice": "nas.spaces.parameters.space",
    "DonorIndex": "nas.storage.donors",
    "Float": "nas.spaces.parameters.space",
    "Int": "nas.spaces.parameters.space",
    "Lineage": "nas.core.lineage",
    "LineageDonors": "nas.inheritance.donors.ranking",
    "Metric": "nas.core.metric",
    "ParameterSpace": "nas.spaces.parameters.space",
    "Point": "nas.core.point",
    "Policy": "nas.core.policy",
    "PolicyPlan": "nas.core.policy",
    "Problem": "nas.training.problem",
    "Proposal": "nas.core.trial",
    "Retention": "nas.storage.maintenance.gc.retention",
    "STOP": "nas.tuners.base",
    "Search": "nas.search.definition",
    "Signature": "nas.storage.signature",
    "Space": "nas.spaces.space",
    "Spec": "nas.core.spec",
    "Stage": "nas.core.policy",
    "State": "nas.core.trial",
    "Stopper": "nas.stoppers.base",
    "Summary": "nas.search.runner",
    "Trial": "nas.core.trial",
    "Job": "nas.training.job",
    "TrialRun": "nas.training.trial_run",
    "Tuner": "nas.tuners.base",
    "WAIT": "nas.tuners.base",
    "inherit": "nas.inheritance.inherit",
    "load_nni_space": "nas.spaces.parameters.nni_json",
    "run_search": "nas.search.api",
}

__all__ = [
    "STOP",
    "WAIT",
    "Budget",
    "Choice",
    "DonorIndex",
    "Float",
    "Int",
    "Job",
    "Lineage",
    "LineageDonors",
    "Metric",
    "ParameterSpace",
    "Point",
    "Policy",
    "PolicyPlan",
    "Problem",
    "Proposal",
    "Retention",
    "Search",
    "Signature",
    "Space",
    "Spec",
    "Stage",
    "State",
    "Stopper",
    "Summary",
    "Trial",
    "TrialRun",
    "Tuner",
    "inherit",
    "load_nni_space",
    "run_search",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module 'nas' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def _version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("heirloom-nas")
    except PackageNotFoundError as error:
        raise AttributeError(
            "module 'nas' has no attribute '__version__': heirloom-nas is not installed here (pip install .)"
        ) from error


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
