"""Initial points, proposed before the tuner is asked, and initial weights, the donor of first trials."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.names import check_name
from nas.core.point import Point
from nas.core.trial import Trial
from nas.spaces.space import check_points
from nas.storage.blobs import BlobStore
from nas.storage.records import Records
from nas.storage.remote_file import read_file
from nas.storage.verified import digest_of
from nas.tuners.base import Tuner
from nas.tuners.shared.constrained import ConstrainedTuner

_OTHER_SEARCH = re.compile(r"[^/:]+:\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInit:
    """The initial points and the initial weights of a search (the options ``init.points`` and ``init.weights``).

    Attributes:
        points: The initial points, in order; part of the search's identity.
        weights: The donor of trials without another donor: a trial of another search (``"name:42"``), or None.
        file: The safetensors file whose import is that trial, at any fsspec URL, or None: it is another search's trial.
    """

    points: tuple[Point, ...] = ()
    weights: str | None = None
    file: str | None = None

    @classmethod
    def read(cls, points: object, weights: object, *, root: Callable[[], BlobStore] | None = None) -> SearchInit:
        """Returns the initial points and weights that the options name.

        A file of weights is read for its digest, which names the search that imports it.

        Args:
            points: ``init.points``: a JSON file of points, another search's trial (``"name:42"``), or None.
            weights: ``init.weights``: a safetensors file, another search's trial (``"name:42"``), or None.
            root: Opens the root whose search ``points`` may name.

        Raises:
            ConfigurationError: a file can't be read, or has other content. Or there is no such trial.
        """
        for name, value in (("points", points), ("weights", weights)):
            if value is not None and (not isinstance(value, str | os.PathLike) or not value):
                raise ConfigurationError(f"init.{name}={value!r}: must be a file's path or URL")
        found = () if points is None else _points(str(points), root)
        if weights is None or _OTHER_SEARCH.fullmatch(str(weights)):
            return cls(points=found, weights=None if weights is None else str(weights))
        content = _content("weights", str(weights))
        _check_tensors(content, str(weights))
        digest = digest_of(content).removeprefix("blake3:")
        return cls(points=found, weights=f"weights-{digest[:12]}:0", file=str(weights))

    @property
    def is_given(self) -> bool:
        """Whether there are initial points or weights."""
        return bool(self.points) or self.weights is not None

    def to_json(self) -> dict[str, Any]:
        """Returns them as JSON, for the identity of a search."""
        return {"points": list(self.points), "weights": self.weights}

    @classmethod
    def of(cls, described: Mapping[str, Any] | None) -> SearchInit:
        """Returns the initial points and weights of an identity."""
        return cls() if described is None else cls(points=tuple(described["points"]), weights=described["weights"])

    def check_points(self, tuner: Tuner) -> None:
        """Checks that all points are in the tuner's space and keep its constraints.

        Raises:
            ConfigurationError: a point is not in the space, or violates a constraint.
        """
        check_points("init.points", self.points, tuner.space)
        for index, point in enumerate(self.points):
            if isinstance(tuner, ConstrainedTuner) and (violated := tuner.violated_by(point)):
                raise ConfigurationError(f"init.points[{index}] violates {violated}. Leave it out, or raise the limit")


def unused_weights(init: SearchInit, trial: Trial) -> str | None:
    """Returns a notice if a trial inherited no parameter of the initial weights, else None.

    The trial must have called ``run.inherit``, unless the weights are gone.
    """
    if trial.inherited:
        return None
    if trial.resolved_donor is None:
        return (
            f"init.weights ({init.file or init.weights}): the weights are gone, so trial {trial.number} trained from "
            "scratch. Restore them from a backup, or begin a search under another name"
        )
    reasons = (f" ({name}: {why})" for name, why in trial.inheritance.get("not_copied", {}).items())
    return (
        f"init.weights ({init.file or init.weights}): trial {trial.number} inherited no parameter"
        f"{next(reasons, '')}. Check that they are weights of the same kind of network"
    )


def _points(url: str, root: Callable[[], BlobStore] | None) -> tuple[Point, ...]:
    if root is not None and _OTHER_SEARCH.fullmatch(url):
        return (_point_of(url, root()),)
    content = _content("points", url)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"init.points={url}: must be a JSON list of points: {error}") from error
    if not isinstance(found, list) or not found or not all(isinstance(point, dict) for point in found):
        raise ConfigurationError(f'init.points={url}: must be a JSON list of points: [{{"width": 16}}]')
    return tuple(found)


def _point_of(named: str, root: BlobStore) -> Point:
    """Returns the point of another search's trial, finished or not."""
    name, _, number = named.rpartition(":")
    trial = Records(root.subfolder(check_name(name))).proposed(int(number))
    if trial is None:
        raise ConfigurationError(
            f"init.points={named}: no such trial under this root. Name one of another search there "
            "(the command `report` lists them), or a JSON file of points."
        )
    return trial.point


def _check_tensors(content: bytes, url: str) -> None:
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ConfigurationError(f"init.weights={url}: must be a file of safetensors: {error}") from error
    if not tensors:
        raise ConfigurationError(f"init.weights={url}: holds no tensors. Name a file that does, or leave it out.")


def _content(name: str, url: str) -> bytes:
    try:
        return read_file(url, {})
    except OSError as error:
        other = ", or another search's trial as NAME:42"
        raise ConfigurationError(
            f"init.{name}={url}: can't be read ({error}). Give a file's path or URL{other}."
        ) from error
