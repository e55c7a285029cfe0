"""The registry of metrics: its keys, its table, and what every step must hold."""

import re
from pathlib import Path

import pytest

from grpo_core.metrics import REGISTRY, find_metric
from tests.step_keys import required_step_keys

ROOT = Path(__file__).parents[2]
REQUIRED = (ROOT / "tests" / "required_keys.txt").read_text().split()

DUE = set(
    """
kl/ref/drift kl/ref/drift_se kl/ref/seq kl/ref/k1 kl/ref/k1_se kl/ref/k2 kl/ref/k3 kl/ref/max kl/ref/p95
kl/init/drift kl/init/drift_se kl/init/seq kl/init/k1 kl/init/k1_se kl/init/k3 kl/sampler/k3 ref/lag
loss/total loss/policy loss/kl reward/mean reward/std reward/reasoning_gym/mean reward/reasoning_gym/std
group/reward_std/mean group/reward_std/min group/reward_std/max group/zero_std_frac group/all_correct_frac
group/all_wrong_frac group/best_mean group/effective_count advantage/mean advantage/std advantage/max
policy/entropy policy/ratio_mean policy/ratio_max policy/clip_frac/low policy/clip_frac/high
completion/tokens/mean completion/tokens/max completion/truncated_frac completion/eos_frac
ref/synced ref/sync_count ref/steps_since_sync ref/param_distance optim/lr optim/grad_norm
time/rollout_seconds time/reward_seconds time/logps_seconds time/update_seconds time/sync_seconds time/step_seconds
perf/completion_tokens_per_second perf/train_tokens_per_second perf/peak_memory_gib
progress/step progress/optimizer_step progress/prompts progress/tokens progress/generated_tokens
""".split()  # noqa: SIM905
)
"""The keys of a step as the design lists them, for the quickstart's reward function."""


@pytest.mark.parametrize("metric", REGISTRY, ids=lambda metric: metric.key)
def test_keys_hold_only_the_allowed_characters(metric) -> None:
    assert re.fullmatch(r"[a-z0-9_/.-]+", re.sub(r"<[a-z]+>", "x", metric.key))


def test_every_metric_has_a_healthy_range_or_a_reason_for_having_none() -> None:
    assert [metric.key for metric in REGISTRY if not metric.healthy.strip("-")] == []
    without = {metric.healthy for metric in REGISTRY if metric.healthy.startswith("none")}
    assert without
    assert [reason for reason in without if len(reason.removeprefix("none: ").split()) < 3] == []


def test_the_required_keys_of_the_quickstart_are_the_registrys() -> None:
    assert sorted(required_step_keys(["reasoning_gym"])) == REQUIRED


def test_every_key_of_the_design_is_required() -> None:
    assert DUE - set(REQUIRED) == set()


@pytest.mark.parametrize("key", ["kl/ref", "kl/ref/drift/x", "reward/a/b/mean", "reward//mean", "Reward/mean", "kl.ref.k3", ""])
def test_near_misses_are_not_registered(key: str) -> None:
    assert find_metric(key) is None


def test_times_memory_and_what_a_server_answers_may_differ_between_repeats_and_nothing_else() -> None:
    assert {metric.key.partition("/")[0] for metric in REGISTRY if not metric.deterministic} == {
        "time",
        "perf",
        "memory",
        "sampler",
    }
