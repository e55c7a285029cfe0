"""Evaluation statistics against SciPy, formulas and enumeration, and one evaluation of a tiny model."""

import itertools
import math
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_core.data.prepare import load_frozen
from grpo_core.evaluation.results import (
    AnswerChanges,
    answer_changes,
    mean_estimate,
    mean_share,
    paired_difference,
    pass_at_k,
    proportion,
)
from grpo_core.evaluation.runner import open_evaluator

SETTINGS = settings(max_examples=40)


@SETTINGS
@given(counts=st.tuples(st.integers(0, 3000), st.integers(0, 3000)).filter(any))
def test_a_share_has_scipys_interval_to_the_last_bit(counts):
    expected = stats.binomtest(counts[0], sum(counts)).proportion_ci(0.95, method="wilson")
    estimate = proportion(counts[0], sum(counts))
    assert (estimate.low, estimate.high) == (expected.low, expected.high)


@SETTINGS
@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=20).filter(lambda values: stdev(values) > 1e-3))
def test_a_mean_has_scipys_interval(values):
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean(values), scale=stdev(values) / math.sqrt(len(values)))
    estimate = mean_estimate(values)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((mean(values), low, high), rel=1e-9, abs=1e-9)


@SETTINGS
@given(counts=st.tuples(st.integers(0, 300), st.integers(0, 300)).filter(lambda counts: sum(counts) > 1))
def test_a_mean_of_binary_shares_is_wilsons_with_students_quantile(counts):
    right, wrong = counts
    estimate, total = mean_share([1.0] * right + [0.0] * wrong), right + wrong
    confidence = 2 * stats.norm.cdf(stats.t.ppf(0.975, total - 1)) - 1
    expected = stats.binomtest(right, total).proportion_ci(min(confidence, 1 - 1e-12), method="wilson")
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_equal_values_have_an_interval_of_width_0_and_one_value_an_infinite_one():
    equal = mean_estimate([0.5] * 4)
    assert (equal.value, equal.low, equal.high) == (0.5, 0.5, 0.5)
    single = mean_estimate([0.5])
    assert (single.value, single.low, single.high) == (0.5, -math.inf, math.inf)


def test_a_paired_difference_is_agresti_and_mins_by_hand():
    # 20 prompts, 5 gained, 1 lost; with half a prompt in each cell 5.5 and 1.5 of 22
    before, after = [0] * 5 + [1] * 15, [1] * 5 + [0] + [1] * 14
    estimate = paired_difference(before, after)
    half = stats.t.ppf(0.975, 19) * math.sqrt(7 - 4**2 / 22) / 22
    assert estimate.value == 0.2
    assert (estimate.low, estimate.high) == pytest.approx((4 / 22 - half, 4 / 22 + half), abs=1e-12)


@SETTINGS
@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=100, max_size=120))
def test_a_paired_difference_of_many_shares_is_nearly_the_paired_t_interval(pairs):
    before, after = ([share / 4 for share in side] for side in zip(*pairs, strict=True))
    estimate, student = paired_difference(before, after), mean_estimate([a - b for b, a in zip(before, after, strict=True)])
    assert (estimate.low, estimate.high) == pytest.approx((student.low, student.high), abs=0.04)


@pytest.mark.parametrize("samples", [1, 3, 5])
def test_pass_at_k_is_the_share_of_all_draws_with_a_correct_one(samples):
    for correct, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        draws = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
        assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_lost_and_gained_answers_by_hand():
    before, after = (True, True, True, False, False, False), (True, False, True, True, True, False)
    found = answer_changes(before, after)
    assert found == AnswerChanges(right_before=3, lost=1, gained=2)
    assert found.retained.value == pytest.approx(2 / 3)
    # By hand: 3 discordant, P(X <= 1) = (1 + 3) / 8, doubled and cut at 1.
    assert found.p == 1
    assert AnswerChanges(right_before=9, lost=0, gained=5).p == pytest.approx(2 / 32)
    assert answer_changes([False, False], [True, False]).retained is None


@SETTINGS
@given(lost=st.integers(0, 60), gained=st.integers(1, 60))
def test_p_of_lost_against_gained_is_scipys(lost, gained):
    found = AnswerChanges(right_before=60, lost=lost, gained=gained)
    assert found.p == pytest.approx(stats.binomtest(lost, lost + gained, 0.5).pvalue, rel=1e-9)


@pytest.fixture
def evaluator(tiny_run):
    """An evaluator of a tiny run's initial policy, whose verifier is the second reward; and the held-out prompts."""
    run_dir = tiny_run({"evaluation.verifier": "length", "evaluation.pass_score": 0.5, "rollout.max_completion_tokens": 6})
    config = run_dir.read_config()
    return open_evaluator(config, Path(config.model.source)), load_frozen(run_dir.data)[1]


def test_an_evaluations_figures_are_the_means_over_its_completions(evaluator):
    judge, prompts = evaluator
    assert judge.verifier.fn == "length"
    assert judge.accepts([0.5, 0.6, 0.49, None, math.nan]) == [True, True, False, False, False]
    result = judge.evaluate(prompts[:6], samples=2)
    greedy = [row for row in result.completions if row["sample"] == -1]
    sampled = [row for row in result.completions if row["sample"] >= 0]
    assert (len(greedy), [row["sample"] for row in sampled]) == (6, [0, 1] * 6)
    by_prompt = [(one["correct"], other["correct"]) for one, other in zip(sampled[::2], sampled[1::2], strict=True)]
    assert result.metrics() == {
        "eval/heldout/greedy_accuracy": pytest.approx(mean(row["correct"] for row in greedy), abs=1e-12),
        "eval/heldout/greedy_score": pytest.approx(mean(row["score"] for row in greedy), abs=1e-12),
        "eval/heldout/completion_tokens": pytest.approx(mean(row["tokens"] for row in greedy), abs=1e-12),
        "eval/heldout/pass_at_1": pytest.approx(mean(mean(pair) for pair in by_prompt), abs=1e-12),
        "eval/heldout/pass_at_2": pytest.approx(mean(any(pair) for pair in by_prompt), abs=1e-12),
    }
    assert len({row["prompt_id"] for row in greedy}) == 6


def test_an_evaluation_repeats_exactly_and_does_not_depend_on_how_many_prompts_it_has(evaluator):
    judge, prompts = evaluator
    first, again, more = (judge.evaluate(prompts[:count], samples=2) for count in (4, 4, 6))
    assert again == first
    ids = {prompt.id for prompt in prompts[:4]}
    assert [row for row in more.completions if row["prompt_id"] in ids] == list(first.completions)
