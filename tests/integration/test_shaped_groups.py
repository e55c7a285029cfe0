"""Groups that teach nothing are those whose advantages are all 0: judged on the rewards after their shaping."""

import math
from dataclasses import replace
from typing import Any

import pytest

from grpo_core.run.journal import Journal
from grpo_core.training.session import FRESH
from grpo_core.training.step import run_step
from tests.golden.trajectory import END, open_scripted
from tests.support.scripted import ScriptedSampler

HERE = "tests.integration.test_shaped_groups"
PENALTY = {"filtering.overlong_buffer_tokens": 4, "rollout.max_completion_tokens": 8}


def script(step: int, prompt_id: int, index: int) -> list[int]:
    """Return 2 tokens, 7 for the second completion of a group: of 8, with a buffer of 4, that costs 3/4."""
    return [*[20] * (6 if index % 2 else 1), END]


def same(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward all alike."""
    return [0.5] * len(completions)


def longer_is_better(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward the second completion of a group by 3/4 more: what the penalty takes away."""
    return [0.25 + 0.75 * (place % 2) for place in range(len(completions))]


def above_the_clip(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward all differently, and all beyond 1/2."""
    return [1.0 + place for place in range(len(completions))]


@pytest.mark.parametrize(
    ("function", "overrides", "teaching"),
    [
        ("same", {}, 0),
        ("same", PENALTY, 3),  # 1/2 and 1/2 - 3/4
        ("longer_is_better", {}, 3),
        ("longer_is_better", PENALTY, 0),  # 1/4 and 1 - 3/4
        ("above_the_clip", {"advantage.reward_clip": 0.5}, 0),  # 1/2 and 1/2
        ("above_the_clip", {"advantage.reward_clip": 1.5}, 1),  # 1 and 3/2; then 3/2 and 3/2, twice
    ],
)
def test_groups_are_judged_on_the_rewards_that_the_advantages_see(tiny_run, function, overrides, teaching):
    size = {"rollout.num_prompts_per_step": 3, "rollout.group_size": 2, "rollout.max_completion_tokens": 8}
    filtering = {"filtering.drop_zero_variance_groups": True}
    run_dir = tiny_run({**size, **filtering, "rewards": [{"fn": f"{HERE}:{function}"}], "evaluation.samples": 0, **overrides})
    journal = Journal(run_dir.journal_file)
    session = replace(open_scripted(run_dir, journal), sampler=ScriptedSampler(script, [END]))
    result = run_step(session, FRESH)
    journal.close()
    assert result.metrics["group/zero_std_frac"] == pytest.approx((3 - teaching) / 3)
    assert result.metrics["group/effective_count"] == teaching
    assert result.metrics["filter/kept_frac"] == pytest.approx(teaching / 3)
    # Two unequal rewards d apart: half of d, over d / sqrt(2) and the little that is added to it.
    assert result.metrics["advantage/max"] == pytest.approx(math.sqrt(0.5) if teaching else 0, rel=1e-3)
