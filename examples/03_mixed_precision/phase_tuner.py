"""A tuner that chooses each phase of a job by the score of the previous phase."""

from mixed_precision import BITS

from nas import Proposal, Tuner


class PhaseTuner(Tuner):
    """Removes bits from a layer if the job's last phase reached the goal, else adds bits."""

    def __init__(self, space, metrics, *, seed=0, goal=0.95):
        super().__init__(space, metrics, seed=seed)
        self.goal = goal  # of the first metric

    def ask(self, lineage, number, job):
        rng = self.rng(number)  # depends only on seed and number, so that a search can be resumed
        phases = [t for t in lineage.finished if t.job == job and t.value(self.metrics[0].name) is not None]
        if not phases:  # the job's first
            return Proposal(point=self.space.sample(rng), reason="start")
        last = max(phases, key=lambda trial: trial.number)
        fewer, more = (list(neighbors(last.point, step)) for step in (-1, 1))
        enough = last.value(self.metrics[0].name) >= self.goal
        points = (fewer or more) if enough else (more or fewer)  # the other direction if no layer can change
        new = [point for point in points if not lineage.has_point(point)]
        return Proposal(point=rng.choice(new or points), parents=(last.number,), reason="enough" if enough else "poor")


def neighbors(point, step):
    """Yields the points with the next number of bits in one layer, up or down."""
    for layer, bits in point.items():
        index = BITS.index(bits) + step
        if 0 <= index < len(BITS):
            yield point | {layer: BITS[index]}
