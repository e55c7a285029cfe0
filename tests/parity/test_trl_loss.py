"""The loss against TRL's own `GRPOTrainer._compute_loss` on the same tensors, in value and in gradient."""

from collections import defaultdict
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


def trl_trainer(logps, loss_type, beta, clip_eps, clip_eps_high):
    """A GRPOTrainer that was never initialised: only what `_compute_loss` reads, and a forward pass that returns `logps`."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer = object.__new__(GRPOTrainer)
    trainer._get_per_token_logps_and_entropies = lambda *arguments, **options: (logps, torch.zeros_like(logps), None)
    trainer.accelerator = SimpleNamespace(
        num_processes=1, gather=lambda values: values, reduce=lambda values, reduction: values
    )
    trainer.args = SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1)
    trainer.model = SimpleNamespace(training=True)
    trainer._metrics = {"train": defaultdict(list)}
    trainer.current_gradient_accumulation_steps = 1
    trainer.importance_sampling_level = "token"
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = trainer.use_vllm = False
    trainer.top_entropy_quantile = 1.0
    trainer.off_policy_mask_threshold = None
    trainer.max_completion_length = MAX_COMPLETION_TOKENS
    trainer.loss_type, trainer.beta = loss_type, beta
    trainer.epsilon_low, trainer.epsilon_high = clip_eps, clip_eps if clip_eps_high is None else clip_eps_high
    return trainer


def trl_loss(tensors, old, loss_type, beta, clip_eps, clip_eps_high):
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
    trainer = trl_trainer(logps, loss_type, beta, clip_eps, clip_eps_high)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), logps.grad, {key: values[0] for key, values in trainer._metrics["train"].items()}


def our_loss(tensors, old, loss_type, beta, clip_eps, clip_eps_high):
    logps = tensors["logps"].clone().requires_grad_()
    terms = grpo_loss(
        per_token_logps=logps,
        old_per_token_logps=logps.detach() if old is None else old,
        ref_per_token_logps=tensors["ref"],
        advantages=tensors["advantages"],
        loss_mask=tensors["mask"],
        denominators=Denominators.of(tensors["mask"], MAX_COMPLETION_TOKENS),
        beta=beta,
        clip_eps=clip_eps,
        clip_eps_high=clip_eps_high,
        aggregation=TRL_NAMES[loss_type],
    )
    terms.total.backward()
    return terms.total.detach(), logps.grad


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("beta", [0.0, 0.04, 1.0])
@pytest.mark.parametrize("clip_eps_high", [None, 0.28])
def test_value_and_gradient_are_trls_off_policy(tensors, loss_type, beta, clip_eps_high):
    theirs = trl_loss(tensors, tensors["old"], loss_type, beta, 0.2, clip_eps_high)
    ours = our_loss(tensors, tensors["old"], loss_type, beta, 0.2, clip_eps_high)
    torch.testing.assert_close(ours, theirs[:2], rtol=0, atol=TOLERANCE)
    # Both clips really act on these tensors.
    assert theirs[2]["clip_ratio/low_mean"] > 0
    assert theirs[2]["clip_ratio/high_mean"] > 0


@pytest.mark.parametrize("loss_type", TRL_NAMES)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_value_and_gradient_are_trls_on_policy(tensors, loss_type, beta):
    theirs = trl_loss(tensors, None, loss_type, beta, 0.2, None)
    torch.testing.assert_close(our_loss(tensors, None, loss_type, beta, 0.2, None), theirs[:2], rtol=0, atol=TOLERANCE)


def test_trls_kl_figure_is_the_token_mean_of_k3(tensors):
    from grpo_core.algorithm.kl import k3
    from grpo_core.training.measure import masked_mean

    figure = trl_loss(tensors, None, "grpo", 0.04, 0.2, None)[2]["kl"]
    assert masked_mean(k3(tensors["ref"] - tensors["logps"]), tensors["mask"]) == pytest.approx(figure, rel=1e-6)
