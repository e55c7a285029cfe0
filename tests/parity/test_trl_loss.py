"""The loss against TRL's own `GRPOTrainer._compute_loss` on the same tensors, in value and in gradient."""

from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from grpo_core.algorithm.loss import Denominators, grpo_loss

ROWS, WIDTH, MAX_COMPLETION_TOKENS = 5, 6, 9
TOLERANCE = 1e-12
TRL_NAMES = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}


@pytest.fixture
def tensors():
    """Ragged completions with at least one token each: TRL counts an empty row in the mean, this project does not."""
    generator = torch.Generator().manual_seed(3)

    def noise(scale):
        return scale * torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)

    logps = noise(1.0) - 3
    return {
        "logps": logps,
        "old": logps + noise(0.3),  # wide enough for every side of the clip
        "ref": logps + noise(0.5),
        "advantages": torch.tensor([1.2, -0.7, 0.4, -1.5, 0.0], dtype=torch.float64),
        "mask": torch.arange(WIDTH) < torch.tensor([[6], [3], [1], [5], [4]]),
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """One objective, in both systems' words."""

    loss_type: str = "grpo"
    beta: float = 0.04
    clip_eps: float = 0.2
    clip_eps_high: float | None = None
    dual_clip: float | None = None
    ratio: str = "token"
    correction: str = "none"


def trl_trainer(logps, case):
    """A GRPOTrainer that was never initialised: only what `_compute_loss` reads, and a forward pass that returns `logps`."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer = object.__new__(GRPOTrainer)
    trainer._get_per_token_logps_and_entropies = lambda *arguments, **options: (logps, torch.zeros_like(logps), None)
    trainer.accelerator = SimpleNamespace(
        num_processes=1, gather=lambda values: values, reduce=lambda values, reduction: values
    )
    trainer.args = SimpleNamespace(
        use_bias_correction_kl=case.correction == "importance", delta=case.dual_clip, steps_per_generation=1
    )
    trainer.model = SimpleNamespace(training=True)
    trainer._metrics = {"train": defaultdict(list)}
    trainer.current_gradient_accumulation_steps = 1
    trainer.importance_sampling_level = case.ratio
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = trainer.use_vllm = False
    trainer.top_entropy_quantile = 1.0
    trainer.off_policy_mask_threshold = None
    trainer.max_completion_length = MAX_COMPLETION_TOKENS
    trainer.loss_type, trainer.beta = case.loss_type, case.beta
    trainer.epsilon_low = case.clip_eps
    trainer.epsilon_high = case.clip_eps if case.clip_eps_high is None else case.clip_eps_high
    return trainer


def trl_loss(tensors, old, case):
    logps = tensors["logps"].clone().requires_grad_()
    mask = tensors["mask"].long()
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": tensors["advantages"],
        "ref_per_token_logps": tensors["ref"],
        "old_per_token_logps": old,
        "num_items_in_batch": mask.sum(),
    }
    trainer = trl_trainer(logps, case)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), logps.grad, {key: values[0] for key, values in trainer._metrics["train"].items()}


def our_loss(tensors, old, case):
    logps = tensors["logps"].clone().requires_grad_()
    terms = grpo_loss(
        per_token_logps=logps,
        old_per_token_logps=logps.detach() if old is None else old,
        ref_per_token_logps=tensors["ref"],
        advantages=tensors["advantages"],
        loss_mask=tensors["mask"],
        denominators=Denominators.of(tensors["mask"], MAX_COMPLETION_TOKENS),
        beta=case.beta,
        clip_eps=case.clip_eps,
        clip_eps_high=case.clip_eps_high,
        dual_clip=case.dual_clip,
        ratio=case.ratio,
        kl_correction=case.correction,
        aggregation=TRL_NAMES[case.loss_type],
    )
    terms.total.backward()
    return terms.total.detach(), logps.grad


def assert_equal(tensors, old, case):
    """Return TRL's own figures after comparing value and gradient."""
    theirs = trl_loss(tensors, old, case)
    torch.testing.assert_close(our_loss(tensors, old, case), theirs[:2], rtol=0, atol=TOLERANCE)
    return theirs[2]


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("beta", [0.0, 0.04, 1.0])
@pytest.mark.parametrize("clip_eps_high", [None, 0.28])
def test_value_and_gradient_are_trls_off_policy(tensors, loss_type, beta, clip_eps_high):
    figures = assert_equal(tensors, tensors["old"], Case(loss_type=loss_type, beta=beta, clip_eps_high=clip_eps_high))
    # Both clips really act on these tensors.
    assert figures["clip_ratio/low_mean"] > 0
    assert figures["clip_ratio/high_mean"] > 0


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_value_and_gradient_are_trls_on_policy(tensors, loss_type, beta):
    assert_equal(tensors, None, Case(loss_type=loss_type, beta=beta))


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_the_sequence_ratio_is_trls(tensors, loss_type, beta):
    figures = assert_equal(tensors, tensors["old"], Case(loss_type=loss_type, beta=beta, ratio="sequence", clip_eps=0.05))
    assert figures["clip_ratio/low_mean"] + figures["clip_ratio/high_mean"] > 0


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("dual_clip", [1.25, 1.5])
def test_the_dual_clip_is_trls_delta_above_the_upper_clip(tensors, loss_type, dual_clip):
    case = Case(loss_type=loss_type, dual_clip=dual_clip)
    assert_equal(tensors, tensors["old"], case)
    without = our_loss(tensors, tensors["old"], replace(case, dual_clip=None))
    assert not torch.equal(our_loss(tensors, tensors["old"], case)[1], without[1])  # the cap really acts


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("beta", [0.04, 1.0])
def test_the_corrected_kl_is_trls_on_and_off_policy(tensors, loss_type, beta):
    case = Case(loss_type=loss_type, beta=beta, correction="importance")
    assert_equal(tensors, tensors["old"], case)
    assert_equal(tensors, None, case)
    plain = our_loss(tensors, None, replace(case, correction="none"))
    assert not torch.allclose(our_loss(tensors, None, case)[1], plain[1])  # another gradient, even on-policy


def test_under_the_sequence_ratio_trl_weights_the_kl_by_the_sequences_ratio(tensors):
    """The one departure, on purpose: the KL of a token is corrected by the token's own ratio (docs/algorithm.md)."""
    case = Case(ratio="sequence", correction="importance", beta=1.0)
    assert not torch.allclose(our_loss(tensors, tensors["old"], case)[0], trl_loss(tensors, tensors["old"], case)[0])


def test_trls_kl_figure_is_the_token_mean_of_k3(tensors):
    from grpo_core.algorithm.kl import k3
    from grpo_core.training.measure import masked_mean

    figure = trl_loss(tensors, None, Case())[2]["kl"]
    assert masked_mean(k3(tensors["ref"] - tensors["logps"]), tensors["mask"]) == pytest.approx(figure, rel=1e-6)
