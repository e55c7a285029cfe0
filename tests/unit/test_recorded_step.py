"""What a step reports of the drift of a real policy: the quickstart's at step 50, as `benchmarks/recorded_step.py` saw it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from grpo_core.training.measure import clustered_standard_error, masked_mean

FILE = Path(__file__).parents[1] / "data" / "quickstart_step50.npz"
PROMPTS, COMPLETIONS, STEPS = 12, 6, 500


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(FILE) as arrays:
        return dict(arrays)


def drifts(recorded: dict[str, np.ndarray], key: str) -> tuple[float, np.ndarray]:
    """Return (the truth, [steps, 2]: drift and standard error of steps of some prompts and completions), nats a token."""
    random, rows_of = (
        np.random.default_rng(0),
        {one: np.flatnonzero(recorded["prompt"] == one) for one in set(recorded["prompt"])},
    )
    found = []
    for _ in range(STEPS):
        prompts = random.choice(sorted(rows_of), PROMPTS, replace=False)
        rows = np.concatenate([random.choice(rows_of[one], COMPLETIONS, replace=False) for one in prompts])
        tokens = torch.tensor(recorded["tokens"][rows])
        # A completion's sum, spread over its tokens: the figures see sums alone.
        values = (torch.tensor(recorded[key][rows]) / tokens)[:, None].repeat(1, int(tokens.max()))
        mask, clusters = torch.arange(int(tokens.max())) < tokens[:, None], torch.tensor(recorded["prompt"][rows])
        found.append((masked_mean(values, mask), clustered_standard_error(values, mask, clusters)))
    return float(recorded["full"].sum() / recorded["tokens"].sum()), np.array(found)


def error_and_coverage(recorded: dict[str, np.ndarray], key: str) -> tuple[float, float]:
    truth, found = drifts(recorded, key)
    off = found[:, 0] - truth
    covers = np.abs(off) <= stats.t(PROMPTS - 1).ppf(0.975) * found[:, 1]
    return float(np.sqrt(np.mean(off**2)) / truth), float(covers.mean())


@pytest.mark.parametrize("key", ["k1", "full"])
def test_what_is_reported_as_drift_is_near_the_truth_and_its_interval_covers(recorded: dict[str, np.ndarray], key: str) -> None:
    error, coverage = error_and_coverage(recorded, key)
    assert error <= 0.15
    assert coverage >= 0.9


def test_k3_is_no_measure_of_it(recorded: dict[str, np.ndarray]) -> None:
    error, coverage = error_and_coverage(recorded, "k3")
    assert error > 4 * error_and_coverage(recorded, "k1")[0]
    assert coverage < 0.5
