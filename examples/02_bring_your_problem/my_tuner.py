from nas import Proposal, Tuner


class MyTuner(Tuner):
    """Hill climbing: after a few random points, always changes the best trial so far, whose weights the child takes."""

    def __init__(self, space, metrics, *, seed=0, n_random=4):
        super().__init__(space, metrics, seed=seed)
        self.n_random = n_random

    def ask(self, lineage, number, job):
        rng = self.rng(number)  # the same for the same number, so that a search can be resumed
        best = lineage.best(self.metrics[0])
        if number < self.n_random or not best:
            return Proposal(point=self.space.sample(rng), reason="random")
        return Proposal(point=self.space.mutate(best[0].point, rng), parents=(best[0].number,), reason="climb")
