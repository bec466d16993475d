"""SQuAD's problem without an export, which takes 80 s of a core for texts of their real length."""

from __future__ import annotations

from nas import Problem
from nas.problems.squad.problem import SquadProblem


class UnexportedSquad(SquadProblem):  # type: ignore[misc]
    """The same networks, trainings and scores."""

    export = Problem.export
