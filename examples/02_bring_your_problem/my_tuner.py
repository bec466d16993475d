from nas import Proposal, Tuner


class MyTuner(Tuner):
    """Hill climbing: mutates the best trial so far. The child inherits its weights."""

    def __init__(self, space, metrics, *, seed=0, n_random=4):
        super().__init__(space, metrics, seed=seed)
        self.n_random = n_random

    def ask(self, lineage, number, job):
        rng = self.rng(number)  # depends only on seed and number, so that a search can be resumed
        best = lineage.best(self.metrics[0])
        if number < self.n_random or not best:
            return Proposal(point=self.space.sample(rng), reason="random")
        return Proposal(point=self.space.mutate(best[0].point, rng), parents=(best[0].number,), reason="climb")
