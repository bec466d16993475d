"""A search from Python, without Hydra and Prefect: ``python examples/01_first_search.py`` (under a minute)."""

from nas import Budget, Search, Spec, run_search

search = Search(problem=Spec("nas.problems.digits.DigitsProblem"), tuner=Spec("nas.tuners.evolution.EvolutionTuner"))
found = run_search(search, budget=Budget(trials=12))
print("winner:", found.winner.number, found.winner.metrics, "on test data:", found.tests[found.winner.number])
print("ancestors:", [trial.number for trial in found.lineage.ancestors(found.winner.number)])
print("export:", f"{found.url}/{found.export['export']}")
