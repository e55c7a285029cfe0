"""The gradient noise scale: on gradients whose covariance is known, and the squares that it is made of on a model."""

import copy
import math

import numpy as np
import pytest
import torch

from grpo_core.config import RunConfig, check_consistency
from grpo_core.errors import ConfigError
from grpo_core.training.noise import noise_figures
from tests.unit.test_update import ADVANTAGES, batch, logps_of, trained_on, updater

assert batch  # the fixture


def test_the_means_of_both_parts_are_the_truth_of_gradients_with_a_known_covariance() -> None:
    random, truth, deviations = np.random.default_rng(0), np.array([0.3, -0.2, 0.1]), np.array([1.0, 0.5, 2.0])
    steps = []
    for _ in range(4000):
        of_prompts = truth + deviations * random.standard_normal((6, 3))
        whole = of_prompts.mean(axis=0)
        steps.append(noise_figures([float(one @ one) for one in of_prompts], float(whole @ whole)))
    variance, signal = ([float(step[f"optim/{name}"]) for step in steps] for name in ("grad_variance", "grad_signal"))
    for found, wanted in ((variance, 5.25), (signal, 0.14)):
        assert np.mean(found) == pytest.approx(wanted, abs=4 * np.std(found) / math.sqrt(len(found)))
    assert np.mean(variance) / np.mean(signal) == pytest.approx(5.25 / 0.14, rel=0.3)
    assert all(("optim/noise_scale" in step) == (step["optim/grad_signal"] > 0) for step in steps)


def test_by_hand() -> None:
    # Gradients (3, 0) and (1, 0), their mean (2, 0): |G|^2 = (2 x 4 - 5) / 1, S = (5 - 4) / (1/2)
    assert noise_figures([9.0, 1.0], 4.0) == {
        "optim/grad_signal": 3.0,
        "optim/grad_variance": 2.0,
        "optim/noise_scale": pytest.approx(2 / 3),
    }
    assert noise_figures([], 4.0) == {}
    assert noise_figures([math.inf, 1.0], 4.0) == {}


def test_the_squares_are_those_of_each_prompts_own_gradient(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    found = updater(tiny_model, beta=0.0, max_tokens=1).prompt_squares(trained_on(batch, logps, None))
    assert all(parameter.grad is None for parameter in tiny_model.parameters())
    whole = []
    for first in (0, 2):  # witness: one row at a time, prompt and all, through the model as it is
        losses = []
        for row in (first, first + 1):
            prompt, ids = batch.prompts[first // 2].token_ids, batch.completion_ids[row][batch.completion_mask[row]]
            logits = tiny_model(input_ids=torch.tensor([[*prompt, *ids.tolist()]])).logits[0, len(prompt) - 1 : -1]
            losses.append(-ADVANTAGES[row] * logits.log_softmax(-1).gather(1, ids.unsqueeze(1)).mean())
        whole.append(torch.cat([one.flatten() for one in torch.autograd.grad(sum(losses) / 2, list(tiny_model.parameters()))]))
    assert found == pytest.approx([float(one.square().sum()) for one in whole], rel=1e-4)
    norm = updater(copy.deepcopy(tiny_model), beta=0.0).update(trained_on(batch, logps, None), step=1).steps[0].grad_norm
    assert norm == pytest.approx(float((sum(whole) / 2).norm()), rel=1e-4)


@pytest.mark.parametrize("changes", [{"loss": {"minibatches": 2}}, {"rollout": {"num_prompts_per_step": 1}}])
def test_it_needs_whole_steps_of_several_prompts(changes):
    config = RunConfig.model_validate({"training": {"noise_scale_every": 5}, **changes})
    with pytest.raises(ConfigError, match=r"training.noise_scale_every: 5 needs loss.minibatches 1"):
        check_consistency(config)
