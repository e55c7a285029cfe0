"""The figures of a step by hand, on tensors small enough to work out on paper."""

import math
from dataclasses import replace
from statistics import stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.policy.saved import TrainingState
from grpo_core.rewards.base import ScoredCompletions
from grpo_core.training import measure
from grpo_core.training.batch import Rollouts, TrainingBatch
from grpo_core.training.step import as_tensors
from grpo_core.training.update import OptimizerStep, log_weights
from grpo_core.types import Mean, Prompt, RefSync

LOG2 = math.log(2)
MASK = torch.tensor([[True, True], [True, False]])


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def floats(function, *arguments):
    """Return figures as a step journals them."""
    return measure.registry_figures([function(*arguments)])


def close(value):
    return pytest.approx(value, abs=1e-12)


def rollouts_of(totals, breakdown, group_size, mask=None, truncated=None):
    rows = len(totals)
    mask = torch.ones(rows, 1, dtype=torch.bool) if mask is None else mask
    prompts = [Prompt(id=index, content="", text="", token_ids=(1, 2), columns={}) for index in range(rows // group_size)]
    rewards, by_function = as_tensors(ScoredCompletions(total=tuple(totals), breakdown=breakdown))
    return Rollouts(
        prompts=tuple(prompts),
        group_size=group_size,
        texts=("",) * rows,
        completion_ids=torch.zeros(mask.shape, dtype=torch.long),
        completion_mask=mask,
        loss_mask=mask,
        truncated=torch.tensor(truncated or [False] * rows),
        sampling_per_token_logps=torch.zeros(mask.shape),
        rewards=rewards,
        rewards_by_function=by_function,
        group_advantages=group_relative_advantages(rewards, group_size).float(),
    )


def kl_figures(ref, sampling=None, initial=None, mask=MASK, **exact):
    """Of two completions of two prompts."""
    zeros = torch.zeros(2, 2, dtype=torch.float64)
    logps = measure.StepLogps(old=zeros, ref=ref, initial=initial, entropy=zeros, **exact)
    rollouts = rollouts_of([0.0, 0.0], {}, 1, mask=mask)
    return floats(
        measure.kl_figures, logps, replace(rollouts, sampling_per_token_logps=zeros if sampling is None else sampling)
    )


def test_kl_figures_by_hand():
    # log r = log 2, -log 2 | -1, masked: k1 = -log 2, log 2 | 1; k3 = 1 - log 2, log 2 - 1/2 | 1/e. Masked (5) must not show.
    figures = kl_figures(float64([[LOG2, -LOG2], [-1.0, 5.0]]))
    low, middle, high = LOG2 - 0.5, 1 - LOG2, math.exp(-1)
    assert figures == {
        "kl/ref/k1": close(1 / 3),  # (-log 2 + log 2 + 1) / 3
        # sums 0, 1 of 2 and 1 tokens: residuals 0 - 2/3 and 1 - 1/3; sqrt(2/1 * 8/9) / 3
        "kl/ref/k1_se": close(4 / 9),
        "kl/ref/k2": close((LOG2**2 + 0.5) / 3),  # (log 2)^2 / 2, twice, and 1/2, over 3 tokens
        "kl/ref/k3": close((0.5 + high) / 3),  # (1 - log 2 + log 2 - 1/2 + 1/e) / 3
        "kl/ref/max": close(high),
        # of low, middle, high: 0.95 of the way over two gaps is 0.9 into the second
        "kl/ref/p95": close(middle + 0.9 * (high - middle)),
        "kl/ref/drift": close(1 / 3),
        "kl/ref/drift_se": close(4 / 9),
        "kl/ref/seq": close(1 / 2),  # of k1: (0 + 1) / 2 completions
        "kl/sampler/k3": close(0.0),
    }
    assert low < middle < high


def test_a_drift_on_stale_tokens_is_weighted_by_their_ratio():
    # Two tokens, drawn in their expected numbers from (1/4, 3/4) by now (1/2, 1/2), to (1/4, 3/4): KL = log(2/sqrt 3).
    old, policy = (float64([[math.log(one)] for one in chances]) for chances in ([1 / 4] + [3 / 4] * 3, [1 / 2] * 4))
    mask = torch.ones(4, 1, dtype=torch.bool)
    assert measure.drift_after_update(policy, old, old, mask) == close(math.log(2 / math.sqrt(3)))
    assert measure.masked_mean(old - policy, mask) > 0  # k1 alone: -KL(old || policy)
    assert measure.drift_after_update(policy, policy, old, mask) == 0.0


def test_the_drift_is_the_exact_sum_where_the_step_has_one():
    zeros, exact = float64([[0.0, 0.0], [0.0, 0.0]]), float64([[1.0, 2.0], [6.0, 9.0]])
    figures = kl_figures(float64([[LOG2, -LOG2], [-1.0, 5.0]]), initial=zeros, full_ref=exact, full_init=None)
    assert figures["kl/ref/full"] == figures["kl/ref/drift"] == close(3.0)  # (1 + 2 + 6) / 3
    # sums 3, 6 of 2 and 1 tokens: residuals -3, 3; sqrt(2/1 * 18) / 3
    assert figures["kl/ref/full_se"] == figures["kl/ref/drift_se"] == close(2.0)
    assert figures["kl/ref/seq"] == close(4.5)
    assert figures["kl/ref/k1"] == close(1 / 3)
    assert figures["kl/init/drift"] == figures["kl/init/k1"] == close(0.0)
    assert "kl/init/full" not in figures


def test_kl_to_the_initial_policy_and_to_the_sampler_by_hand():
    # initial: log r = log 2 on the first token alone: k3 = 1 - log 2, k1 = -log 2, over 3 tokens or 2 completions.
    # sampler: log pi - log pi_sampler = -log 2 on the third token: k3 = log 2 - 1/2, over 3 tokens.
    figures = kl_figures(
        float64([[0.0, 0.0], [0.0, 0.0]]),
        sampling=float64([[0.0, 0.0], [LOG2, 9.0]]),
        initial=float64([[LOG2, 0.0], [0.0, 9.0]]),
    )
    assert figures["kl/init/k3"] == close((1 - LOG2) / 3)
    assert figures["kl/init/drift"] == close(-LOG2 / 3)
    assert figures["kl/init/seq"] == close(-LOG2 / 2)
    # se over prompts (sums a, 0 of 2 and 1 tokens; mean a/3): residuals a - 2a/3, 0 - a/3; sqrt(2 (a/3)^2 x 2/1) / 3 = 2a/9
    assert figures["kl/init/drift_se"] == close(2 * LOG2 / 9)
    assert figures["kl/sampler/k3"] == close((LOG2 - 0.5) / 3)
    assert figures["kl/ref/k3"] == close(0.0)


def test_a_prompt_that_occurs_twice_is_one_draw_and_of_one_alone_no_error_is_known():
    one = rollouts_of([0.0] * 6, {}, 2)
    assert one.clusters().tolist() == [0, 0, 1, 1, 2, 2]
    twice = replace(one, prompts=(one.prompts[0], one.prompts[1], one.prompts[0])).clusters()
    assert twice[0] == twice[4] != twice[2]
    assert math.isnan(clustered(torch.ones(3, 3), torch.ones(3, 3, dtype=torch.bool), [1, 1, 1]))


def test_rows_without_a_token_are_no_completions_of_a_mean():
    # Two of four rows have tokens, with 2 + 3 and 1 nats: 3 a completion, 2 a token.
    values = float64([[2.0, 3.0], [9.0, 9.0], [1.0, 9.0], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [0, 0], [1, 0], [0, 0]]).bool()
    assert float(measure.row_mean(values, mask)) == close(3.0)
    # residuals 5 - 2 x 2, 1 - 1 x 2: sqrt(2 x 2 / 1) / 3, as if the other two had never been
    assert clustered(values, mask, [0, 1, 2, 3]) == close(2 / 3)
    assert clustered(values[[0, 2]], mask[[0, 2]], [0, 1]) == close(2 / 3)
    assert float(measure.row_mean(values, torch.zeros_like(mask))) == 0.0


def clustered(values, mask, clusters):
    return measure.clustered_standard_error(values, mask, torch.tensor(clusters))


@settings(max_examples=40)
@given(rows=st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=2, max_size=6))
def test_with_equal_lengths_the_clustered_error_is_that_of_the_row_means(rows):
    values = float64(rows)
    expected = stdev(sum(row) / 3 for row in rows) / math.sqrt(len(rows))
    error = clustered(values, torch.ones_like(values, dtype=torch.bool), list(range(len(rows))))
    assert error == pytest.approx(expected, abs=1e-9)


def test_reward_and_group_figures_by_hand():
    # Groups (0, 1), (0.5, 0.5), (2, 4); the verifier accepts 2 and 4 and the 1.
    rollouts = rollouts_of(
        [0.0, 1.0, 0.5, 0.5, 2.0, 4.0],
        {"a": (0.0, 1.0, None, 0.5, 1.0, 1.0)},
        group_size=2,
    )
    figures = floats(measure.reward_figures, rollouts, [False, True, False, False, True, True])
    assert figures == {
        "reward/mean": close(8 / 6),
        # squares about 4/3: 16/9 + 1/9 + 25/36 + 25/36 + 4/9 + 64/9 = 390/36, over 5
        "reward/std": close(math.sqrt(390 / 36 / 5)),
        "reward/a/mean": close(3.5 / 5),
        # squares about 0.7: 0.49 + 0.09 + 0.04 + 0.09 + 0.09 = 0.8, over 4
        "reward/a/std": close(math.sqrt(0.2)),
        "reward/a/unscorable_frac": close(1 / 6),
        "reward/a/timeout_frac": 0.0,
        # Bessel std of two numbers d apart: d / sqrt(2) = 1/sqrt(2), 0, sqrt(2)
        "group/reward_std/mean": close((math.sqrt(0.5) + math.sqrt(2)) / 3),
        "group/reward_std/min": 0.0,
        "group/reward_std/max": close(math.sqrt(2)),
        "group/zero_std_frac": close(1 / 3),
        "group/all_correct_frac": close(1 / 3),
        "group/all_wrong_frac": close(1 / 3),
        "group/best_mean": close((1 + 0.5 + 4) / 3),
        "group/effective_count": 2.0,
    }


def test_advantage_figures_by_hand():
    mask = torch.arange(2) < torch.tensor([[2], [1], [2], [1], [1], [1]])
    rollouts = rollouts_of([0.0] * 6, {}, 2, mask=mask)
    zeros = torch.zeros(6, 2)

    def figures(advantages):
        return floats(
            measure.advantage_figures, TrainingBatch(rollouts=rollouts, advantages=advantages, ref_logps=zeros, old_logps=None)
        )

    assert figures(torch.tensor([-1.0, 1.0, 0.0, 0.0, -3.0, 3.0])) == {
        "advantage/mean": close(0.0),
        "advantage/std": close(2.0),  # 20 / 5
        "advantage/max": close(3.0),
    }
    # Where tokens differ, over the eight that count: 1, 1, -2, 0, 0, 0, 0, 4; the nines are masked.
    by_token = torch.tensor([[1.0, 1.0], [-2.0, 9.0], [0.0, 0.0], [0.0, 9.0], [0.0, 9.0], [4.0, 9.0]])
    assert figures(by_token) == {
        "advantage/mean": close(0.5),
        "advantage/std": close(math.sqrt(20 / 7)),  # squares 1 + 1 + 4 + 16 = 22, less 8 x 0.25, over 7
        "advantage/max": close(4.0),
    }


def test_completion_figures_by_hand():
    mask = torch.arange(4) < torch.tensor([[1], [4], [3], [4]])
    figures = floats(
        measure.completion_figures, rollouts_of([0.0] * 4, {}, 2, mask=mask, truncated=[False, True, False, False])
    )
    assert figures == {
        "completion/tokens/mean": 3.0,
        "completion/tokens/max": 4.0,
        "completion/truncated_frac": 0.25,
    }


def optimizer_step(**changes):
    values = {
        "loss": 1.0, "policy_loss": 0.5, "kl_loss": 5.0, "grad_norm": 2.0, "lr": 0.1, "ratio_sum": 4.0, "ratio_max": 1.5,
        "old_k3_sum": 0.2, "clipped_low": 1.0, "clipped_high": 0.0, "tokens": 4,
    }  # fmt: skip
    return OptimizerStep(**(values | changes))


def test_update_figures_by_hand():
    second = optimizer_step(
        loss=3.0, policy_loss=1.5, kl_loss=7.0, grad_norm=4.0, lr=0.2, ratio_sum=13.0, ratio_max=1.25, old_k3_sum=0.7,
        clipped_low=2.0, clipped_high=3.0, tokens=8, is_finite=False,
    )  # fmt: skip
    # Losses and norms: mean over the two optimizer steps. Per-token figures: sums over 4 + 8 tokens. The rate: the last one's.
    assert measure.update_figures([optimizer_step(), second]) == {
        "loss/total": 2.0,
        "loss/policy": 1.0,
        "loss/kl": 6.0,
        "optim/grad_norm": 3.0,
        "optim/lr": 0.2,
        "optim/skipped_updates": 1.0,
        "policy/ratio_mean": close(17 / 12),
        "policy/ratio_max": 1.5,
        "policy/clip_frac/low": close(3 / 12),
        "policy/clip_frac/high": close(3 / 12),
        "kl/old/k3": close(0.9 / 12),
        "policy/ess": 1.0,  # of no completion
        "policy/stale_frac": 0.0,
    }


def test_staleness_by_hand():
    # w = 1, 1 | 1, 3, 1/4: sizes 1 and (17/4)^2 / (3 (1 + 9 + 1/16)) = 289/483; two of five lie outside [1/2, 2].
    first = optimizer_step(log_weights=(0.0, 0.0))
    second = optimizer_step(log_weights=(0.0, math.log(3), -math.log(4)))
    figures = measure.update_figures([first, second, optimizer_step()])
    assert figures["policy/ess"] == close(289 / 483)
    assert figures["policy/stale_frac"] == close(2 / 5)
    # exp(800) is no number, their shares are.
    far = measure.update_figures([optimizer_step(log_weights=(800.0, 800.0 + LOG2))] * 2)
    assert far["policy/ess"] == close(9 / 10)
    assert not {"kl/old/k3", "policy/ess", "policy/stale_frac"} & measure.update_figures([first]).keys()  # of a single update


def test_the_weight_of_a_completion_is_the_product_of_the_ratios_of_its_loss_tokens():
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    log_ratio = torch.where(mask, float64([[0.5, 0.25], [-1.0, 7.0], [7.0, 7.0]]), 0.0)
    assert log_weights(log_ratio, mask) == (0.75, -1.0)


def test_reference_and_progress_figures():
    state = TrainingState(
        step=7,
        optimizer_step=14,
        prompts=70,
        tokens=900,
        generated_tokens=950,
        sync_count=2,
        last_sync_step=5,
        reference_lag=2.5,
    )
    assert measure.reference_figures(state, None, 0.5) == {
        "ref/synced": 0.0, "ref/sync_count": 2.0, "ref/steps_since_sync": 2.0, "ref/lag": 2.5, "ref/param_distance": 0.5,
    }  # fmt: skip
    sync = RefSync(step=7, alpha=1.0, sync_count=2, kl_before=0.3, kl_after=0.0, param_distance=0.5)
    with_sync = measure.reference_figures(state, sync, 0.5)
    assert (with_sync["ref/synced"], with_sync["ref/kl_before_sync"], with_sync["ref/kl_after_sync"]) == (1.0, 0.3, 0.0)
    assert measure.progress_figures(state) == {
        "progress/step": 7.0, "progress/optimizer_step": 14.0, "progress/prompts": 70.0, "progress/tokens": 900.0,
        "progress/generated_tokens": 950.0,
    }  # fmt: skip


def test_means_are_sums_and_counts_that_add_up_over_processes_and_become_floats_once():
    values = float64([[1.0, 2.0], [4.0, 100.0]])
    shares = [measure.token_mean(values[row : row + 1], MASK[row : row + 1]) for row in (0, 1)]
    whole = Mean(sum(one.total for one in shares), sum(one.count for one in shares))
    assert whole == measure.token_mean(values, MASK) == Mean(7.0, 3)
    assert measure.registry_figures([{"a": whole, "b": 2.0}]) == {"a": 7 / 3, "b": 2.0}
    assert measure.masked_mean(values, torch.zeros(2, 2, dtype=torch.bool)) == 0.0
