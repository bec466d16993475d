"""Heirloom: neural architecture search in which children inherit their parents' weights.

The public names are loaded when first used: ``import nas`` imports neither torch, pandas nor Prefect.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the one list of public names: ``_modules_of_names`` reads it
    from nas.api.loop import SearchLoop as SearchLoop
    from nas.api.loop import open_search as open_search
    from nas.api.results import Results as Results
    from nas.api.results import load as load
    from nas.api.search import run_search as run_search
    from nas.callbacks.base import Callback as Callback
    from nas.callbacks.base import SearchInfo as SearchInfo
    from nas.callbacks.base import SearchOutcome as SearchOutcome
    from nas.core.budget import Budget as Budget
    from nas.core.errors import TrialStopped as TrialStopped
    from nas.core.lineage import Lineage as Lineage
    from nas.core.metric import Metric as Metric
    from nas.core.point import Point as Point
    from nas.core.policy import Policy as Policy
    from nas.core.policy import PolicyPlan as PolicyPlan
    from nas.core.policy import Stage as Stage
    from nas.core.spec import Spec as Spec
    from nas.core.supernet import epoch_of as epoch_of
    from nas.core.trial import DonorRule as DonorRule
    from nas.core.trial import Proposal as Proposal
    from nas.core.trial import State as State
    from nas.core.trial import Trial as Trial
    from nas.inheritance.donors.index import DonorIndex as DonorIndex
    from nas.inheritance.donors.lineage_donors import LineageDonors as LineageDonors
    from nas.inheritance.freezing import set_frozen as set_frozen
    from nas.inheritance.inherit import inherit as inherit
    from nas.inheritance.morphism import morph as morph
    from nas.inheritance.optimizer_state import inherit_optimizer as inherit_optimizer
    from nas.inheritance.optimizer_state import optimizer_tensors as optimizer_tensors
    from nas.inheritance.rules import Rules as Rules
    from nas.search.definition import Search as Search
    from nas.spaces.graphs.limits import Limits as Limits
    from nas.spaces.graphs.module import GraphModule as GraphModule
    from nas.spaces.graphs.moves import draw_move as draw_move
    from nas.spaces.graphs.network import Network as Network
    from nas.spaces.graphs.space import GraphSpace as GraphSpace
    from nas.spaces.graphs.starts import plain_cnn as plain_cnn
    from nas.spaces.graphs.starts import resnet as resnet
    from nas.spaces.parameters.nni_json import load_nni_space as load_nni_space
    from nas.spaces.parameters.space import Choice as Choice
    from nas.spaces.parameters.space import Float as Float
    from nas.spaces.parameters.space import Int as Int
    from nas.spaces.parameters.space import ParameterSpace as ParameterSpace
    from nas.spaces.space import Space as Space
    from nas.spaces.supernet import SupernetSpace as SupernetSpace
    from nas.stoppers.base import Stopper as Stopper
    from nas.storage.maintenance.gc.retention import Retention as Retention
    from nas.storage.signature import Signature as Signature
    from nas.supernets.choices import InputChoice as InputChoice
    from nas.supernets.choices import LayerChoice as LayerChoice
    from nas.supernets.elastic import extremes as extremes
    from nas.supernets.elastic_blocks import ElasticAttention as ElasticAttention
    from nas.supernets.elastic_blocks import ElasticDepth as ElasticDepth
    from nas.supernets.elastic_blocks import ElasticModuleList as ElasticModuleList
    from nas.supernets.elastic_layers import ElasticConv2d as ElasticConv2d
    from nas.supernets.elastic_layers import ElasticEmbedding as ElasticEmbedding
    from nas.supernets.elastic_layers import ElasticLinear as ElasticLinear
    from nas.supernets.elastic_norms import ElasticBatchNorm1d as ElasticBatchNorm1d
    from nas.supernets.elastic_norms import ElasticBatchNorm2d as ElasticBatchNorm2d
    from nas.supernets.elastic_norms import ElasticGroupNorm as ElasticGroupNorm
    from nas.supernets.elastic_norms import ElasticLayerNorm as ElasticLayerNorm
    from nas.supernets.elastic_transformer import ElasticTransformerEncoderLayer as ElasticTransformerEncoderLayer
    from nas.supernets.module import SearchableModule as SearchableModule
    from nas.supernets.module import space_of as space_of
    from nas.supernets.module import subnet as subnet
    from nas.supernets.paths import FairPaths as FairPaths
    from nas.supernets.paths import ListedPaths as ListedPaths
    from nas.supernets.paths import SandwichPaths as SandwichPaths
    from nas.supernets.paths import UniformPaths as UniformPaths
    from nas.supernets.sizes import Elastic as Elastic
    from nas.supernets.sizes import ElasticProduct as ElasticProduct
    from nas.supernets.statistics import panel_score as panel_score
    from nas.supernets.training import PathTraining as PathTraining
    from nas.supernets.training import train_epoch as train_epoch
    from nas.training.job import Job as Job
    from nas.training.problem import Ability as Ability
    from nas.training.problem import Problem as Problem
    from nas.training.trial_run import TrialRun as TrialRun
    from nas.tuners.base import STOP as STOP
    from nas.tuners.base import WAIT as WAIT
    from nas.tuners.base import Tuner as Tuner

    __version__: str


@cache
def _modules_of_names() -> dict[str, str]:
    """Returns the module of each public name, as imported above for type checkers."""
    import ast
    from pathlib import Path

    from nas.core.parsing import PARSING

    with PARSING:
        tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    modules = _modules_of_names()
    if name == "__all__":
        return sorted(modules)
    if name not in modules:
        raise AttributeError(f"module 'nas' has no attribute {name!r}")
    return getattr(importlib.import_module(modules[name]), name)


def _version() -> str:
    """Returns the version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("heirloom-nas")
    except PackageNotFoundError as error:
        raise AttributeError(
            "module 'nas' has no attribute '__version__': heirloom-nas is not installed here (pip install .)"
        ) from error


def __dir__() -> list[str]:
    return sorted([*_modules_of_names(), "__version__"])
