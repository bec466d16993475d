"""A tuner that leads each job by what its last phase scored."""

from mixed_precision import BITS

from nas import Proposal, Tuner


class PhaseTuner(Tuner):
    """Takes bits from one layer where the job's last phase reached the goal, and gives some to one where it did not."""

    def __init__(self, space, metrics, *, seed=0, goal=0.95):
        super().__init__(space, metrics, seed=seed)
        self.goal = goal  # of the first metric

    def ask(self, lineage, number, job):
        rng = self.rng(number)  # the same for the same number, so that a search can be resumed
        phases = [t for t in lineage.finished if t.job == job and t.value(self.metrics[0].name) is not None]
        if not phases:  # the job's first
            return Proposal(point=self.space.sample(rng), reason="start")
        last = max(phases, key=lambda trial: trial.number)
        fewer, more = (list(moved(last.point, step)) for step in (-1, 1))
        enough = last.value(self.metrics[0].name) >= self.goal
        points = (fewer or more) if enough else (more or fewer)  # where no layer can go the one way, the other
        new = [point for point in points if not lineage.has_point(point)]
        return Proposal(point=rng.choice(new or points), parents=(last.number,), reason="enough" if enough else "poor")


def moved(point, step):
    """Returns the points in which one layer has the next number of bits, up or down."""
    for layer, bits in point.items():
        place = BITS.index(bits) + step
        if 0 <= place < len(BITS):
            yield point | {layer: BITS[place]}
