"""The drift of a step against its truth, on policies small enough that every completion of every prompt can be listed."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor

from grpo_core.algorithm.kl import full_kl
from grpo_core.training import measure

PROMPTS, VOCABULARY, LENGTH, END = 200, 5, 3, 0
STEP_PROMPTS, COMPLETIONS, STEPS = 12, 6, 400


@dataclass(frozen=True)
class Listed:
    """All completions of all prompts: [prompts, completions, tokens] of the policy and of the initial one, and the truth."""

    log_ratio: Tensor
    exact: Tensor
    mask: Tensor
    chances: Tensor
    truth: float


@pytest.fixture(scope="module")
def listed() -> Listed:
    """Return a policy that has been sharpened: it gives most of its probability to the tokens that it has learned."""
    random = torch.Generator().manual_seed(0)
    shape = (PROMPTS, LENGTH, VOCABULARY, VOCABULARY)  # by place and by the token before
    initial = torch.randn(shape, generator=random, dtype=torch.float64)
    learned = torch.randn((PROMPTS, 1, 1, VOCABULARY), generator=random, dtype=torch.float64)
    pair = [logits.log_softmax(-1) for logits in (4 * (initial + learned), initial)]
    rows = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
    before = torch.cat([torch.zeros(len(rows), 1, dtype=torch.long), rows[:, :-1]], dim=1)
    mask = torch.cat([torch.ones(len(rows), 1), (rows[:, :-1] != END).cumprod(dim=1)], dim=1).bool()
    at, places = torch.arange(PROMPTS)[:, None, None], torch.arange(LENGTH)
    policy, other = (logps[at, places, before, rows] for logps in pair)
    exact = full_kl(*pair)[at, places, before]
    chances = policy.sum(dim=2).exp()  # after the end a row goes on; what follows adds up to 1 and is masked
    truth = (chances * (exact * mask).sum(dim=2)).sum() / (chances * mask.sum(dim=1)).sum()
    return Listed(log_ratio=other - policy, exact=exact, mask=mask, chances=chances, truth=float(truth))


@pytest.fixture(scope="module")
def steps(listed: Listed) -> list[measure.Figures]:
    """Return what is measured of many steps, of other prompts and completions each."""
    random, found = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        prompts = torch.randperm(PROMPTS, generator=random)[:STEP_PROMPTS].repeat_interleave(COMPLETIONS)
        rows = torch.multinomial(listed.chances[prompts], 1, generator=random).squeeze(1)
        exact, log_ratio = listed.exact[prompts, rows], listed.log_ratio[prompts, rows]
        found.append(measure.registry_figures([measure.drift_figures(log_ratio, exact, listed.mask[rows], prompts)]))
    return found


def errors(listed: Listed, steps: list[measure.Figures], key: str) -> tuple[float, float]:
    """Return bias and root mean square of the error, as shares of the truth."""
    off = torch.tensor([step[key] for step in steps], dtype=torch.float64) / listed.truth - 1
    return float(off.mean()), float(off.square().mean().sqrt())


def coverage(listed: Listed, steps: list[measure.Figures], key: str) -> float:
    wide = stats.t(STEP_PROMPTS - 1).ppf(0.975)
    return sum(abs(step[key] - listed.truth) <= wide * step[f"{key}_se"] for step in steps) / len(steps)


@pytest.mark.parametrize("key", ["k1", "full"])
def test_k1_and_the_exact_sum_are_unbiased_and_their_intervals_cover(
    listed: Listed, steps: list[measure.Figures], key: str
) -> None:
    bias, error = errors(listed, steps, key)
    assert abs(bias) < 3 * error / STEPS**0.5
    assert coverage(listed, steps, key) >= 0.9


def test_the_exact_sum_is_at_least_as_near_as_k1_and_k3_is_far_off(listed: Listed, steps: list[measure.Figures]) -> None:
    (_, of_exact), (_, of_k1), (_, of_k3) = (errors(listed, steps, key) for key in ("full", "k1", "k3"))
    assert of_exact <= of_k1 < of_k3 / 2
    assert sum(step["k3"] < listed.truth for step in steps) > STEPS / 2  # its median is below: most steps have no such token
