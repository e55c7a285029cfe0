"""The bounds of reward functions: what hangs scores 0, a verdict is given again, no worker outlives its need."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.config import RewardConfig, load_config
from grpo_core.errors import RewardError
from grpo_core.evaluation.runner import open_rewards
from grpo_core.rewards import bounded as bounded_module
from grpo_core.rewards import call_guard
from grpo_core.rewards.base import Reward, load_rewards, score
from grpo_core.rewards.bounded import RowError, Verdicts, Workers, read_verdicts
from grpo_core.run.child import last_words
from grpo_core.types import Prompt

ROOT = Path(__file__).parents[2]
POWERS = "9**9**9**9"
BOMB = "a" * 40 + "b"
BACKTRACKS = r"(a+)+"
"""Takes a time that doubles with each `a` before something else."""


def prompt(**columns: Any) -> Prompt:
    return Prompt(id=0, content="q", text="q", token_ids=(1,), columns=columns)


def bounded(fn: str, cpu_seconds: float = 0.1, **args: Any) -> Reward:
    (reward,) = load_rewards([RewardConfig(fn=fn, cpu_seconds=cpu_seconds, args=args)])
    return reward


def judged(
    reward: Reward, texts: Sequence[str], verdicts: Verdicts | None = None, gold: str = "2"
) -> tuple[list[float | None], list[int]]:
    """Return (scores, which completions exceeded the bound)."""
    scored = score([reward], [prompt(answer=gold)] * len(texts), texts, verdicts)
    return list(scored.breakdown[reward.name]), list(scored.judged[0].timeouts)


def test_an_answer_that_hangs_scores_0_and_leaves_the_others_alone() -> None:
    assert judged(bounded("math_answer"), ["2", POWERS, "3", r"$\frac{4}{2}$"]) == ([1, 0, 0, 1], [1])
    assert judged(bounded("math_answer"), ["2", "3"], gold="9^{9^{9^{9}}}")[0] == [0, 0]


def test_equal_completions_have_one_verdict() -> None:
    assert judged(bounded("format", pattern=BACKTRACKS), [BOMB, "aa", BOMB]) == ([0, 1, 0], [0, 2])


@pytest.mark.parametrize(
    "text",
    [
        "{" * 3000 + "1" + "}" * 3000,
        "$" + r"\frac{1}{1+" * 300 + "1" + "}" * 300 + "$",
        "9" * 1_000_000,
        "$1\x00+1$",
        "$1\ud800$",
        "１２³½∑∞" * 500,
        r"$\binom{1000000000}{500000000}$",
        "1e999999999",
        "import os; os.kill(os.getppid(), 9)",
    ],
    ids=["braces", "fractions", "megabyte", "nul", "surrogate", "unicode", "binomial", "exponent", "signal"],
)
def test_hostile_answers_are_wrong_answers(text: str) -> None:
    assert judged(bounded("math_answer"), [text, "2"])[0] == [0, 1]


def test_a_hostile_answer_to_a_task_is_a_wrong_answer() -> None:
    row = {
        "source_dataset": "fraction_simplification",
        "simplified_numerator": 1,
        "simplified_denominator": 2,
        "style": "plain",
    }
    texts = ["1/2", f"1e{'9' * 9}/2", "9" * 1_000_000, "1/" * 100_000]
    total = score([bounded("reasoning_gym", 0.3)], [prompt(answer="1/2", metadata=row)] * 4, texts).total
    assert (total[0], max(total[1:]) < 1) == (1, True)


# What was given is given again


def test_a_verdict_is_given_again_to_the_same_batch_alone() -> None:
    reward, texts = bounded("math_answer"), ["2", "3", "2 "]
    (first,) = score([reward], [prompt(answer="2")] * 3, texts).judged
    # Another machine was slower: there, the first and the last exceeded the bound. The first verdict counts.
    slower, later = ({**asdict(first), "timeouts": late} for late in ([0, 2], []))
    verdicts = read_verdicts([{"metrics": {}}, {"judged": [slower]}, {"judged": [later]}])
    assert judged(reward, texts, verdicts) == ([0, 0, 0], [0, 2])
    assert judged(reward, texts[::-1], verdicts) == ([1, 0, 1], [])
    assert judged(bounded("math_answer", 0.2), texts, verdicts) == ([1, 0, 1], [])


def test_what_had_its_score_in_time_gets_it_again_where_it_takes_longer() -> None:
    slow = "a" * 22 + "b"  # about as long as the bound
    reward, verdicts = bounded("format", cpu_seconds=0.04, pattern=f"({BACKTRACKS})b|a"), Verdicts()
    judged(reward, [slow, "a"], verdicts)
    assert judged(reward, [slow, "a"], dict.fromkeys(verdicts, ())) == ([1, 1], [])


# A user's function


def own(function: Callable[..., Any], cpu_seconds: float) -> Reward:
    """A function of this file as a training calls it."""
    rewards = [{"fn": f"{__name__}:{function.__name__}", "cpu_seconds": cpu_seconds}]
    ((reward,), _) = open_rewards(load_config(None, {"rewards": rewards}), None)
    return reward


def spins(**_: Any) -> list[float]:
    while True:
        pass


def backtracks(**_: Any) -> list[float]:
    import re

    re.fullmatch(BACKTRACKS, BOMB)  # holds Python's lock
    return []


def ignores_errors(**_: Any) -> list[float]:
    while True:
        with contextlib.suppress(Exception):
            spins()


@pytest.mark.parametrize("function", [spins, backtracks, ignores_errors])
def test_a_users_function_that_hangs_stops_by_name(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_guard, "WALL_FACTOR", 1000)  # the machine may be busy
    with pytest.raises(RewardError) as caught:
        score([own(function, 0.05)], [prompt()] * 3, ["a", "b", "c"])
    named = f"reward {__name__}:{function.__name__}, called with 3 completions"
    assert str(caught.value).startswith(f"{named}: more than 0.05 s of CPU time (rewards[].cpu_seconds 0.05)")


def burns(seconds: list[float], **_: Any) -> list[float]:
    end = time.thread_time() + seconds[0]
    while time.thread_time() < end:
        pass
    return [1.0]


def test_a_call_that_returns_as_its_bound_is_reached_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[bool] = []
    monkeypatch.setattr(call_guard.faulthandler, "cancel_dump_traceback_later", lambda: cancelled.append(True))
    monkeypatch.setattr(call_guard, "_end_process_after", lambda _: cancelled.clear())
    reward = own(burns, 0.02)
    for number in range(60):
        with contextlib.suppress(RewardError):
            score([reward], [prompt(seconds=0.018 + number / 15_000)], ["a"])
        assert cancelled
        assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


THREADS: list[int] = []


def dozes(**_: Any) -> list[float]:
    THREADS.append(threading.get_ident())
    time.sleep(0.3)
    return [1.0]


def test_a_call_that_takes_long_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(call_guard, "WAIT_SECONDS", 0.1)
    assert score([own(dozes, 0.5)], [prompt()], ["a"]).total == (1,)
    said = capsys.readouterr().err
    assert said.startswith(f"{call_guard.WAITING}reward {__name__}:dozes, called with 1 completions: no result after")
    assert said.endswith("ended after 5 s, or 0.5 s of CPU time\n")


def test_what_other_threads_compute_does_not_count() -> None:
    ended = threading.Event()

    def burn() -> None:
        while not ended.is_set():
            pass

    burner = threading.Thread(target=burn)
    burner.start()
    THREADS.clear()
    try:
        assert score([own(dozes, 0.1)], [prompt()], ["a"]).total == (1,)
    finally:
        ended.set()
        burner.join()
    assert [threading.get_ident()] == THREADS


GUARDED = """
import sys, time
from itertools import repeat
from grpo_core.config import load_config
from grpo_core.evaluation.runner import open_rewards
from grpo_core.rewards import call_guard
from grpo_core.rewards.base import score
from grpo_core.types import Prompt

def holds_lock(**_): return [float(sum(repeat(1)))]  # no signal is looked at in there
def sleeps(**_): time.sleep(3600)
def catches(**_):
    while True:
        try: time.thread_time()
        except BaseException: pass
call_guard.GRACE_SECONDS = 1.0
(rewards, _) = open_rewards(load_config(None, {"rewards": [{"fn": "__main__:" + sys.argv[1], "cpu_seconds": 0.2}]}), None)
score(rewards, [Prompt(id=0, content="q", text="q", token_ids=(1,), columns={})], ["a"])
"""


@pytest.mark.proof
@pytest.mark.parametrize("function", ["holds_lock", "sleeps", "catches"])
def test_what_nothing_can_interrupt_is_ended_by_name(function: str, tmp_path: Path) -> None:
    script = run_script(GUARDED, function)
    _, errors = script.communicate(timeout=60)
    log = tmp_path / "train.log"
    log.write_text(f"what came before\n{errors}")
    message = last_words("grpo_core.training", script.returncode, log)
    assert message.startswith(f"reward __main__:{function}, called with 1 completions: it did not return")
    assert f"in {function}" in errors  # and where in it


# Processes


def run_script(text: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_that_sleeps_allocates_dies_or_prints_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_module, "MODULE", "tests.hostile_worker")
    with contextlib.closing(Workers()) as pool:
        kinds = ["allocates", "nests", "dies", "spins", "holds", "prints"]
        assert pool.judge({number: (kind,) for number, kind in enumerate(kinds)}, 0.3) == {5: 0.5}
        with pytest.raises(RowError, match="ZeroDivisionError") as caught:
            pool.judge({0: ("prints",), 1: ("raises",)}, 0.3)
        assert caught.value.row == 1
        monkeypatch.setattr(bounded_module, "LEAST_WALL_SECONDS", 1.0)
        with pytest.raises(RowError, match="no verdict within 1 s of the clock"):
            pool.judge({0: ("sleeps",)}, 0.01)
        assert pool.judge({0: ("prints",)}, 0.3) == {0: 0.5}  # by new processes


HANGS = f"""
from grpo_core.rewards.bounded import WORKERS
WORKERS.start(["format"])
print("started", flush=True)
WORKERS.judge({{number: ("format", {BACKTRACKS!r}, {BOMB!r} + str(number)) for number in range(1000)}}, 1)
"""


@pytest.mark.proof
def test_no_worker_outlives_who_needs_it() -> None:
    script = run_script(HANGS)
    assert script.stdout is not None
    assert script.stdout.readline()
    workers = psutil.Process(script.pid).children()
    assert workers
    time.sleep(2.0)  # they judge
    script.kill()
    script.communicate(timeout=30)
    assert psutil.wait_procs(workers, timeout=30)[1] == []


@pytest.mark.slow
def test_a_thousand_hostile_answers_are_judged_within_a_minute() -> None:
    texts = [f"${number}^{{9^{{9^{{9}}}}}}$" if number % 2 else f"{number}" for number in range(1024)]
    began = time.monotonic()
    scores, timeouts = judged(bounded("math_answer", 1.0), texts)
    assert time.monotonic() - began < 60
    assert scores[2] == 1
    assert sum(value or 0 for value in scores) == 1
    assert set(timeouts) <= set(range(1, 1024, 2))


@pytest.mark.proof
def test_a_loaded_machine_gives_the_same_rewards() -> None:
    reward = bounded("math_answer", 0.2)
    texts = [f"It is {number}" if number % 4 else f"$9^{{9^{{9^{{{number + 9}}}}}}}$" for number in range(32)]
    idle = judged(reward, texts)
    burners = [run_script("while True: pass") for _ in range(20)]
    try:
        assert judged(reward, texts) == idle
    finally:
        for burner in burners:
            burner.kill()
            burner.communicate()
    assert idle[1] == list(range(0, 32, 4))
    assert idle[0][2] == 1
