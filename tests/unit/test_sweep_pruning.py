"""Pruning rules against cases worked out by hand."""

from grpo_core.sweep.campaign import prune_reason, rungs
from grpo_core.sweep.schema import PrunerConfig

MEDIAN = PrunerConfig(reward="median", first_step=4, every_steps=4, min_arms=3, window=2)
HALVING = PrunerConfig(reward="successive_halving", first_step=2, reduction_factor=2, min_arms=4, window=1)


def test_a_run_below_the_median_of_its_rung_ends() -> None:
    others = [[0, 0, 0.4, 0.6], [0, 0, 0.2, 0.4], [0, 0, 0.8, 1.0]]  # means of the last two: 0.5, 0.3, 0.9; median 0.5
    assert "0.4 at step 4 is below the median 0.5 of 3 arms" in str(prune_reason(MEDIAN, [0, 0, 0.3, 0.5], others, {}))
    assert prune_reason(MEDIAN, [0, 0, 0.5, 0.5], others, {}) is None


def test_nothing_is_judged_before_the_first_rung_or_among_too_few() -> None:
    others = [[1.0] * 8, [1.0] * 8]
    assert prune_reason(MEDIAN, [0.0] * 3, others, {}) is None
    assert prune_reason(MEDIAN, [0.0] * 4, others[:1], {}) is None
    assert prune_reason(MEDIAN, [0.0] * 4, [others[0], [1.0] * 3], {}) is None, "the third has not reached the rung"
    assert prune_reason(MEDIAN, [0.0] * 4, others, {}) is not None


def test_a_later_rung_decides_on_later_rewards() -> None:
    others = [[0.0] * 4 + [1.0] * 4, [0.0] * 4 + [1.0] * 4]
    assert prune_reason(MEDIAN, [0.5] * 7, others, {}) is None
    assert "step 8" in str(prune_reason(MEDIAN, [0.5] * 8, others, {}))


def test_successive_halving_keeps_one_in_so_many_at_each_rung() -> None:
    assert rungs(HALVING, 9) == [2, 4, 8]
    others = [[0, value] for value in (0.1, 0.2, 0.3)]
    assert prune_reason(HALVING, [0, 0.25], others, {}) is None  # second of four, two continue
    assert "number 3 of 4 arms; the first 2 continue" in str(prune_reason(HALVING, [0, 0.15], others, {}))


def test_equal_rewards_prune_nobody() -> None:
    same = [[0.5] * 8 for _ in range(7)]
    assert prune_reason(HALVING, [0.5] * 8, same, {}) is None
    assert prune_reason(MEDIAN, [0.5] * 8, same, {}) is None


def test_a_drift_over_its_budget_ends_a_run_at_a_rung() -> None:
    pruner = PrunerConfig(kl_budget=2.0, first_step=4, every_steps=4, window=2)
    assert prune_reason(pruner, [0.0] * 3, [], {2: 9.0, 3: 9.0}) is None, "before the first step"
    assert prune_reason(pruner, [0.0] * 4, [], {2: 9.0, 3: 1.0, 4: 3.0}) is None, "their mean is the budget"
    assert "drift 2.5 at step 4 is over pruner.kl_budget 2" in str(prune_reason(pruner, [0.0] * 4, [], {3: 2.0, 4: 3.0}))
    assert prune_reason(pruner, [0.0] * 7, [], {6: 9.0, 7: 9.0}) is None, "between two rungs, whenever it is looked at"
    assert "step 4" in str(prune_reason(pruner, [0.0] * 9, [], {3: 2.0, 4: 3.0})), "looked at late"
    assert prune_reason(pruner, [0.0] * 9, [], {1: 9.0}) is None, "not measured in a window"


def test_of_probes_the_last_one_in_the_window_is_the_drift() -> None:
    pruner = PrunerConfig(kl_budget=2.0, first_step=20, every_steps=20, window=20)
    drift = {10: 1.0, 20: 2.5}  # their mean is within the budget, where the policy is now is not
    assert "drift 2.5 at step 20 is over" in str(prune_reason(pruner, [0.0] * 20, [], drift, "kl/probe/full_init"))
    assert prune_reason(pruner, [0.0] * 20, [], drift, "kl/init/seq") is None
    assert prune_reason(pruner, [0.0] * 40, [], {10: 9.0}, "kl/probe/full_init") is not None
    assert prune_reason(pruner, [0.0] * 40, [], {10: 9.0, 20: 1.0, 40: 1.0}, "kl/probe/full_init") is None
