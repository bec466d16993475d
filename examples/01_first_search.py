"""A search from Python, without Hydra and Prefect: python examples/01_first_search.py (half a minute)."""

from nas import Budget, Search, Spec, run_search

search = Search(
    problem=Spec("nas.problems.digits.DigitsProblem"),
    tuner=Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 4}),
)
found = run_search(search, root="heirloom", budget=Budget(trials=10))
print(
    f"trial {found.winner.number} of {len(found.lineage)}: {found.winner.metrics}, test {found.tests[found.winner.number]}"
)
print(f"{found.winner.point}, exported to {found.url}/{found.best['export']}")
