"""Settings by name, and the verdict on what a sweep's file claims."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from grpo_core.errors import ConfigError
from grpo_core.sweep.arms import grid
from grpo_core.sweep.plan import make_plan
from grpo_core.sweep.statistics.verdict import verdict

SETTINGS = {
    "GRPO": {"advantage.scale": "group_std", "loss.beta": 0.1},
    "Dr. GRPO": {"advantage.scale": "none", "loss.aggregation": "seq-mean-token-sum-norm", "loss.beta": 0.0},
}
CLAIM = {"says": "it is better", "source": "a paper", "effect": 0.02, "margin": 0.01, "limits": "everything"}


def sweep(**changes: Any) -> dict[str, Any]:
    return {"base": "sums_tiny_cpu", "settings": SETTINGS, "seeds": [0, 1], **changes}


def test_each_named_setting_changes_its_own_keys() -> None:
    plan = make_plan(sweep(axes={"optimizer.lr": [1e-4, 3e-4]}))
    assert list(grid(plan.sweep))[:2] == [{"setting": "GRPO", "optimizer.lr": lr} for lr in (1e-4, 3e-4)]
    found = [(c.advantage.scale, c.loss.aggregation, c.loss.beta, c.optimizer.lr) for c in plan.configs]
    assert found == [
        ("group_std", "seq-mean-token-mean", 0.1, 1e-4),
        ("group_std", "seq-mean-token-mean", 0.1, 3e-4),
        ("none", "seq-mean-token-sum-norm", 0.0, 1e-4),
        ("none", "seq-mean-token-sum-norm", 0.0, 3e-4),
    ]
    again = make_plan(plan.sweep.model_dump(mode="json"))  # what a sweep's folder keeps
    assert again.configs == plan.configs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"one": {"loss.beta": 1}}}, "axes.setting: only one value"),
        ({"settings": {"one": {"loss.bta": 1}, "two": {}}}, "loss.bta"),
        ({"axes": {"setting": ["GRPO", "other"]}}, "axes.setting: 'other' is not among settings"),
        ({"axes": {"loss.beta": [0.1, 1.0]}}, "axes.loss.beta: also in settings; give it once"),
        ({"overrides": {"loss.beta": 1}}, "settings.GRPO.loss.beta: also among overrides"),
        ({"settings": {"a": {"training.seed": 1}, "b": {}}}, "settings: training.seed is set by the sweep itself"),
        ({"claim": CLAIM}, "claim: is about primary.first and primary.second"),
        ({"axes": {"loss": [{"beta": 0}, {"beta": 1}]}, "settings": {}, "overrides": {"loss.clip_eps": 0.1}}, "loss.clip_eps"),
    ],
)
def test_what_contradicts_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(sweep(**changes))


@pytest.mark.parametrize("seed", range(20))
def test_a_verdict_is_that_of_two_one_sided_tests_and_of_the_t_test(seed: int) -> None:
    random = np.random.default_rng(seed)
    differences = random.normal(random.choice([-0.03, 0, 0.01, 0.03]), 0.012, size=8)
    found = verdict(list(differences), effect=0.02, margin=0.01)
    tests = [("greater", -0.01), ("less", 0.01)]
    sides = [stats.ttest_1samp(differences, at, alternative=side).pvalue for side, at in tests]
    test = stats.ttest_1samp(differences, 0)
    assert found.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.narrow == pytest.approx(tuple(test.confidence_interval(0.9)))
    wanted = "undecided" if test.pvalue >= 0.05 else "shown" if differences.mean() > 0 else "refuted"
    assert found.word == ("equivalent within the margin" if max(sides) < 0.05 else wanted)


def test_that_nothing_differs_is_refuted_by_a_difference_beyond_the_margin_alone() -> None:
    assert verdict([0.031, 0.028, 0.034], effect=0, margin=0.01).word == "refuted"
    assert verdict([0.012, 0.008, 0.015], effect=0, margin=0.01).word == "undecided"  # there is one, perhaps within it
    assert verdict([0.004], effect=0, margin=0.01).word == "undecided"
