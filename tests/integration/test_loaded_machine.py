"""Rewards that need real work do not depend on what else the machine does: the same training idle and at a load of 20."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_core.rewards.bounded import FIRST_SECONDS
from grpo_core.rewards.workers import Reply, Workers
from grpo_core.run.journal import Record
from tests.integration.test_bounded_rewards import cpu_ticks
from tests.integration.test_training import train

pytestmark = pytest.mark.slow  # it loads the machine, and with it every test beside it

BUSY = 20
HANGS = "10^{10^8}"
"""Its comparison with a number would take minutes."""
GOLDS = (
    *(r"\int_0^2 2 x dx", r"\int_0^1 8 x^3 dx", r"\sqrt{3+2\sqrt{2}}-\sqrt{2}", r"\int_0^1 15 x^2 dx", r"\sum_{k=1}^{3} k"),
    *("7", r"\sin(\pi/7)\cos(\pi/5)", r"\sum_{k=1}^{60} \frac{1}{k}", HANGS),
)
"""Digits that only sympy finds, one that needs no work, two that are no digit, and one that never ends."""


@contextmanager
def load() -> Iterator[list[int]]:
    """Yield the ids of processes that do nothing but compute."""
    busy = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield [process.pid for process in busy]
        assert all(process.poll() is None for process in busy)
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[Reply]:
    """The replies on rows that had not been judged within the short bound, which the workers give as ever."""
    found: list[Reply] = []
    judge = Workers.judge

    def listed(self: Workers, rows: Sequence[Any], cpu_seconds: float, full_cpu_seconds: float) -> list[Reply]:
        replies = judge(self, rows, cpu_seconds, full_cpu_seconds)
        found.extend(replies if cpu_seconds > FIRST_SECONDS else ())
        return replies

    monkeypatch.setattr(Workers, "judge", listed)
    return found


def rewards(records: list[Record]) -> list[tuple[str, int, dict[str, float], Any]]:
    """Of each record that holds any: what was rewarded, and which completions exceeded the bound."""
    areas = ("reward/", "group/", "advantage/", "eval/")
    return [
        (record.kind, record.step, {k: v for k, v in record.metrics.items() if k.startswith(areas)}, record.data.get("judged"))
        for record in records
        if record.kind in ("step", "eval")
    ]


def test_a_run_gives_the_same_rewards_idle_and_at_a_load_of_20(tiny_run: Any, tmp_path: Path, worked: list[Reply]) -> None:
    rows = [{"question": f"{number} + 1 =", "answer": GOLDS[number % len(GOLDS)]} for number in range(2 * len(GOLDS))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = {
        "data": {"source": f"file:{tmp_path / 'rows.jsonl'}", "eval_fraction": 0.2},
        "rewards": [{"fn": "math_answer", "cpu_seconds": 0.5}, {"fn": "length", "args": {"max_characters": 4}}],
        "rollout": {"num_prompts_per_step": 3, "group_size": 12, "max_completion_tokens": 12, "max_prompt_tokens": 128},
        "evaluation": {"num_prompts": 3, "samples": 0, "every_steps": 4},
    }
    idle = rewards(train(tiny_run(overrides, name="idle")))
    kinds = [reply.kind for reply in worked]
    assert kinds.count("value") >= 5  # sympy had to work
    with load() as busy:
        loaded = rewards(train(tiny_run(overrides, name="loaded")))
        assert all(cpu_ticks(pid) > 0 for pid in busy)
    assert loaded == idle
    means = [figures["reward/math_answer/mean"] for kind, _, figures, _ in idle if kind == "step"]
    assert max(means) > 0
    assert any("gold" in judged["timeouts"].values() for _, _, _, found in idle for judged in found)
