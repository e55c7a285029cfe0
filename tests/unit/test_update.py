"""Optimizer steps on known log-probabilities: what they report and what they do to the weights."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.algorithm.loss import Denominators, grpo_loss
from grpo_core.config import RunConfig
from grpo_core.policy.checkpoint import Trainable
from grpo_core.policy.reference import Reference
from grpo_core.training.batch import Rollouts, TrainingBatch, split_minibatches
from grpo_core.training.update import Updater
from grpo_core.types import Prompt
from tests.policies import policy_of

ADVANTAGES = [1.0, -1.0, 2.0, -2.0]


@pytest.fixture
def batch():
    """Two prompts, two completions each: 3, 1, 4 and 2 tokens."""
    mask = torch.arange(4) < torch.tensor([[3], [1], [4], [2]])
    prompts = [Prompt(id=index, content="", text="", token_ids=ids, columns={}) for index, ids in enumerate([(5, 6, 7), (8,)])]
    return Rollouts(
        prompts=tuple(prompts),
        group_size=2,
        texts=("",) * 4,
        completion_ids=torch.arange(20, 36).view(4, 4),
        completion_mask=mask,
        loss_mask=mask,
        truncated=torch.zeros(4, dtype=torch.bool),
        sampling_per_token_logps=torch.zeros(4, 4),
        rewards=torch.zeros(4),
        rewards_by_function={},
        group_advantages=torch.tensor(ADVANTAGES),
    )


def logps_of(model, batch):
    """[B, T] log-probabilities and entropies of all rows."""
    measured = policy_of(model).measure(batch)
    return measured.logps, measured.entropy


def trained_on(batch, ref_logps, old_logps, advantages=None):
    """The batch as the loss takes it, its advantages unshaped."""
    advantages = batch.group_advantages if advantages is None else advantages
    return TrainingBatch(rollouts=batch, advantages=advantages, ref_logps=ref_logps, old_logps=old_logps)


def updater(model, max_grad_norm=None, max_tokens=10_000, lr=0.0, factor=lambda index: 1.0, advantage=None, **loss):
    """Plain gradient descent, so that the step taken is the gradient."""
    policy, optimizer = policy_of(model, microbatch_tokens=max_tokens), SGD(model.parameters(), lr=lr)
    trainable = Trainable(policy=policy, reference=Reference(policy), optimizer=optimizer, schedule=LambdaLR(optimizer, factor))
    values = {
        "advantage": advantage or {},
        "loss": loss,
        "optimizer": {"max_grad_norm": max_grad_norm},
        "rollout": {"max_completion_tokens": 8},
        "training": {"seed": 0},
    }
    return Updater(trainable=trainable, config=RunConfig.model_validate(values))


def step_taken(model, batch, **options):
    """Return the report and the change of the weights, as one vector."""
    policy = copy.deepcopy(model)
    before = torch.cat([parameter.detach().flatten().clone() for parameter in policy.parameters()])
    logps, _ = logps_of(policy, batch)
    result = updater(policy, lr=1.0, **options).update(trained_on(batch, logps - 0.3, None), step=1)
    after = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
    return result, after - before


def test_what_an_optimizer_step_reports_by_hand(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    ratio = torch.tensor([[1.0, 1.5, 0.5, 9.0], [0.5, 9.0, 9.0, 9.0], [1.1, 2.0, 1.25, 0.9], [1.5, 0.6, 9.0, 9.0]])
    result = updater(tiny_model, epochs_per_rollout=2, beta=0.0, aggregation="token-mean").update(
        trained_on(batch, logps, logps - ratio.log()), step=1
    )
    report = result.steps[0]
    counted = ratio[batch.loss_mask]
    # 10 tokens: 1, 1.5, 0.5 | 0.5 | 1.1, 2, 1.25, 0.9 | 1.5, 0.6
    assert report.tokens == 10
    assert report.ratio_sum == pytest.approx(10.85, abs=1e-4)
    assert report.ratio_max == pytest.approx(2.0, abs=1e-5)
    # lower clip 0.8 with A < 0: 0.5 of row 1, 0.6 of row 3; upper clip 1.2 with A > 0: 1.5 of row 0, 2 and 1.25 of row 2
    assert (report.clipped_low, report.clipped_high) == (2.0, 3.0)
    assert report.old_k3_sum == pytest.approx(sum(r - 1 - math.log(r) for r in counted.tolist()), abs=1e-4)
    # minus the smaller gain, A = 1: -1, -1.2, -0.5; A = -1: 0.8; A = 2: -2.2, -2.4, -2.4, -1.8; A = -2: 3, 1.6; sum -6.1
    assert report.policy_loss == report.loss == pytest.approx(-0.61, abs=1e-5)
    assert report.kl_loss == pytest.approx(0.0, abs=1e-6)


def test_log_probabilities_and_exact_kl_are_of_the_temperature_scaled_policies(tiny_model, batch):
    reference = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    hot, other = policy_of(tiny_model, temperature=0.5), policy_of(reference, temperature=0.5)
    with torch.no_grad():
        plain, figures = hot.forward(batch, [2]), hot.forward(batch, [2], other)
        # Witness: row 2 is the second prompt's first completion, 4 tokens after 1; logits divided by 0.5, log-softmax.
        ids = torch.tensor([[*batch.prompts[1].token_ids, *batch.completion_ids[2].tolist()]])
        policy, ref = ((model(input_ids=ids).logits[0, :-1] / 0.5).log_softmax(-1) for model in (tiny_model, reference))
    torch.testing.assert_close(
        plain.logps[0], policy.gather(1, batch.completion_ids[2].unsqueeze(1)).squeeze(1), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(hot.logps(batch)[2], plain.logps[0], rtol=0, atol=1e-6)  # beside other rows
    torch.testing.assert_close(plain.entropy[0], -(policy.exp() * policy).sum(-1), rtol=0, atol=1e-5)
    torch.testing.assert_close(figures.full_kl[0], (policy.exp() * (policy - ref)).sum(-1), rtol=1e-3, atol=1e-6)
    assert torch.equal(figures.logps, plain.logps)
    assert torch.equal(figures.entropy, plain.entropy)
    beside, exact = other.logps_and_kl(batch, hot)
    assert torch.equal(beside, other.logps(batch))
    torch.testing.assert_close(exact[2], figures.full_kl[0], rtol=1e-4, atol=1e-6)


# Ratios of tokens that four rows of 3, 1, 4 and 2 tokens had since their rollout; the nines are masked.
STALE = torch.tensor([[1.0, 1.5, 0.5, 9.0], [1.6, 9.0, 9.0, 9.0], [1.1, 2.0, 1.25, 0.9], [1.5, 0.6, 9.0, 9.0]])


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": "sequence"},
        {"dual_clip": 1.3},
        {"clip_eps": 0.3},
        {"clip_eps_high": 0.6},
        {"kl_estimator": "k1"},
        {"kl_correction": "none"},
        {"aggregation": "token-mean"},
        {"aggregation": "seq-mean-token-sum-norm"},
        {"beta": 0.3},
    ],
    ids=lambda options: "-".join(map(str, options)) + "=" + "-".join(map(str, options.values())),
)
def test_each_option_of_the_loss_reaches_it(tiny_model, batch, options):
    logps, _ = logps_of(tiny_model, batch)
    ref_logps, old_logps = logps - 0.4 * STALE, logps - STALE.log()

    def witness(**changed):
        terms = grpo_loss(
            per_token_logps=logps,
            old_per_token_logps=old_logps,
            ref_per_token_logps=ref_logps,
            advantages=batch.group_advantages,
            loss_mask=batch.loss_mask,
            denominators=Denominators.of(batch.loss_mask, 8),
            **{"beta": 0.1, "kl_correction": "importance"} | changed,
        )
        return float(terms.total), float(terms.policy), float(terms.kl)

    settings = {"beta": 0.1} | options
    report = (
        updater(tiny_model, epochs_per_rollout=2, **settings).update(trained_on(batch, ref_logps, old_logps), step=1).steps[0]
    )
    reported = (report.loss, report.policy_loss, report.kl_loss)
    assert reported == pytest.approx(witness(**options), abs=1e-5)
    assert reported != pytest.approx(witness(), abs=1e-3)  # and the option makes a difference here


@pytest.mark.parametrize(("epochs", "minibatches", "needed"), [(1, 1, False), (2, 1, True), (1, 2, True), (2, 2, True)])
def test_only_a_single_update_can_do_without_the_old_logps(tiny_model, epochs, minibatches, needed):
    one = updater(tiny_model, epochs_per_rollout=epochs, minibatches=minibatches)
    assert one.needs_old_logps == needed


def test_the_first_logps_are_those_before_the_later_epochs(tiny_model, batch):
    logps, entropy = logps_of(tiny_model, batch)
    result = updater(tiny_model, lr=0.5, epochs_per_rollout=2).update(trained_on(batch, logps, logps), step=1)
    assert result.steps[1].old_k3_sum > 1e-3  # the second epoch's pass is of another policy
    torch.testing.assert_close(result.first.logps, logps, rtol=0, atol=1e-5)
    torch.testing.assert_close(result.first.entropy, entropy, rtol=0, atol=1e-5)


def test_a_single_update_uses_its_own_logps_as_the_old_ones(tiny_model, batch):
    result, _ = step_taken(tiny_model, batch)
    logps, entropy = logps_of(tiny_model, batch)
    assert torch.equal(result.first.logps, logps)
    assert torch.equal(result.first.entropy, entropy)
    (report,) = result.steps
    assert (report.ratio_sum, report.ratio_max, report.old_k3_sum) == (10.0, 1.0, 0.0)


def test_the_step_is_the_gradient_of_the_written_out_loss(tiny_model, batch):
    result, change = step_taken(tiny_model, batch, beta=0.1, kl_correction="none")
    # Witness: mean over 4 completions of the token mean of -A logp + 0.1 k3, log r = -0.3, by autograd over all rows.
    logps = policy_of(tiny_model).forward(batch, range(4)).logps
    log_ratio = (logps.detach() - 0.3) - logps
    per_token = -torch.tensor(ADVANTAGES).unsqueeze(1) * logps + 0.1 * (log_ratio.exp() - 1 - log_ratio)
    loss = (per_token * batch.loss_mask / torch.tensor([[3.0], [1.0], [4.0], [2.0]])).sum() / 4
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(tiny_model.parameters()))])
    torch.testing.assert_close(change, -gradient, rtol=0, atol=1e-6)
    assert result.steps[0].grad_norm == pytest.approx(float(gradient.norm()), rel=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 12])
def test_micro_batches_leave_the_step_unchanged(tiny_model, batch, max_tokens):
    whole, whole_change = step_taken(tiny_model, batch)
    cut, cut_change = step_taken(tiny_model, batch, max_tokens=max_tokens)
    torch.testing.assert_close(cut_change, whole_change, rtol=0, atol=1e-6)
    torch.testing.assert_close(cut.first.logps, whole.first.logps, rtol=0, atol=1e-5)
    assert cut.steps[0].loss == pytest.approx(whole.steps[0].loss, abs=1e-6)


def test_the_gradient_is_scaled_down_to_the_limit_and_reported_as_it_was(tiny_model, batch):
    free, free_change = step_taken(tiny_model, batch)
    held, held_change = step_taken(tiny_model, batch, max_grad_norm=0.01)
    assert held.steps[0].grad_norm == free.steps[0].grad_norm > 0.01
    assert float(held_change.norm()) == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(held_change / held_change.norm(), free_change / free_change.norm(), rtol=0, atol=1e-5)


def test_each_minibatch_is_a_mean_over_its_own_rows(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    result = updater(tiny_model, minibatches=2, beta=0.0).update(trained_on(batch, logps, logps), step=1)
    shares = split_minibatches(4, 2, seed=0, step=1, epoch=0)
    for report, rows in zip(result.steps, shares, strict=True):
        # The ratio is 1, so a row's token mean is minus its advantage.
        assert report.policy_loss == pytest.approx(-sum(ADVANTAGES[row] for row in rows) / 2, abs=1e-5)


def test_the_schedule_advances_with_every_optimizer_step(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    halving = updater(tiny_model, lr=0.5, factor=lambda index: 0.5**index, epochs_per_rollout=3)
    assert [report.lr for report in halving.update(trained_on(batch, logps, logps), step=1).steps] == [0.5, 0.25, 0.125]


def test_the_exact_kl_enters_the_loss_with_its_gradient(tiny_model, batch):
    reference = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    one = updater(tiny_model, lr=1.0, kl_estimator="full", beta=0.5, max_tokens=12)
    one.trainable.reference.hand_over(reference)
    before = [parameter.detach().clone() for parameter in tiny_model.parameters()]

    def exact(model, row):
        # Witness: the plain forward pass of prompt and completion, log-softmax over the whole vocabulary.
        prompt, length = batch.prompts[row // 2].token_ids, int(batch.completion_mask[row].sum())
        ids = torch.tensor([[*prompt, *batch.completion_ids[row, :length].tolist()]])
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)

    witness, surrogate = 0.0, 0.0
    for row, advantage in enumerate(ADVANTAGES):
        policy, ref = exact(tiny_model, row), exact(reference, row).detach()
        length = policy.shape[0]
        chosen = policy.gather(1, batch.completion_ids[row, :length].unsqueeze(1)).squeeze(1)
        witness = witness + (policy.exp() * (policy - ref)).sum(-1).mean() / 4
        surrogate = surrogate - advantage * chosen.mean() / 4
    gradient = torch.autograd.grad(surrogate + 0.5 * witness, list(tiny_model.parameters()))
    result = one.update(trained_on(batch, logps_of(reference, batch)[0], None), step=1)
    assert result.steps[0].kl_loss == pytest.approx(float(witness.detach()), rel=1e-4)
    for parameter, old, part in zip(tiny_model.parameters(), before, gradient, strict=True):
        torch.testing.assert_close(parameter.detach() - old, -part, rtol=0, atol=2e-6)


def test_kl_as_a_reward_changes_the_advantages_and_leaves_the_loss_without_it(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    one = updater(tiny_model, kl_placement="reward", kl_estimator="k1", beta=0.1)
    one.steered.beta = 0.5
    assert one.needs_old_logps
    shaped = one.prepare(batch, logps - 0.2, logps)
    # k1 is 0.2 at every token, so a token with n tokens to go (itself included) loses 0.5 * 0.2 n
    to_go = batch.loss_mask.flip(1).cumsum(1).flip(1) * batch.loss_mask
    expected = (torch.tensor(ADVANTAGES).unsqueeze(1) - 0.1 * to_go) * batch.loss_mask
    torch.testing.assert_close(shaped.advantages, expected, rtol=0, atol=1e-5)
    report = one.update(shaped, step=1).steps[0]
    assert report.kl_loss == pytest.approx(0.2, abs=1e-5)
    assert report.loss == report.policy_loss


def test_rows_that_are_filtered_leave_the_loss_and_its_denominators(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    kept = torch.tensor([True, False, True, False]).unsqueeze(1)
    part = replace(batch, loss_mask=batch.loss_mask & kept)
    report = updater(tiny_model, beta=0.0).update(trained_on(part, logps, None), step=1).steps[0]
    assert report.policy_loss == pytest.approx(-(ADVANTAGES[0] + ADVANTAGES[2]) / 2, abs=1e-6)
    assert report.tokens == 7


def test_an_optimizer_step_without_any_token_moves_nothing_but_the_schedule(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    empty = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    optimizer = AdamW(tiny_model.parameters(), lr=0.01, weight_decay=0.1)
    plain = updater(tiny_model)
    trainable = replace(plain.trainable, optimizer=optimizer, schedule=LambdaLR(optimizer, lambda index: 1.0))
    learner = replace(plain, trainable=trainable)
    learner.update(
        trained_on(batch, logps, None), step=1
    )  # from here on AdamW has momentum, which moves weights without a gradient
    before = copy.deepcopy(tiny_model)
    report = learner.update(trained_on(empty, logps, None), step=2).steps[0]
    assert (report.loss, report.grad_norm, report.tokens, report.ratio_max) == (0.0, 0.0, 0, 0.0)
    assert all(torch.equal(one, two) for one, two in zip(before.parameters(), tiny_model.parameters(), strict=True))
    assert learner.trainable.schedule.last_epoch == 2


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_an_update_that_is_not_finite_is_not_applied(tiny_model, batch, wrong):
    logps, _ = logps_of(tiny_model, batch)
    broken = replace(batch, group_advantages=torch.tensor([1.0, wrong, 2.0, -2.0]))
    before = copy.deepcopy(tiny_model)
    learner = updater(tiny_model, lr=0.1, max_tokens=1)
    report = learner.update(trained_on(broken, logps, None), step=1).steps[0]
    assert not report.is_finite
    assert all(torch.equal(one, two) for one, two in zip(before.parameters(), tiny_model.parameters(), strict=True))
    assert learner.update(trained_on(batch, logps, None), step=2).steps[0].is_finite
    assert all(bool(parameter.isfinite().all()) for parameter in tiny_model.parameters())


def test_without_beta_the_exact_kl_costs_no_pass_and_is_measured_as_k3(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    reports = [
        updater(tiny_model, beta=0.0, kl_estimator=estimator).update(trained_on(batch, logps + 0.3, None), step=1).steps[0]
        for estimator in ("full", "k3")
    ]
    assert reports[0] == reports[1]
    assert reports[0].kl_loss > 0


def test_a_completion_that_no_reward_could_score_is_not_whitened(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    rewards = torch.tensor([1.0, math.nan, 2.0, 0.0])
    part = replace(batch, rewards=rewards, group_advantages=torch.tensor([1.0, 0.0, 2.0, -2.0]))
    shaped = updater(tiny_model, advantage={"whiten_advantages": True}).prepare(part, logps, None).advantages
    assert shaped[1].tolist() == [0.0] * 4
    tokens = shaped[part.loss_mask & part.scorable.unsqueeze(1)]
    assert float(tokens.mean()) == pytest.approx(0, abs=1e-6)
    assert float(tokens.std(correction=1)) == pytest.approx(1, abs=1e-6)


def test_the_samplers_weights_multiply_the_surrogate_alone(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    drifted = replace(batch, sampling_per_token_logps=logps + math.log(2))
    options = {"beta": 0.1, "sampler_correction": "truncate"}
    report = updater(tiny_model, **options).update(trained_on(drifted, logps - 0.3, None), step=1).steps[0]
    plain = updater(tiny_model, beta=0.1).update(trained_on(drifted, logps - 0.3, None), step=1).steps[0]
    assert report.policy_loss == pytest.approx(plain.policy_loss / 2, abs=1e-6)
    assert report.kl_loss == pytest.approx(plain.kl_loss, abs=1e-6)


def test_the_samplers_weights_compare_it_with_the_policy_of_the_rollouts_not_the_updated_one(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    old_logps = logps - STALE.log()
    # The sampler was twice as sure as the trainer was then, so each token weighs 1/2, whatever the ratio is by now.
    drifted = replace(batch, sampling_per_token_logps=old_logps + math.log(2))
    reports = [
        updater(tiny_model, beta=0.0, epochs_per_rollout=2, sampler_correction=correction).update(
            trained_on(drifted, logps, old_logps), step=1
        )
        for correction in ("truncate", "none")
    ]
    corrected, plain = (result.steps[0].policy_loss for result in reports)
    assert corrected == pytest.approx(plain / 2, abs=1e-6)
    assert abs(plain) > 0.1


def with_advantages(batch, values):
    return replace(batch, group_advantages=torch.tensor(values))


def rows_with_gradient(model, batch, monkeypatch, **loss):
    """Return the rows of each pass, by whether it had a gradient, and what the update did."""
    passes, right = {True: [], False: []}, policy_of(model).__class__.forward

    def noted(policy, rollouts, rows, reference=None):
        passes[torch.is_grad_enabled()].extend(rows)
        return right(policy, rollouts, rows, reference)

    with monkeypatch.context() as patch:
        patch.setattr("grpo_core.policy.policy.Policy.forward", noted)
        result, change = step_taken(model, batch, **loss)
    return passes, result, change


@pytest.mark.parametrize("max_tokens", [10_000, 8])
def test_rows_that_pull_at_nothing_are_run_without_gradient(tiny_model, batch, monkeypatch, max_tokens):
    some = with_advantages(batch, [0.0, 0.0, 2.0, -2.0])
    passes, result, change = rows_with_gradient(tiny_model, some, monkeypatch, beta=0.0, max_tokens=max_tokens)
    assert (sorted(passes[True]), sorted(passes[False])) == ([2, 3], [0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(Updater, "_split", lambda self, batch, rows: (rows, []))
        expected, whole_change = step_taken(tiny_model, some, beta=0.0, max_tokens=max_tokens)
    torch.testing.assert_close(change, whole_change, rtol=0, atol=3e-7)  # weights near 1 are rounded by 1e-7
    torch.testing.assert_close(result.first.logps, expected.first.logps, rtol=0, atol=1e-6)
    torch.testing.assert_close(result.first.entropy, expected.first.entropy, rtol=0, atol=1e-5)
    (found,), (wanted,) = result.steps, expected.steps
    for name in ("loss", "policy_loss", "kl_loss", "grad_norm", "ratio_sum", "clipped_low", "clipped_high", "tokens"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("advantages", "loss"),
    [
        ([0.0, 0.0, 2.0, -2.0], {"beta": 0.1}),  # the KL term pulls at every row
        ([0.0] * 4, {"beta": 0.0}),  # and momentum at the weights: they need a gradient, though it is 0
    ],
)
def test_rows_that_pull_at_something_are_run_with_gradient(tiny_model, batch, monkeypatch, advantages, loss):
    passes, _, change = rows_with_gradient(tiny_model, with_advantages(batch, advantages), monkeypatch, **loss)
    assert (sorted(passes[True]), passes[False]) == ([0, 1, 2, 3], [])
    assert bool(change.any()) is (loss["beta"] > 0)
