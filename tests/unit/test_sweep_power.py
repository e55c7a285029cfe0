"""The smallest effect of a plan is what the report's own code establishes in 80 % of sweeps; its parts have other witnesses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.power import CASES, OUTCOMES, TOLERANCE, Case, detection, draw
from grpo_core.errors import SweepError
from grpo_core.evaluation.results import pass_at_k
from grpo_core.sweep.statistics.effects import Difference
from grpo_core.sweep.statistics.findings import find
from grpo_core.sweep.statistics.paired import t_interval, two_way_interval
from grpo_core.sweep.statistics.power import (
    POWER,
    Question,
    claim_power,
    questions,
    seeds_for,
    smallest_effect,
    smallest_standardised,
)
from grpo_core.sweep.statistics.variance import Variance, contributions, estimate

IDS = [f"{case.axes} {case.seeds} {case.question.name}" for case in CASES]
LONG = (CASES[6], CASES[7])
"""Of the 18 settings of `CASES[5]`, with more seeds; `make power` has them all."""
ALONE = Question(name="a pair alone")


@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[8]], ids=[IDS[1], IDS[2], IDS[8]])
def test_few_simulated_sweeps_establish_the_smallest_effect_as_often_as_planned(case: Case) -> None:
    count = 20
    low, high = (stats.binom.ppf(tail, count, POWER) for tail in (1e-4, 1 - 1e-4))
    assert low <= detection(case, count, seed=1) * count <= high


@pytest.mark.proof
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[pytest.mark.slow] * (case in LONG)) for case, name in zip(CASES, IDS, strict=True)],
)
def test_the_smallest_effect_is_established_in_80_of_100_simulated_sweeps(case: Case) -> None:
    assert abs(detection(case, 200) - POWER) <= TOLERANCE


@pytest.mark.parametrize(("seeds", "effect"), [(2, 16.0), (3, 4.0), (5, 3.0), (8, 3.5), (20, 2.0)])
@pytest.mark.parametrize("share", [1.0, 1 / 7])
def test_the_power_of_one_difference_is_that_of_the_noncentral_t(seeds: int, effect: float, share: float) -> None:
    least = stats.t.ppf(1 - 0.025 * share, seeds - 1)
    other_tail = np.nan_to_num(stats.nct.cdf(-least, seeds - 1, effect))  # SciPy does not know some that are 0
    exact = stats.nct.sf(least, seeds - 1, effect) + other_tail
    assert claim_power(effect, seeds, replace(ALONE, share=share)) == pytest.approx(exact, abs=2e-4)


@pytest.mark.parametrize(
    ("seeds", "main", "alone", "of_all"), [(2, 37, 16, math.inf), (3, 4.1, 4.7, 58), (5, 1.3, 2.4, 9.1), (12, 0.58, 1.3, 2.6)]
)
def test_the_smallest_effects_are_those_of_an_independent_table(seeds: int, main: float, alone: float, of_all: float) -> None:
    """Of 18 settings, in standard deviations of a run; found by simulation, to two digits."""
    of = (replace(ALONE, share=1 / 7, matched=9), ALONE, replace(ALONE, share=1 / 153))
    found = [smallest_effect(2.0, seeds, question) for question in of]
    assert found[:2] == pytest.approx([main, alone], rel=0.05)
    assert found[2] == pytest.approx(of_all, rel=0.05) if of_all < math.inf else found[2] > 1000


@pytest.mark.parametrize("case", [CASES[3], CASES[4], CASES[5], CASES[8]], ids=[IDS[3], IDS[4], IDS[5], IDS[8]])
def test_a_statement_has_the_share_that_the_report_gives_it(case: Case) -> None:
    found = find(draw(np.random.default_rng(0), case, 0.0), OUTCOMES)
    of_knob = [*found.question[:1], *found.contrasts("objective", "axis.b"), found.differences[0]]
    planned = {question.name: question for question in questions(case.sweep)}
    for one in of_knob:
        assert isinstance(one, Difference)
        names = [name for name in planned if (name.startswith("question") if one in found.question else name == one.knob)]
        question = planned[names[0]] if names else questions(case.sweep)[-1]
        assert one.family_size == pytest.approx(1 / question.share)
        assert one.pairs == question.matched * case.seeds


def test_the_number_of_seeds_is_the_first_that_is_enough() -> None:
    for question in questions(CASES[6].sweep):
        seeds = seeds_for(0.02, 4e-4, question)
        assert seeds is not None
        assert smallest_effect(4e-4, seeds, question) <= 0.02 < smallest_effect(4e-4, seeds - 1, question)
    assert seeds_for(1e-9, 1.0, ALONE) is None
    assert smallest_standardised(1, ALONE) == math.inf


def test_the_components_of_a_large_pilot_are_those_it_was_drawn_from() -> None:
    random, arms, seeds, prompts, samples = np.random.default_rng(3), 6, 60, 40, 8
    chance = random.uniform(0.3, 0.7, prompts)
    effects = random.normal(0, 0.05, (arms, prompts))  # w^2 = 2 x 0.05^2
    of_seed, own = random.normal(0, 0.03, seeds), random.normal(0, 0.04, (arms, seeds))
    draws = {}
    for arm in range(arms):
        for seed in range(seeds):
            chances = np.clip(chance + effects[arm] + of_seed[seed] + own[arm, seed], 0, 1)
            draws[str(arm), seed] = (random.random((prompts, samples)) < chances[:, None]).astype(float)
    values = {str(arm): {seed: float(draws[str(arm), seed].mean()) for seed in range(seeds)} for arm in range(arms)}
    found, one_draw = estimate(values, draws), float((chance * (1 - chance)).mean())
    assert found.draws == pytest.approx(2 * one_draw, rel=0.03)
    assert found.training == pytest.approx(2 * 0.04**2, rel=0.3)  # what a seed does to every setting cancels
    assert found.prompts == pytest.approx(2 * 0.05**2, rel=0.25)
    # A residual mean square of settings x seeds, which is V / 2.
    table = np.array([[*of_arm.values()] for of_arm in values.values()])
    residual = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    assert found.freedom == pytest.approx((arms - 1) * (seeds - 1))
    assert found.of_pair(samples, prompts) == pytest.approx(2 * (residual**2).sum() / found.freedom)
    gaps = np.array([(draws["1", seed] - draws["0", seed]).mean(axis=1) for seed in range(seeds)])
    low, high = two_way_interval(gaps)
    assert found.half_width(seeds, samples, prompts) == pytest.approx((high - low) / 2, rel=0.25)


@pytest.mark.parametrize(("of_seed", "own", "shares_draws"), [(0.04, 0.01, False), (0.0, 0.03, True)])
def test_more_completions_buy_what_they_buy_whatever_seeds_have_in_common(
    of_seed: float, own: float, shares_draws: bool
) -> None:
    """The trainings of a seed may be alike and its completions not, or the other way round."""
    random, prompts = np.random.default_rng(1), 100

    def sweep(seeds: int, samples: int) -> tuple[dict[str, dict[int, float]], dict[tuple[str, int], np.ndarray]]:
        draws, values = {}, dict[str, dict[int, float]](a={}, b={})
        for seed in range(seeds):
            common, uniforms = random.normal(0, of_seed), random.random((prompts, samples))
            for arm, of_arm in values.items():
                drawn = uniforms if shares_draws else random.random((prompts, samples))
                draws[arm, seed] = (drawn < 0.5 + common + random.normal(0, own)).astype(float)
                of_arm[seed] = float(draws[arm, seed].mean())
        return values, draws

    found = estimate(*sweep(3000, 4))
    for samples in (4, 16):
        values, _ = sweep(1500, samples)
        true = np.var([values["b"][seed] - values["a"][seed] for seed in range(1500)], ddof=1)
        assert found.of_pair(samples, prompts) == pytest.approx(true, rel=0.2)


def test_without_prompts_all_of_the_spread_is_that_of_training() -> None:
    values = {"a": {0: 0.1, 1: 0.3, 2: 0.2}, "b": {0: 0.2, 1: 0.5, 2: 0.2}, "once": {0: 0.7}, "alone": {9: 0.1}}
    found = estimate(values, {})
    gaps = [values["b"][seed] - values["a"][seed] for seed in range(3)]
    assert found.of_pair() == pytest.approx(np.var(gaps, ddof=1))
    assert (found.draws, found.freedom, math.isnan(found.half_width(3))) == (0.0, 2.0, True)


def test_settings_that_share_no_seed_have_twice_the_variance_of_one() -> None:
    found = estimate({"a": {0: 0.1, 1: 0.3}, "b": {2: 0.2, 3: 0.5}}, {})
    assert (found.of_pair(), found.freedom) == pytest.approx((2 * (0.02 + 0.045) / 2, 2.0))


def test_seeds_that_agree_by_chance_do_not_promise_more_than_the_draws_allow() -> None:
    random = np.random.default_rng(0)
    draws = {(arm, seed): (random.random((50, 4)) < 0.5).astype(float) for arm in "ab" for seed in range(2)}
    values = {arm: dict.fromkeys(range(2), 0.5) for arm in "ab"}
    assert estimate(values, draws).of_pair(4, 50) == pytest.approx(2 * 0.25 / 200, rel=0.2)
    with pytest.raises(SweepError, match="differences of two settings are the same with every seed"):
        estimate(values, {})
    with pytest.raises(SweepError, match="the same with every seed"):
        estimate({"a": {0: 0.1, 1: 0.3}, "b": {0: 0.3, 1: 0.5}}, {})  # 0.2 but for rounding


def test_new_prompts_that_change_nothing_leave_the_interval_over_seeds() -> None:
    found = Variance(training=0.02, prompts=0.0, freedom=3)
    low, high = t_interval([-math.sqrt(0.02), 0.0, math.sqrt(0.02)])  # of variance 0.02
    assert found.half_width(3, num_prompts=100) == pytest.approx((high - low) / 2)


def test_one_seed_of_each_setting_shows_no_spread() -> None:
    with pytest.raises(SweepError, match="no setting has runs of two seeds"):
        estimate({"a": {0: 1.0}, "b": {1: 1.0}}, {})


def test_the_pseudo_values_of_pass_at_k_have_its_mean_and_its_variance() -> None:
    random, samples, k = np.random.default_rng(0), 12, 3
    correct = (random.random((4000, samples)) < 0.3).astype(float)
    found, exact = contributions(correct, k), np.array([pass_at_k(samples, int(row.sum()), k) for row in correct])
    np.testing.assert_allclose(found.mean(axis=1), exact, atol=1e-12)
    # The jackknife is a little too large (Efron & Stein 1981).
    assert exact.var() <= found.var(axis=1, ddof=1).mean() / samples <= 1.25 * exact.var()
    assert contributions(correct, 1) is correct
