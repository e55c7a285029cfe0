"""The learning rate by hand: warm-up, then constant, linear or cosine."""

import pytest
import torch

from grpo_core.config import OptimizerConfig
from grpo_core.training.update import build_optimizer, lr_factor


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "total_steps", "expected"),
    [
        ("constant", 0, 4, [1.0] * 4),
        ("constant", 4, 6, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),  # its last step of warm-up is the full rate
        ("linear", 2, 6, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),  # 4 steps left: 1, 3/4, 2/4, 1/4, and 0 from then on
        ("cosine", 0, 3, [1.0, 0.75, 0.25, 0.0, 0.0, 0.0]),  # (1 + cos x) / 2 at 0, 60, 120, 180 degrees; then it stays 0
        ("cosine", 1, 3, [1.0, 1.0, 0.5, 0.0]),
    ],
)
def test_the_rate_warms_up_linearly_and_follows_its_schedule(schedule, warmup_steps, total_steps, expected):
    factor = lr_factor(OptimizerConfig(schedule=schedule, warmup_steps=warmup_steps), total_steps)
    assert [factor(index) for index in range(len(expected))] == pytest.approx(expected, abs=1e-15)


def test_the_optimizer_follows_the_schedule(tiny_model):
    config = OptimizerConfig(lr=0.8, schedule="linear", warmup_steps=2, weight_decay=0.3, adam_betas=(0.5, 0.75))
    optimizer, schedule = build_optimizer(tiny_model, config, total_steps=4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.4, 0.8, 0.8, 0.4], abs=1e-15)
    assert (optimizer.param_groups[0]["weight_decay"], optimizer.param_groups[0]["betas"]) == (0.3, (0.5, 0.75))


def test_frozen_weights_are_left_out(tiny_model):
    tiny_model.get_input_embeddings().requires_grad_(False)
    optimizer, _ = build_optimizer(tiny_model, OptimizerConfig(), total_steps=1)
    (group,) = optimizer.param_groups
    assert len(group["params"]) == len(list(tiny_model.parameters())) - 1
    assert all(parameter is not tiny_model.get_input_embeddings().weight for parameter in group["params"])


def test_a_first_step_of_adam_moves_each_weight_by_the_learning_rate(tiny_model):
    # m / sqrt(v) = g / |g| after bias correction, so the step is lr times the sign of the gradient.
    optimizer, _ = build_optimizer(tiny_model, OptimizerConfig(lr=0.01), total_steps=1)
    before = [parameter.detach().clone() for parameter in tiny_model.parameters()]
    for parameter in tiny_model.parameters():
        parameter.grad = torch.where(torch.rand(parameter.shape) > 0.5, 2.0, -0.5)
    optimizer.step()
    for parameter, old in zip(tiny_model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.01 * parameter.grad.sign(), rtol=0, atol=1e-6)
