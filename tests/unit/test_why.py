"""When a figure leaves its band, by series made by hand."""

import math
from typing import Any

import numpy as np
import pytest

from grpo_core.config import RunConfig
from grpo_core.run.journal import Record
from grpo_core.run.why import WATCHED, Move, first_move, first_moves, watched_curves

FIGURES = {figure.key: figure for figure in WATCHED}
LENGTH, NORM, REWARD = FIGURES["completion/tokens/mean"], FIGURES["optim/grad_norm"], FIGURES["reward/mean"]
DRIFT, ENTROPY = FIGURES["kl/init/drift"], FIGURES["policy/entropy"]
WAVE = [5.0, 5.1, 4.9, 5.0, 5.2, 4.8] * 10
"""Median 5, median absolute deviation 0.1: the band is 5 +- 1.48."""


def moved(figure: Any, values: list[float]) -> Move | None:
    return first_move(figure, range(1, len(values) + 1), np.array(values, dtype=float))


@pytest.mark.parametrize(
    ("figure", "values", "step"),
    [
        (LENGTH, [*WAVE[:12], 6.5, 6.6, 6.7], 13),
        (LENGTH, [*WAVE[:12], 6.4, 6.4, 6.4], None),
        (LENGTH, [*WAVE[:12], 3.4, 3.3, 3.4], 13),
        (LENGTH, [*WAVE[:12], 9.0, 5.0, 9.0, *WAVE[:6]], None),  # not three in a row
        (LENGTH, [*WAVE[:12], 9.0, 1.0, 9.0, *WAVE[:6]], None),  # nor on one side
        (LENGTH, [*WAVE[:12], 9.0, 9.0], 13),  # the end of the run
        (LENGTH, [*WAVE[:12], 9.0], None),
        (LENGTH, [5.0] * 12 + [5.9, 5.9, 5.9], None),  # no deviation at all: a fifth of the median counts
        (LENGTH, [5.0] * 12 + [6.1, 6.1, 6.1], 13),
        (LENGTH, [5.0] * 5 + [9.0] * 2, None),  # fewer than six before it
        (LENGTH, [1.0 + step for step in range(200)], None),  # a line is no surprise
        (LENGTH, [*WAVE, *(5 * 1.02**step for step in range(1, 60))], 74),  # slow: 1.02^14 is above 6.48 / 5
        (NORM, [*WAVE[:12], 0.1, 0.1, 0.1], None),  # downwards is no harm
        (NORM, [*WAVE[:12], math.nan, math.nan, math.nan], 13),
        (NORM, [*WAVE[:12], math.nan], 13),  # at the end one is enough
        (NORM, [math.nan] * 12, None),
        (REWARD, [0.1 + 0.02 * step for step in range(30)], None),
        (REWARD, [*(0.02 * step for step in range(30)), *(0.58 - 0.02 * step for step in range(25))], 32),  # from its best
        (REWARD, [-3.0] * 8 + [-4.0] * 3, 9),
        (DRIFT, [0.0, 1.2, 1.3, 1.1], 2),  # the alarm of METRICS.md needs no history
        (DRIFT, [0.0, 1.2, 1.3, 0.9], None),
        (DRIFT, [0.0004 * step**2 for step in range(45)], None),  # its root is a line
        (ENTROPY, [0.3, 0.04, 0.03, 0.04], 2),
        (FIGURES["optim/lr"], [1 + math.cos(math.pi * step / 100) for step in range(100)], None),  # a schedule is no collapse
        (FIGURES["optim/lr"], [1e-5] * 12 + [3e-4] * 3, 13),
    ],
)
def test_the_first_step_outside_of_the_band(figure: Any, values: list[float], step: int | None) -> None:
    found = moved(figure, values)
    assert (None if found is None else found.step) == step


def test_the_band_is_median_and_ten_deviations_and_is_shown_with_its_steps() -> None:
    for figure, values, text in (
        (LENGTH, [6.5, 6.6, 6.7], "completion length 6.5, above 6.48 (band 3.52 to 6.48 of steps 1 to 12)"),  # 5 +- 1.4826
        (LENGTH, [3.4, 3.3, 3.4], "completion length 3.4, below 3.52 (band 3.52 to 6.48 of steps 1 to 12)"),
        (NORM, [math.nan] * 3, "gradient norm is no number (band 0 to 10 of steps 1 to 12)"),
    ):
        found = moved(figure, [*WAVE[:12], *values])
        assert found is not None
        assert found.text == f"step 13: {text}"
    lost = moved(DRIFT, [0.0, 1.2, 1.3, 1.1])
    assert lost is not None
    assert lost.text == "step 2: KL to the initial policy 1.2, above 1 (its alarm)"


def test_noise_leaves_its_band_in_few_runs_in_a_hundred() -> None:
    random = np.random.default_rng(0)
    for figure in (LENGTH, NORM, REWARD):
        false = [moved(figure, list(1 + 0.2 * random.standard_normal(100))) is not None for _ in range(100)]
        assert sum(false) <= 3


def test_what_moved_is_in_the_order_of_its_steps_and_of_several_rewards_the_verifiers_is_watched() -> None:
    config = RunConfig.model_validate({"rewards": [{"fn": "exact_answer"}, {"fn": "length"}]})
    shown = {
        "reward/mean": lambda step: 0.5,
        "reward/exact_answer/mean": lambda step: 0.5 if step < 20 else 0.1,
        "completion/tokens/mean": lambda step: 5.0 if step < 15 else 9.0,
        "optim/lr": lambda step: 1e-6,
    }
    records = [
        Record(seq=step, time="", kind="step", step=step, data={"metrics": {key: of(step) for key, of in shown.items()}})
        for step in range(1, 31)
    ]
    curves = watched_curves(records, config)
    assert [(move.figure.name, move.step) for move in first_moves(curves)] == [
        ("completion length", 15),
        ("reward exact_answer", 20),
    ]
    assert len(curves) == 4
