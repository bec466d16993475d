"""Problems and tuners of a few lines, which worker processes can import; torch only where it is used."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Direction, Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.trial import Proposal
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.spaces.space import Space
from nas.training.job import Job
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.base import STOP, Answer, Tuner

if TYPE_CHECKING:
    import torch
    from torch import nn

N_INPUTS, N_CLASSES = 3, 2


def network(width: int = 4) -> nn.Sequential:
    """A small network with all that makes training and evaluation differ: ``(batch, 3) -> (batch, 2)``."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(N_INPUTS, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, N_CLASSES)
    )


class ScoreProblem(Problem):
    """Scores what a table says for the point and the stage, and saves a network: no training.

    Args:
        search: Scores in the search stage, by ``x``; None: the training raises. By default ``x / 100``.
        recheck: Scores in a stage of this name.
        final: Scores in other stages.
        test: Scores on test data; None: the test raises.
        direction: Of the metric.
        data_root: Where nothing lies.
        saves: Whether it saves a network.
    """

    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    space = ParameterSpace({"x": Int(0, 99)})
    tested: ClassVar[list[int]] = []
    """The ``x`` of each test, in this process."""

    def __init__(
        self,
        *,
        search: Sequence[float | str | None] = (),
        recheck: Sequence[float | str | None] = (),
        final: Sequence[float | str | None] = (),
        test: Sequence[float | str | None] = (),
        direction: Direction = "maximize",
        data_root: str = "",
        saves: bool = True,
    ) -> None:
        self.metrics = (Metric("score", direction),)
        self.tables = {"search": search, "recheck": recheck, "final": final, "test": test}
        self.saves = saves

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """The table's score; inherits where it may."""
        model = network()
        if Policy.SHARE_PARAMS in run.policies:
            run.inherit(model)
        score = self.score(run.stage if run.stage in self.tables else "final", run)
        if self.saves:
            run.save(model)
        return {"score": score}

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """The table's score, counted."""
        ScoreProblem.tested.append(run.point["x"])
        return {"score": self.score("test", run)}

    def score(self, table: str, run: TrialRun) -> float:
        """What the table says, or ``x / 100`` where it says nothing."""
        x = run.point["x"]
        value = self.tables[table][x] if x < len(self.tables[table]) else x / 100
        if value is None:
            raise RuntimeError(f"no score for {x}")
        return float(value)  # JSON has no NaN, but "nan"


class ExportProblem(ScoreProblem):
    """The same, and it can be exported."""

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """The network, and a batch of two."""
        import torch

        return run.restore(network()).eval(), (torch.zeros(2, N_INPUTS),)


class GrowingProblem(Problem):
    """A chain of layers that is shorter under DOWNSCALE, trained by one step each of a real optimizer."""

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.DOWNSCALE})
    space = ParameterSpace({"x": Int(0, 99)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Saves the network after a few steps; the score is its parameters'."""
        import torch
        from torch import nn

        model = nn.ModuleList(nn.Linear(N_INPUTS, N_INPUTS) for _ in range(run.scale(layers=15, downscaled=6)))
        if Policy.SHARE_PARAMS in run.policies:
            run.inherit(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(run.epochs(full=60, early=8)):
            data = torch.randn(4, N_INPUTS)
            for layer in model:
                data = layer(data)
            optimizer.zero_grad()
            data.square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        run.save(model)
        return {"score": run.point["x"]}


class LeavingProblem(ExportProblem):
    """Calls ``sys.exit`` where it is tested or exported."""

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Nothing."""
        sys.exit(3)

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """Nothing."""
        sys.exit("no export today")


class PlainProblem(Problem):
    """Neither test data nor an export nor policies."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 99)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """The point's ``x`` as its score."""
        return {"score": run.point["x"]}


class BodyProblem(Problem):
    """Trains by whatever function a test passes in: for one process only."""

    metrics = (Metric("score"),)
    policies = frozenset(Policy)
    space = ParameterSpace({"x": Int(0, 99)})

    def __init__(
        self,
        body: Callable[[TrialRun], object] = lambda run: {"score": 1.0},
        *,
        test: Callable[[TrialRun], Mapping[str, float]] = lambda run: {"score": 1.0},
    ) -> None:
        self.body = body
        self.test_body = test

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """What the function gives."""
        return self.body(run)  # type: ignore[return-value]

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """What the other function gives."""
        return self.test_body(run)


class ThreadsProblem(PlainProblem):
    """Scores how many torch threads a trial has."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """As many as there are."""
        return self.test(run)

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Here, too."""
        import torch

        return {"score": float(torch.get_num_threads())}


class GpusProblem(PlainProblem):
    """Scores the numbers of the GPUs that a trial's worker sees: 23 for GPUs 2 and 3."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """As CUDA's environment variable says it, with the number of GPUs of which the trial knows."""
        return {"score": float(os.environ["CUDA_VISIBLE_DEVICES"].replace(",", "")), "n_gpus": run.n_gpus}


class SharedGpusProblem(GpusProblem):
    """The same, of trials that run at the same time.

    Args:
        folder: Holds a file for each trial that has begun.
        n_trials: Each waits for so many.
    """

    def __init__(self, folder: str, n_trials: int) -> None:
        self.folder = Path(folder)
        self.n_trials = n_trials

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Waits for the others."""
        (self.folder / str(run.number)).touch()
        while len(os.listdir(self.folder)) < self.n_trials:
            time.sleep(0.05)
        return super().train(run)


class InOrderTuner(Tuner):
    """Proposes points one after the other, each a child of the one before, and then STOP.

    Args:
        space: Not looked at.
        metrics: Not looked at.
        seed: Changes nothing.
        xs: The points' ``x``.
        donors: Of every proposal; by default its parent.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        xs: Sequence[int] = tuple(range(100)),
        donors: Sequence[int | str] | None = None,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        self.xs = tuple(xs)
        self.donors = None if donors is None else tuple(donors)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """The ``number``-th point."""
        if number >= len(self.xs):
            return STOP
        parents = (max(trial.number for trial in lineage),) if len(lineage) else ()
        return Proposal(point={"x": self.xs[number]}, parents=parents, donors=self.donors)


class TroubleProblem(Problem):
    """Does what its point says; for worker processes, which must survive or be replaced.

    Args:
        constructor: ``raises`` an error of its own, or one of ``configuration``, or ``ends`` the process, or ``waits``
            for three seconds, or ``hangs``, also if ``later`` a file ``hang`` is there, or in the first process
            ``stops`` its supervisor. ``closes`` hangs only at the end.
    """

    metrics = (Metric("score"),)
    space = ParameterSpace(
        {
            "do": Choice(
                "nothing",
                "print",
                "raise",
                "exit",
                "segfault",
                "kill",
                "sleep",
                "sleep once",
                "save",
                "spin",
                "report",
                "hang",
                "loader",
                "fork",
                "traceable",
                "leave",
                "terminate",
                "thread",
                "flood",
            ),
            "seconds": Int(0, 1000),
        }
    )
    n_built: ClassVar[int] = 0

    def __init__(self, *, constructor: str = "", folder: str = "") -> None:
        if constructor == "raises" and "heirloom-worker" in _process_name():
            raise ZeroDivisionError("in the constructor")
        if constructor == "configuration" and "heirloom-worker" in _process_name():
            raise ConfigurationError("depth=7: must be at most 5")
        if constructor == "ends" and "heirloom-worker" in _process_name():
            os._exit(3)
        if constructor == "waits" and "heirloom-worker" in _process_name():
            time.sleep(3)
        hangs = constructor == "hangs" or (constructor == "later" and os.path.exists(f"{folder}/hang"))
        if hangs and "heirloom-worker" in _process_name():
            time.sleep(500)
        if constructor == "stops" and "heirloom-worker" in _process_name() and not os.path.exists(f"{folder}/stopped"):
            os.mkdir(f"{folder}/stopped")
            os.kill(os.getppid(), signal.SIGSTOP)
        TroubleProblem.n_built += 1
        self.folder = folder
        self.close_s = 500 if constructor == "closes" else 0

    def close(self) -> None:
        time.sleep(self.close_s)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Does it, and tells the process and how often the problem was built there."""
        if self.folder:
            with open(f"{self.folder}/{run.number}-{os.getpid()}", "w"):
                pass
        seconds = run.point["seconds"]
        match run.point["do"]:
            case "print":
                print("by print")
                print("by print to stderr", file=sys.stderr)
                os.write(1, b"by write\n")
                ctypes.CDLL(None).puts(b"by puts")
                os.system("echo by a child process")
            case "flood":
                until_s = time.monotonic() + 60
                for number in range(seconds * 10):
                    print(f"line {number}", "." * 2_000_000, flush=True)
                    time.sleep(0.1)
                    while os.fstat(1).st_size > 40_000_000 and time.monotonic() < until_s:  # the driver may be slow
                        time.sleep(0.05)
                while not 0 < os.fstat(1).st_size <= 16_000_000:  # what is written while the log is cut may be lost
                    time.sleep(0.05)
                print("the end", flush=True)
            case "raise":
                raise ValueError("as the point says")
            case "exit":
                sys.exit(7)
            case "segfault":
                print("before the crash")
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(seconds)
            case "sleep once":
                if sum(name.startswith(f"{run.number}-") for name in os.listdir(self.folder)) == 1:
                    time.sleep(seconds)
            case "save":
                (run.save_dir / "weights").write_bytes(b"large")
                print(run.save_dir, flush=True)
                time.sleep(seconds)
            case "spin":  # in C, and holding the interpreter's lock: no Python thread or handler runs
                run.report(1, score=0.25)
                print("before the hang")
                ctypes.PyDLL(None).sleep(seconds)
            case "report":
                for step in range(seconds * 20):
                    run.report(step, score=0.5)
                    time.sleep(0.05)
            case "hang":
                run.report(1, score=0.5)
                time.sleep(seconds)
            case "loader":
                import torch
                from torch.utils.data import DataLoader, TensorDataset

                loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=1)
                return {"score": sum(float(batch.sum()) for (batch,) in loader)}
            case "leave":
                sys.setrecursionlimit(60)
                os.environ.clear()
                return {"score": 1.0, "pid": os.getpid(), "child": subprocess.Popen(["/bin/sleep", "600"]).pid}
            case "thread":
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            case "traceable":
                ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # PR_SET_PTRACER: by anybody
                time.sleep(seconds)
            case "fork":
                import torch

                data = torch.ones(400, 400)
                data @ data  # with as many threads as the trial has
                if (child := os.fork()) == 0:
                    signal.alarm(20)
                    data @ data
                    os._exit(torch.get_num_threads())
                _, status = os.waitpid(child, 0)
                return {"score": os.waitstatus_to_exitcode(status)}
            case "terminate":
                awake, wake = os.pipe()
                if (child := os.fork()) == 0:
                    os.write(wake, b"1")  # it handles signals as it will
                    time.sleep(20)
                    os._exit(1)
                program = subprocess.Popen(["sleep", "20"])
                os.read(awake, 1)
                program.terminate()
                os.kill(child, signal.SIGINT)
                _, status = os.waitpid(child, 0)
                return {"score": program.wait(), "fork": os.waitstatus_to_exitcode(status)}
        return {"score": 1.0, "pid": os.getpid(), "n_built": TroubleProblem.n_built}

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Does it as well, but ends its process once if a file ``die`` is there."""
        if os.path.exists(f"{self.folder}/die"):
            os.unlink(f"{self.folder}/die")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.train(run)


def size_of(point: Mapping[str, Any]) -> int:
    """``a`` times ``b``, each 1 where a space has it not."""
    return int(point.get("a", 1) * point.get("b", 1))


class EarlyExportTroubleProblem(TroubleProblem):
    """Saves weights, and does what its point says when it is exported, even before it is trained."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        import torch

        run.save(torch.nn.Linear(1, 1))
        return {"score": 1.0, "pid": os.getpid()}

    def export(self, run: TrialRun) -> Any:
        """Does it. What it returns can't be exported."""
        return super().train(run)


class ExportTroubleProblem(EarlyExportTroubleProblem):
    """The same, with trained weights only."""

    def export(self, run: TrialRun) -> Any:
        """Does it once it has the weights."""
        run.restore_tensors()
        return super().export(run)


class KnownTroubleProblem(TroubleProblem):
    """The same, and what a point costs is known before it is trained; its size is an objective."""

    metrics = (Metric("score"), Metric("size", "minimize"))

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """A size and a depth."""
        return {"size": 3.0, "depth": 2.0}


class ResumingTroubleProblem(TroubleProblem):
    """Saves a resume point after a second. Each attempt then reports, and sleeps as long as its point says."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        import torch

        net = torch.nn.Linear(1, 1)
        if (resumed := run.resumed_from()) is not None:
            resumed.load(net)
        else:
            run.inherit(net)
            time.sleep(1)
            run.report(1, score=0.5)
            run.save_resume_point(1, net, force=True)
        run.report(2, score=0.75)
        time.sleep(run.point["seconds"])
        return {"score": 1.0}


class ParentTroubleProblem(TroubleProblem):
    """Waits for a program, whose pid it writes, and fails as it ends."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        program = subprocess.Popen(["sleep", "300"])
        Path(self.folder, "program").write_text(str(program.pid))
        run.report(1, score=0.5)
        raise RuntimeError(f"the program ended with {program.wait()}")


class SizeProblem(Problem):
    """Knows the size of a point before it is trained: the better the score, the larger.

    Args:
        space: Instead of its own.
        error: What ``static_metrics`` raises.
    """

    metrics = (Metric("score"), Metric("size", "minimize"))
    own_space: ClassVar[ParameterSpace] = ParameterSpace(
        {"a": Int(1, 12), "b": Choice(1, 2, 4, 8), "c": Int(1, 12, when={"b": [4, 8]}), "d": Float(0, 1)}
    )

    def __init__(self, *, space: Space | None = None, error: str = "") -> None:
        self.space = space or self.own_space
        self.error = error

    def static_metrics(self, point: Mapping[str, Any]) -> Mapping[str, float]:
        """Its size."""
        if self.error:
            raise ValueError(self.error)
        return {"size": size_of(point)}

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """The size again, as a score: a search runs against the constraint."""
        return {"score": size_of(run.point)}


def _process_name() -> str:
    import multiprocessing

    return multiprocessing.current_process().name


class LingeringProblem(TroubleProblem):
    """Sleeps after each trial's result, or after the last one, as code whose data loader does not end."""

    def train_many(self, job: Job) -> None:
        Path(self.folder, f"job-{os.getpid()}").touch()
        seconds = 0
        for run in job.trials():
            seconds = run.point["seconds"]
            Path(self.folder, f"{run.number}-{os.getpid()}").touch()
            run.finish(score=1.0)
            if run.point["do"] == "sleep":
                time.sleep(seconds)
        time.sleep(seconds)


class TwiceProblem(ScoreProblem):
    """Gives each trial a second result, which is none."""

    def train_many(self, job: Job) -> None:
        for run in job.trials():
            run.finish(score=1.0)
            run.finish(score=2.0)


class LateProblem(ScoreProblem):
    """Gives the first trial a second result while the second trial runs."""

    def train_many(self, job: Job) -> None:
        trials = job.trials()
        first = next(trials)
        first.finish(score=1.0)
        second = next(trials)
        first.finish(score=2.0)
        second.finish(score=3.0)
