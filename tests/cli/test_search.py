"""The command's output: results on standard output, progress on standard error, nothing else."""

from __future__ import annotations

import json
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nas.core.cpus import usable_cores
from nas.core.policy import Policy
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.commands import (
    TIMED,
    Command,
    environment,
    on_terminal,
    only_search,
    resume_line,
    run,
    trials,
    until,
)

DEBUG = (*TIMED, "runner=debug", "budget.trials=2", "finalists=1")
SUMMARY = r"""search (?P<name>timed-random-[0-9a-f]{8}): 3 trials \(3 COMPLETE\)
best: trial 2 \(final\), validation score \d+\.\d{4}
better in hand: trial [01] \(search\), full validation score \d+\.\d{4}: export=best takes it; more_epochs=N .*
test: score \d+\.\d{4}
ancestors: 2 <- [01]
point: width=\d, step=0\.\d+
records and weights: (?P<root>\S+/heirloom/timed-random-[0-9a-f]{8})
export: (?P=root)/best/000002-[0-9a-f]{8}
  without program.pt2: the problem defines no `export\(run\)`, which returns the network and an example batch
next:
  python -m flows.report name=(?P=name) format=html
  python -m flows.report name=(?P=name) trial=2
  python -m flows.final name=(?P=name)(?P<target>.*) finalists=1 export=best
  python -m flows.final name=(?P=name)(?P=target) finalists=2
"""
PROGRESS = r"""policies skipped, not declared by the problem: DOWNSCALE, QUICK_EVAL
search (?P<name>timed-random-[0-9a-f]{8}) starts, in \S+/heirloom/(?P=name)
\[1/3 done\] trial 0 \(search\) COMPLETE score \d+\.\d{4}; .*best score \d+\.\d{4} \(trial 0\); about .* to the finals
(\[2/3 done\] trial 1 \(search\) COMPLETE score .*
)?\[3/3 done\] trial 2 \(final\) COMPLETE score \d+\.\d{4}; best final score \d+\.\d{4} \(trial 2\)
"""
"""The line on trial 1 comes if it ends 10 s after trial 0 or later."""
TIME = r"(\d+ min )?\S+ s"
OF_SERVER = (
    r"starting Prefect's temporary server\n|waiting at most 10 s until Prefect's server has stored .*\n|"
    r"Prefect's server did not accept everything .*\n"
)
"""The second comes if the server takes longer than a second, the third if it takes longer than ten."""


def test_results_go_to_standard_output_and_progress_to_standard_error(here: Path) -> None:
    """Standard output has the summary only, and standard error the progress only."""
    done = run(here, *DEBUG, forked=False)

    assert done.status == 0
    assert re.fullmatch(SUMMARY, done.out), done.out
    assert re.fullmatch(PROGRESS, done.err), done.err
    assert [path.name for path in here.iterdir()] == ["heirloom"]


@pytest.mark.slow
def test_prefect_adds_no_noise(here: Path) -> None:
    """Workers and Prefect's temporary server add their own lines on standard error, and none of Prefect's."""
    done = run(here, *TIMED, "budget.trials=2", "finalists=1", "slots=1", forked=False)

    assert done.status == 0
    assert re.fullmatch(SUMMARY, done.out), done.out
    assert re.fullmatch(PROGRESS, re.sub(OF_SERVER, "", done.err)), done.err


def next_commands(out: str) -> list[str]:
    """Returns the commands at the end of a summary."""
    return [line.strip() for line in out.partition("next:\n")[2].splitlines()]


@pytest.mark.slow
def test_the_next_commands_work_word_for_word(here: Path, api_url: str) -> None:
    """The commands at the end of the summary work unchanged; those for the default root are the same without it."""
    root = "a folder, 'quoted'"
    done = run(here, *DEBUG, f'storage.root="{root}"')
    by_default = run(here, *DEBUG)
    html, trial, better, final = next_commands(done.out)
    shown, one = run(here, line=html), run(here, line=trial)
    exported, finals = (run(here, line=line, PREFECT_API_URL=api_url) for line in (better, final))

    for ours, default in zip((html, trial, better, final), next_commands(by_default.out), strict=True):
        assert [word for word in shlex.split(ours) if not word.startswith("storage.root=")] == shlex.split(default)
    assert shown.status == 0, shown.err
    assert list(here.glob("*.html"))
    assert one.status == 0, one.err
    assert "trial 2" in one.out
    assert exported.status == 0, exported.err
    assert "(search) instead of trial 2 (final), full validation score" in exported.out
    assert finals.status == 0, finals.err
    assert sum(t.stage == "final" for t in trials(only_search(here, root))) == 2  # of two trials searched


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_shows_live_progress(here: Path, columns: int) -> None:
    """Two live lines show trials done, time left, running, failed, best and inherited, within 80 columns."""
    status, raw = on_terminal(
        here,
        *("+tuner=evolution", "tuner.population_size=2", "tuner.sample_size=1", *TIMED[1:], "problem.seconds=0.7"),
        *("budget.trials=5", "finalists=1", "slots=2", "runner=threads"),
        columns=columns,
    )
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", raw).replace("\r", "\n")
    lines = {line.rstrip() for line in plain.splitlines()}

    for shown in (
        rf" [1-4]/6 trials, {TIME}, about {TIME} to the finals",
        r"  running [12].*",
        r"  (running [12], )?best score \d+\.\d{4} \(trial \d\).*",
        r".*, mean inherited \d+%",
        rf" 6/6 trials, {TIME}",
        r"  best final score \d+\.\d{4} \(trial 5\)",  # finals train from scratch
    ):
        assert any(re.fullmatch(shown, line) and len(line) <= 80 for line in lines), (shown, lines)
    assert any("starting Prefect's temporary server" in line for line in lines)
    assert "best: trial 5 (final)" in plain
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h")  # the cursor is shown again
    assert not re.search("Traceback|WARNING|ERROR|prefect", plain.replace("flows.", ""))


@pytest.mark.slow
def test_failures_are_printed_at_once(here: Path) -> None:
    """Each failed trial is a line with its error; too many in a row end the search with status 1."""
    done = run(here, *DEBUG, "problem.fail=raise", "max_failures=2")
    *_, first, second, last = done.err.splitlines()

    assert done.status == 1
    assert first.startswith(
        "[1/3 done] trial 0 (search) FAILED exception: TimedProblem.train raised RuntimeError: as told; "
    )
    assert second.startswith(
        "[2/3 done] trial 1 (search) FAILED exception: TimedProblem.train raised RuntimeError: as told; "
    )
    assert last.startswith("heirloom: 2 trials failed in a row (max_failures=2). The last, trial 1: exception: ")
    assert done.out == ""


@pytest.mark.slow
def test_an_exhausted_search_is_finished_at_once(here: Path) -> None:
    """After STOP the search says so, and the next command ends at once, without session and server."""
    ours = "tests.support.problems"
    overrides = (f"tuner._target_={ours}.InOrderTuner", "tuner.xs=[1,2]", f"problem._target_={ours}.PlainProblem")
    first = run(here, *overrides, "runner=debug", "budget.trials=9")
    again = run(here, *overrides, "runner=threads", "budget.hours=9", PREFECT_API_URL="http://127.0.0.1:9/api")
    finished, *summary = again.out.splitlines()

    assert first.status == again.status == 0, again.err
    assert re.fullmatch(
        r"search \S+ is finished: its tuner has no more proposals. Choose another seed or name", finished
    )
    assert first.out.splitlines()[1] == "the tuner has no more proposals: 2 of 9 trials"
    assert summary[1] == "the tuner has no more proposals: 2 trials"
    assert summary[2].startswith("hours: ")
    assert summary[2].endswith(" of 9")
    assert summary[3:] == first.out.splitlines()[2:]
    assert again.err == ""
    assert sorted(path.name for path in (only_search(here) / "sessions").iterdir()) == ["0001.beat", "0001.json"]


@pytest.mark.slow
def test_policy_full_trains_every_trial_in_full(here: Path) -> None:
    """policy=full has one stage, whose best trial is the winner."""
    done = run(here, *DEBUG, "policy=full")
    found = trials(only_search(here))

    assert [trial.stage for trial in found] == ["search"] * 2
    assert {trial.policies for trial in found} == {frozenset({Policy.SHARE_PARAMS})}
    assert re.search(r"best: trial [01] \(search\)", done.out)
    assert "left out" not in done.err


@pytest.mark.slow
def test_policy_warm_final_continues_from_the_search(here: Path) -> None:
    """With policy=warm_final cheap trials are of full size, so a final inherits all weights of its trial."""
    small = {"n_blocks": 1, "width_1": 8, "kernel_1": 3, "norm": "batch", "dropout": 0.0}
    points = [{**small, "learning_rate": rate} for rate in (0.05, 0.1)]  # soon trained in full
    (here / "points.json").write_text(json.dumps(points))
    given = (
        "problem._target_=short_digits.ShortDigits",
        "init.points=points.json",
        "budget.trials=2",
        "finalists=1",
        "policy=warm_final",
        "slots=1",
        "threads=1",
    )
    done = run(here, "+tuner=random", "runner=debug", "device=cpu", *given)
    *cheap, final = trials(only_search(here))

    assert done.status == 0, done.err
    assert {trial.policies for trial in cheap} == {
        frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.QUICK_EVAL})
    }
    assert (final.stage, final.policies, final.donor) == ("final", {Policy.SHARE_PARAMS}, final.parents[0])
    assert final.inherited == 1.0


@pytest.mark.slow
def test_a_users_own_plan(here: Path) -> None:
    """A file in --config-dir is a plan: cheap trials of six layers, and a warm final of fifteen."""
    (here / "my_conf" / "policy").mkdir(parents=True)
    plan = "stages:\n- {name: sieve, policies: [DOWNSCALE, EARLY_STOP]}\n- {name: grown, warm: true, best: 1}\n"
    (here / "my_conf" / "policy" / "mine.yaml").write_text(plan)
    problem = "problem._target_=tests.support.problems.GrowingProblem"
    given = ("--config-dir", "my_conf", "policy=mine", "+tuner=random", problem, "runner=debug", "budget.trials=2")

    done = run(here, *given, "device=cpu")
    *cheap, grown = trials(only_search(here))

    assert done.status == 0, done.err
    assert [trial.policies for trial in cheap] == [{Policy.DOWNSCALE, Policy.EARLY_STOP}] * 2
    assert (grown.stage, grown.policies, grown.donor) == ("grown", {Policy.SHARE_PARAMS}, grown.parents[0])
    assert grown.inherited == pytest.approx(6 / 15)
    assert "best: trial 2 (grown)" in done.out


@pytest.mark.slow
def test_finals_take_the_threads_of_slots_without_a_final(here: Path, api_url: str) -> None:
    """Two finals on four slots have two threads each, as their records say; trials and tests have one."""
    if usable_cores() < 2:
        pytest.skip("one core")
    plan = ("problem._target_=tests.support.problems.ThreadsProblem", "policy=mine", "runner=processes", "device=cpu")
    (here / "my_conf" / "policy").mkdir(parents=True)
    (here / "my_conf" / "policy" / "mine.yaml").write_text("stages:\n- {name: search}\n- {name: final}\n")

    plan = (*plan, "slots=4", "threads=1", "budget.trials=5")
    done = run(here, "+tuner=random", "--config-dir", "my_conf", *plan, PREFECT_API_URL=api_url)
    found = trials(only_search(here))
    tests = Records(open_root(str(only_search(here)))).tests()

    assert done.status == 0, done.err
    assert [(t.stage, t.metrics["score"], t.cost.get("threads")) for t in found] == [
        *[("search", 1.0, None)] * 5,
        *[("final", 2.0, 2)] * 2,
    ]
    assert [tests[number]["metrics"]["score"] for number in (5, 6)] == [1.0, 1.0]


@pytest.mark.slow
def test_search_only(here: Path) -> None:
    """With policy=search_only the best cheap trial is the winner."""
    problem = ("problem._target_=tests.support.problems.BodyProblem", "runner=debug", "device=cpu", "threads=1")
    done = run(here, "+tuner=random", *problem, "budget.trials=2", "policy=search_only")
    found = trials(only_search(here))

    assert done.status == 0, done.err
    assert [trial.stage for trial in found] == ["search"] * 2
    assert found[0].policies == set(Policy) - {Policy.SKIP_TRAIN}


@pytest.mark.slow
def test_storage_options_reach_the_file_system(here: Path) -> None:
    """storage.options.KEY reaches the root's file system; it is neither printed nor needed twice."""
    refused = run(here, *DEBUG, "storage.root=quick://bucket")
    done = run(here, *DEBUG, "storage.root=quick://bucket", "storage.options.password=s3cret")

    assert refused.status in (1, 2)
    assert "password" in refused.complaint
    assert done.status == 0, done.err
    assert "next, with this command's storage.options:" in done.out
    assert "s3cret" not in done.out + done.err


@pytest.mark.parametrize("root", ["quick://me:s3cret@bucket", "quick://me:s3cret@bucket/deep"])
@pytest.mark.slow
def test_a_password_in_the_root_is_shown_nowhere(here: Path, root: str) -> None:
    """Lines with the root mask its password, and the printed commands say so."""
    done = run(here, *DEBUG, f"storage.root={root}")
    shown = root.replace("s3cret", "***")

    assert done.status == 0, done.err
    assert "s3cret" not in done.out + done.err
    assert f"records and weights: {shown}/timed-random-" in done.out
    assert "next, with the password of storage.root for ***:" in done.out
    html = done.out.partition("for ***:\n")[2].splitlines()[0]
    assert shlex.split(html)[4:] == [f"storage.root={shown}", "format=html"]


@pytest.mark.slow
def test_a_password_in_the_root_is_in_no_name(here: Path) -> None:
    """A multirun over roots names its searches without their passwords."""
    done = run(here, "-m", *DEBUG, "storage.root='quick://me:s3cret@a','quick://me:s3cret@b'")

    assert done.status == 0, done.err
    assert "s3cret" not in done.out + done.err
    assert (
        len(re.findall(r"^search timed-random-[0-9a-f]{8}-storage\.root-_quick_me_[ab]_: ", done.out, re.MULTILINE))
        == 2
    )


@pytest.mark.slow
def test_a_resume_line_marks_masked_secrets(here: Path) -> None:
    """The line that resumes a search masks secrets, and says so in a comment."""
    options = ("storage.root=quick://me:s3cret@bucket", "storage.options.password=s3cret")
    with Command(here, *DEBUG, "problem.seconds=20", *options) as driver:
        until(lambda: " starts, in quick://me:***@bucket/" in driver.err)
        driver.send(signal.SIGINT)
        done = driver.wait()

    assert done.status == 130
    assert "s3cret" not in done.out + done.err
    assert resume_line(done.err).endswith(
        "'storage.root=quick://me:***@bucket' 'storage.options.password=***'  # replace *** by the secret"
    )


@pytest.mark.slow
def test_memory_keeps_nothing_and_says_so(here: Path) -> None:
    """A search in memory prints its result, and no command that could not work."""
    done = run(here, *DEBUG, "storage=memory")

    assert done.status == 0
    assert done.out.splitlines()[-1] == "records and weights: in memory only, lost when this command ends"
    assert list(here.iterdir()) == []


def seconds_of_children() -> float:
    """Returns the seconds of computing of all ended children, which a loaded machine does not change much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_fast_and_complete(here: Path) -> None:
    """--help takes less than a second of computing more than ``import hydra``, and explains groups and keys."""
    began_s = seconds_of_children()
    subprocess.run([sys.executable, "-c", "import hydra"], env=environment(), check=True)
    bare_s = seconds_of_children() - began_s
    done = run(here, "--help", forked=False)
    help_s = seconds_of_children() - began_s - bare_s

    assert done.status == 0
    assert help_s < bare_s + 1
    assert done.err == ""
    first = "anneal|auto|autogrow|batch|cmaes|darts|darts_pt|drnas|enas|evolution|gdas|gp|grid|metis|network_morphism"
    assert f"+tuner={first}|nsga2|pbt|random|reinforce|rsps|screened|smac|spos|supernet|tpe" in done.out
    assert "deterministic: false # the same final table on every run, kills included" in done.out
    assert "storage.options.KEY=VALUE" in done.out
    assert list(here.iterdir()) == []


def test_the_name_can_be_chosen(here: Path) -> None:
    """name=... is the folder under the root."""
    done = run(here, *DEBUG, "name=mine")

    assert done.status == 0
    assert done.out.startswith("search mine: ")
    assert [path.name for path in (here / "heirloom").iterdir()] == ["mine"]


def test_options_may_stand_anywhere(here: Path) -> None:
    """Hydra's options and overrides mix in any order, also if a class path selects a group."""
    (here / "conf" / "problem").mkdir(parents=True)
    (here / "conf" / "problem" / "mine.yaml").write_text("_target_: timed_problem.TimedProblem\nweights: 10\n")
    by_name = run(here, "+tuner=random", "--config-dir", "conf", "problem=mine", "--cfg", "job", "seed=3")
    by_path = run(
        here, "problem._target_=timed_problem.TimedProblem", "--cfg", "job", "+tuner=random", "problem.weights=10"
    )

    assert by_name.status == by_path.status == 0
    assert "_target_: timed_problem.TimedProblem\n  weights: 10\n" in by_name.out
    assert "_target_: timed_problem.TimedProblem\n  weights: 10\n" in by_path.out


@pytest.mark.slow
def test_stopper_null_is_the_default(here: Path) -> None:
    """stopper=null gives the default configuration."""
    said, silent = (
        run(here, "+tuner=random", "stopper=null", "--cfg", "job"),
        run(here, "+tuner=random", "--cfg", "job"),
    )

    assert said.status == silent.status == 0
    assert said.out == silent.out
    assert "stopper" not in said.out


@pytest.mark.slow
@pytest.mark.parametrize("command", [["flows.search", *DEBUG], ["flows.search", "--help"], ["flows.report"]], ids=str)
def test_a_closed_output_is_no_traceback(here: Path, command: list[str]) -> None:
    """A reader that ends at once, as ``head`` may, ends each command without a traceback."""
    done = run(here, line=f"bash -c {shlex.quote(shlex.join(['python', '-m', *command]) + ' | true')}")

    assert "Traceback" not in done.err
    assert "BrokenPipe" not in done.err


@pytest.mark.parametrize("flags", [("--cfg=job",), ("--cfg=job", "--resolve"), ("--info=config",)], ids="-".join)
def test_printed_configuration_masks_secrets(here: Path, flags: tuple[str, ...]) -> None:
    """Hydra prints storage.options and URLs masked; a variable is shown by name, or masked."""
    options = ("storage.options.secret=hunter2", "storage.options.token=${oc.env:TEST_TOKEN}")
    overrides = ("storage.root=sftp://me:hunter2@host/x", *options, "name=mine")

    done = run(here, *flags, *overrides, module="flows.report", TEST_TOKEN="hunter3")

    assert done.status == 0
    assert "root: sftp://me:***@host/x" in done.out
    assert "name: mine" in done.out
    assert "hunter" not in done.out + done.err
    assert ("${oc.env:TEST_TOKEN}" in done.out) == ("--resolve" not in flags)
