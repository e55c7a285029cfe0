"""Statistics of a sweep against SciPy's tests, cases computed by hand, and simulations with a known truth."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.effects import (
    Association,
    Difference,
    arm_differences,
    find_interactions,
    knob_effects,
    simple_effects,
)
from grpo_core.sweep.statistics.paired import (
    holm,
    moderated_p,
    paired_estimate,
    rank_correlation,
    t_interval,
    two_way_interval,
)
from grpo_core.sweep.statistics.runs import SweepRuns

KNOBS = ("loss.beta", "rollout.group_size", "reference.sync_steps")
BETAS, GROUPS, SYNCS = (0.01, 0.5), (4, 8, 16), (10, None)
Objective = Callable[[float, int, int | None, int], float]


def swept(frame: pandas.DataFrame, seeds: Sequence[int] = (0, 1, 2), knobs: Sequence[str] = KNOBS, **keys: Any) -> SweepRuns:
    """Return the runs of a frame as a sweep of some knobs."""
    config = SweepConfig(base="b", axes=dict.fromkeys(knobs, (0,)), seeds=tuple(seeds))
    return SweepRuns(name="s", config=config, runs=frame, **keys)


def runs(objective: Objective, seeds: Sequence[int] = (0, 1, 2), betas: Sequence[float] = BETAS) -> pandas.DataFrame:
    """Return a full grid, each run with the objective that a function gives it."""
    rows = []
    for arm, (beta, group, sync) in enumerate(itertools.product(betas, GROUPS, SYNCS)):
        for seed in seeds:
            row = {"arm": arm, "seed": seed, "status": "finished", "objective": objective(beta, group, sync, seed)}
            rows.append(row | dict(zip(KNOBS, (beta, group, sync), strict=True)))
    return pandas.DataFrame(rows)


def noisy(effect: float = 0.0, noise: float = 0.02, start: int = 0) -> Objective:
    """Return an objective with an effect of beta 0.5, one of the seed, and noise."""
    random = np.random.default_rng(start)
    of_seed = random.normal(0, 0.1, 100)
    return lambda beta, group, sync, seed: 0.6 + effect * (beta == 0.5) + of_seed[seed] + random.normal(0, noise)


def differences(sweep: SweepRuns, knob: str = "") -> list[Difference]:
    """Return the contrasts of a knob, or of all."""
    found = [one for one in knob_effects(sweep) if isinstance(one, Difference)]
    return [one for one in found if knob in ("", one.knob)]


# One difference


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12).filter(lambda values: np.ptp(values) > 1e-3))
def test_the_interval_and_p_value_are_scipys(values: list[float]) -> None:
    found = paired_estimate(values)
    wanted = stats.ttest_1samp(values, 0)
    interval = wanted.confidence_interval(0.95)
    assert found.p == pytest.approx(wanted.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    interval = wanted.confidence_interval(1 - 0.05 / 6)
    assert t_interval(values, comparisons=6) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("differences", "spread", "low", "p", "family_p"),
    [
        ([0.3], "one seed", math.nan, math.nan, math.nan),
        ([0.0, 0.0, 0.0], "identical", 0, 1, 1),
        # As subtraction leaves them, not equal to the last bit; in the family they have the sign test's p.
        ([0.3 - 0.2, 0.5 - 0.4, 0.7 - 0.6], "constant", 0.1, 0, stats.binomtest(3, 3).pvalue),
    ],
)
def test_seeds_without_a_spread_have_no_t(differences: list[float], spread: str, low: float, p: float, family_p: float) -> None:
    found = paired_estimate(differences)
    assert (found.spread, found.mean) == (spread, pytest.approx(differences[0]))
    assert (found.low, found.high, found.p, found.family_p) == pytest.approx((low, low, p, family_p), nan_ok=True)


def limma(families: list[list[float]]) -> list[float]:
    """Return the moderated p-values by limma's formulas (fitFDist, eBayes), the prior's freedom by bisection and bounded."""
    freedom = np.array([len(one) - 1 for one in families])
    variance = np.array([np.var(one, ddof=1) for one in families])
    logs = np.log(variance) - special.psi(freedom / 2) + np.log(freedom / 2)
    excess = logs.var(ddof=1) - special.polygamma(1, freedom / 2).mean()
    bound = 2 * freedom.mean()
    if special.polygamma(1, bound / 2) < excess:
        prior = 2 * optimize.brentq(lambda half: float(special.polygamma(1, half)) - excess, 1e-6, bound)
    else:
        prior = bound
    scale = math.exp(logs.mean() + special.psi(prior / 2) - math.log(prior / 2))
    posterior = (prior * scale + freedom * variance) / (prior + freedom)
    t = np.array([np.mean(one) * math.sqrt(len(one)) for one in families]) / np.sqrt(posterior)
    return [2 * stats.t.sf(abs(x), min(prior + d, freedom.sum())) for x, d in zip(t, freedom, strict=True)]


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_the_moderated_t_is_that_of_limma(spread: float) -> None:
    random = np.random.default_rng(2)
    families = [random.normal(0.3, math.exp(random.normal(0, spread)), seeds).tolist() for seeds in (3, 5, 5, 8, 5, 4)]
    assert moderated_p(families) == pytest.approx(limma(families), rel=1e-4)
    found = moderated_p([*families, [0.1, 0.1], [0.2]])
    assert found[:6] == moderated_p(families)
    assert all(map(math.isnan, found[6:]))


@pytest.mark.parametrize(("seeds", "rule"), [(4, "p"), (5, "moderated_p")])
def test_the_moderated_t_is_the_rule_from_five_seeds_on(seeds: int, rule: str) -> None:
    for one in knob_effects(swept(runs(noisy(), seeds=range(seeds)), range(seeds))):
        assert isinstance(one, Difference)
        assert one.family_p == getattr(one, rule)
        assert one.p != one.moderated_p
        assert not one.is_claim or one.estimate.excludes_zero


def test_the_interval_for_new_prompts_by_hand() -> None:
    # Rows 1 and 3, columns 1, 2, 3, no residual: V = 2 / 2 + 1 / 3, each with its own degrees of freedom.
    scores = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    variance = 1 + 1 / 3
    freedom = variance**2 / (1 / 1 + (1 / 3) ** 2 / 2)
    half = max(stats.t.ppf(0.975, freedom) * math.sqrt(variance), stats.t.ppf(0.975, 1))
    assert two_way_interval(scores) == pytest.approx((2 - half, 2 + half))
    assert all(map(math.isnan, two_way_interval(scores[:1])))
    # Where all prompts show the same, others would add nothing: the interval is that over seeds.
    same = np.array([[1.0] * 3, [2.0] * 3, [4.0] * 3])
    assert two_way_interval(same) == pytest.approx(t_interval(same[:, 0]))


def test_figures_by_prompt_give_every_difference_an_interval_for_new_prompts() -> None:
    random = np.random.default_rng(0)
    scores = {(arm, seed): pandas.Series(random.random(30)) for arm in range(12) for seed in range(3)}
    frame = runs(noisy())
    frame["objective"] = [scores[arm, seed].mean() for arm, seed in zip(frame["arm"], frame["seed"], strict=True)]
    sweep = swept(frame, by_prompt=scores)
    assert sweep.prompts == "these 30 prompts"
    for one in (*differences(sweep), *arm_differences(sweep), *find_interactions(sweep, "objective")):
        assert one.new_prompts[1] - one.new_prompts[0] >= one.estimate.high - one.estimate.low - 1e-12
    table = np.array([[scores[1, seed] - scores[0, seed] for seed in range(3)]])[0]
    assert arm_differences(sweep)[0].new_prompts == pytest.approx(two_way_interval(table))
    del scores[3, 1]
    assert math.isnan(differences(swept(frame, by_prompt=scores))[0].new_prompts[0])


# Many comparisons


@pytest.mark.parametrize(
    ("p_values", "weights", "wanted"),
    [
        # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which may not be below the one before.
        ([0.01, 0.04, 0.03, 0.005], None, [0.03, 0.06, 0.06, 0.02]),
        ([0.5, math.nan, 0.02], None, [0.5, math.nan, 0.04]),
        # p / w: 0.02 / 0.6 is the smallest, then 0.03 / 0.3 of what is left, 0.4, then 0.04 / 0.1 of 0.1, not below that.
        ([0.04, 0.02, 0.03], [0.1, 0.6, 0.3], [0.04, 0.02 / 0.6, 0.03 / 0.3 * 0.4]),
        ([0.01, 0.04, math.nan], [0.2, 0.2, 0.6], [0.02, 0.04, math.nan]),
    ],
)
def test_holm_by_hand(p_values: list[float], weights: list[float] | None, wanted: list[float]) -> None:
    assert holm(p_values, weights) == pytest.approx(wanted, nan_ok=True)


def test_rank_correlation_is_scipys_and_its_p_value_is_exact_for_few_points() -> None:
    x, y = [1, 2, 3, 4, 5], [0.1, 0.3, 0.2, 0.5, 0.9]
    rho, p = rank_correlation(x, y)
    assert rho == pytest.approx(stats.spearmanr(x, y).statistic)
    rhos = [stats.spearmanr(x, order).statistic for order in itertools.permutations(y)]
    tails = [np.mean([one >= rho - 1e-9 for one in rhos]), np.mean([one <= rho + 1e-9 for one in rhos])]
    assert p == pytest.approx(2 * min(tails))
    assert all(math.isnan(rank_correlation(range(len(few)), few)[0]) for few in ([1.0, 1.0, 1.0], [1.0, 2.0]))


# Effects


def test_a_contrast_is_the_paired_test_on_means_over_matched_arms() -> None:
    frame = runs(noisy(effect=-0.05))
    (found,) = differences(swept(frame), "loss.beta")
    means = frame.pivot_table(index="seed", columns="loss.beta", values="objective")
    assert found.estimate.mean == pytest.approx(float((means[0.5] - means[0.01]).mean()))
    assert found.estimate.p == pytest.approx(stats.ttest_rel(means[0.5], means[0.01]).pvalue)
    assert (found.pairs, found.planned_pairs, found.estimate.seeds) == (18, 18, 3)
    (of_null,) = differences(swept(frame), "reference.sync_steps")
    assert (of_null.first_name, of_null.second_name) == ("10", "never")


@pytest.mark.parametrize("status", ["stopped", "failed", "running", "missing"])
def test_a_run_that_did_not_finish_leaves_with_its_partner(status: str) -> None:
    # Combinations are a thousand apart, so a mean over unmatched ones would show it.
    frame = runs(lambda beta, group, sync, seed: 1000.0 * group + (beta == 0.5) * (1 + seed))
    frame.loc[(frame["arm"] == 0) & (frame["seed"] == 1), "status"] = status
    sweep = swept(frame)
    (found,) = differences(sweep, "loss.beta")
    assert found.differences == (1, 2, 3)
    assert (found.pairs, found.planned_pairs) == (17, 18)
    assert [(arm.number, seed, reason) for arm, seed, _, reason in sweep.left_out] == [(0, 1, status)]


def test_a_pruned_arm_leaves_the_statistics_with_all_its_runs() -> None:
    # The seeds of arm 0 that the pruner let through look far better than it is.
    frame = runs(lambda beta, group, sync, seed: 0.5 + 0.1 * seed)
    frame.loc[frame["arm"] == 0, "objective"] += 5
    frame.loc[(frame["arm"] == 0) & (frame["seed"] == 1), ["status", "objective"]] = ["pruned", 0.1]
    frame.loc[(frame["arm"] == 0) & (frame["seed"] == 2), "status"] = "missing"
    sweep = swept(frame)
    (found,) = differences(sweep, "loss.beta")
    assert (found.differences, found.pairs, found.planned_pairs) == ((0, 0, 0), 15, 18)
    assert all(0 not in (pair.first, pair.second) for pair in arm_differences(sweep))
    assert [(seed, reason) for _, seed, _, reason in sweep.left_out] == [
        (0, "its arm was pruned at seed 1"),
        (1, "pruned"),
        (2, "missing: its arm was pruned at seed 1"),
    ]


def test_differences_between_arms_are_paired_by_seed_and_adjusted_over_all_pairs() -> None:
    frame = runs(noisy())
    found = arm_differences(swept(frame))
    assert len(found) == 12 * 11 // 2
    by_arm = {arm: group.sort_values("seed")["objective"] for arm, group in frame.groupby("arm")}
    p_values = [stats.ttest_rel(by_arm[pair.second], by_arm[pair.first]).pvalue for pair in found]
    assert [pair.estimate.p for pair in found] == pytest.approx(p_values)
    smallest = min(range(len(found)), key=lambda index: p_values[index])
    assert found[smallest].holm_p == pytest.approx(min(1, len(found) * p_values[smallest]))


def test_sampled_knobs_are_associated_and_not_contrasted() -> None:
    """A reference that never syncs ranks as the longest period."""
    random, syncs = np.random.default_rng(3), [5, 10, 20, None, 40, 80]
    betas = random.uniform(0, 1, 6).tolist()
    rows = [
        {"arm": arm, "seed": seed, "status": "finished", "objective": -beta + seed, KNOBS[0]: beta, KNOBS[2]: sync}
        for arm, (beta, sync) in enumerate(zip(betas, syncs, strict=True))
        for seed in (0, 1)
    ]
    effects = knob_effects(swept(pandas.DataFrame(rows), (0, 1), (KNOBS[0], KNOBS[2])))
    beta, sync = (one for one in effects if isinstance(one, Association))
    assert len(effects) == 2
    assert (beta.rho, beta.is_claim, beta.holm_p) == (pytest.approx(-1), True, pytest.approx(2 * beta.p))
    wanted = stats.spearmanr([5, 10, 20, 999, 40, 80], [-rate for rate in betas]).statistic
    assert (sync.rho, sync.left_out, sync.arms) == (pytest.approx(wanted), 0, 6)


# Interactions


def test_interactions_are_scipys_paired_test_of_effects_and_a_family_of_their_own() -> None:
    frame = runs(noisy(effect=-0.05))
    sweep = swept(frame)
    found = find_interactions(sweep, "objective")
    assert len(found) == 1 * 3 + 1 * 1 + 3 * 1
    plain = frame.fillna({KNOBS[2]: 0})  # a pivot has no place for null
    p_values = []
    for one in found:
        means = plain.pivot_table(index="seed", columns=[one.knob, one.other], values="objective")
        effects = [means[one.second or 0, at or 0] - means[one.first or 0, at or 0] for at in (one.at_first, one.at_second)]
        p_values.append(stats.ttest_rel(effects[1], effects[0]).pvalue)
        shown = [simple_effects(sweep, one)[at].mean for at in (one.at_first, one.at_second)]
        assert shown == pytest.approx([float(effect.mean()) for effect in effects])
        assert one.estimate.mean == pytest.approx(shown[1] - shown[0])
    assert [one.estimate.p for one in found] == pytest.approx(p_values)
    assert [one.holm_p for one in found] == pytest.approx(holm(p_values))
