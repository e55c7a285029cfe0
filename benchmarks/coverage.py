"""How often the project's intervals hold what they promise, on simulated data whose truth is known: `make coverage`.

Each regime draws data, asks the project's own function for an interval, and looks whether it holds the truth; a null sweep is
one in which nothing differs, and any claim in its sentences is false. Prints a table and exits with 1 where a share lies
outside its bounds. A test runs a few hundred of each in the default tests (`tests/unit/test_coverage.py`).
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas
import torch
from scipy import special

from grpo_core.evaluation.results import Estimate, mean_share, paired_difference, pass_at_k, proportion
from grpo_core.sweep.schema import PrimaryConfig, SweepConfig
from grpo_core.sweep.statistics.findings import find
from grpo_core.sweep.statistics.paired import paired_estimate, two_way_interval
from grpo_core.sweep.statistics.runs import SweepRuns
from grpo_core.training.measure import clustered_standard_error, masked_mean

COVERS, FALSE = (0.92, 0.98), (0.0, 0.06)
"""Bounds of the coverage of a 95 % interval, and of the share of null sweeps with any false sentence."""
WIDE = (0.92, 0.99)
"""Where one seed in ten collapses by ten standard deviations: Student's interval of eight seeds is too wide there, 98.2 %."""
REPLICATIONS = {COVERS: 10_000, WIDE: 10_000, FALSE: 700}
KNOBS = ("loss.beta", "rollout.group_size", "reference.sync_steps")
OUTCOMES = ("objective", "probe_kl_init")
Draw = Callable[[np.random.Generator], bool]
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Data of one kind and what is asked of them."""

    interval: str
    name: str
    draw: Draw
    """Whether the interval holds the truth, or a null sweep makes a claim."""
    bounds: tuple[float, float] = COVERS


def measure(regime: Regime, replications: int, seed: int = 0) -> float:
    """Return the share of replications in which it drew True."""
    random = np.random.default_rng([seed, *map(ord, regime.interval + regime.name)])
    return sum(regime.draw(random) for _ in range(replications)) / replications


def error_of(share: float, replications: int) -> float:
    """Return the Monte-Carlo error of a share at 95 %."""
    return 1.96 * math.sqrt(max(share * (1 - share), 1 / replications) / replications)


def _holds(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


# Over prompts


def _greedy(random: np.random.Generator, *, prompts: int) -> bool:
    share = random.uniform(0.02, 0.98)
    return _holds(proportion(int(random.binomial(prompts, share)), prompts), share)


def _pass_at(random: np.random.Generator, *, k: int, truth: float, prompts: int, samples: int, spread: float) -> bool:
    """The chances of the prompts are Beta; `spread`, their variance over the largest that there could be, 0 = all the same."""
    chance = 1 - (1 - truth) ** (1 / k)
    size = (1 - spread) / spread if spread else 0.0
    chances = random.beta(chance * size, (1 - chance) * size, prompts) if spread else np.full(prompts, chance)
    counts = random.binomial(samples, chances)
    return _holds(mean_share([pass_at_k(samples, int(count), k) for count in counts]), truth)


def _before_after(random: np.random.Generator, *, prompts: int, up: float, down: float) -> bool:
    changes = random.choice([1, -1, 0], prompts, p=[up, down, 1 - up - down])
    before = np.where(changes == 0, 1, changes < 0).astype(float)
    return _holds(paired_difference(before.tolist(), (before + changes).tolist()), up - down)


def _before_after_shares(random: np.random.Generator, *, prompts: int, samples: int) -> bool:
    before = random.beta(0.5, 0.5, prompts)
    after = 0.9 * before + 0.1 * random.beta(0.5, 0.5, prompts)
    counts = (random.binomial(samples, chance) / samples for chance in (before, after))
    return _holds(paired_difference(*(found.tolist() for found in counts)), 0.0)


def over_prompts() -> Iterable[Regime]:
    """Return the regimes of what is measured in one run."""
    for prompts in (50, 250):
        yield Regime(interval="greedy, Wilson", name=f"{prompts} prompts", draw=partial(_greedy, prompts=prompts))
    for samples, truth in itertools.product((4, 16), (0.1, 0.5, 0.9)):
        inside = partial(_pass_at, k=1, truth=truth, prompts=100, samples=samples, spread=1 / 3)
        yield Regime(interval="pass@1, score", name=f"{truth}, 100 x {samples}", draw=inside)
    for prompts in (50, 100, 200):
        low = partial(_pass_at, k=1, truth=0.01, prompts=prompts, samples=4, spread=1 / 3)
        yield Regime(interval="pass@1, score", name=f"0.01, {prompts} x 4", draw=low)
        high = partial(_pass_at, k=4, truth=0.994, prompts=prompts, samples=4, spread=0.0)
        yield Regime(interval="pass@4, score", name=f"0.994, {prompts} x 4", draw=high)
    yield Regime(
        interval="pass@1, score",
        name="0.01, 100 x 16",
        draw=partial(_pass_at, k=1, truth=0.01, prompts=100, samples=16, spread=1 / 3),
    )
    for prompts, up, down in ((50, 0.08, 0.01), (250, 0.08, 0.01), (250, 0.3, 0.05)):
        draw = partial(_before_after, prompts=prompts, up=up, down=down)
        yield Regime(interval="before/after, Agresti-Min", name=f"{prompts}: {up:.0%} up, {down:.0%} down", draw=draw)
    draw = partial(_before_after_shares, prompts=100, samples=4)
    yield Regime(interval="before/after of pass@1", name="100 x 4, no change", draw=draw)


def _step_drift(random: np.random.Generator, *, prompts: int, noise: float) -> bool:
    """Tokens of a prompt share its drift; `noise` is that of a sampled token, 0 = exact."""
    group, most = 6, 8
    of_prompt = np.repeat(random.lognormal(0.0, 0.5, prompts), group)[:, None]
    values = of_prompt * random.lognormal(0.0, 0.3, (prompts * group, most)) + noise * random.normal(
        size=(prompts * group, most)
    )
    lengths = random.integers(3, most + 1, prompts * group)[:, None]
    tokens, mask = torch.from_numpy(values), torch.from_numpy(np.arange(most) < lengths)
    error = clustered_standard_error(tokens, mask, torch.arange(prompts).repeat_interleave(group))
    truth = math.exp(0.5 * (0.5**2 + 0.3**2))
    return bool(abs(masked_mean(tokens, mask) - truth) <= special.stdtrit(prompts - 1, 0.975) * error)


def over_a_step() -> Iterable[Regime]:
    """Return the regimes of the drift of one step, with prompts as clusters."""
    for (estimator, noise), prompts in itertools.product((("exact", 0.0), ("k1", 2.0)), (12, 64)):
        draw = partial(_step_drift, prompts=prompts, noise=noise)
        yield Regime(interval=f"drift of a step, {estimator}", name=f"{prompts} x 6", draw=draw)


# Over seeds


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.normal(size=shape)


def _heavy(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_t(3, shape)


def _skewed(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.exponential(size=shape)


def _collapsing(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 0.3 * random.normal(size=shape) - 3 * (random.random(shape) < 0.1)


NOISES: dict[str, Noise] = {"normal": _normal, "t3": _heavy, "skewed": _skewed, "10 % collapse": _collapsing}


def _paired(random: np.random.Generator, *, seeds: int, noise: Noise) -> bool:
    first, second = noise(random, (2, seeds))
    found = paired_estimate((second - first).tolist())
    return found.low <= 0 <= found.high


def _new_prompts(random: np.random.Generator, *, seeds: int, by_seed: float, samples: int) -> bool:
    """The effect of a prompt spreads by 0.1 round 0.05, and each figure is a difference of two means of so many samples."""
    prompts = 200
    chances = random.beta(2, 1, prompts)
    sampling = np.sqrt(2 * chances * (1 - chances) / samples) * random.normal(size=(seeds, prompts))
    scores = 0.05 + random.normal(0, by_seed, (seeds, 1)) + random.normal(0, 0.1, prompts) + sampling
    low, high = two_way_interval(scores)
    return low <= 0.05 <= high


def over_seeds() -> Iterable[Regime]:
    """Return the regimes of differences between settings."""
    for (name, noise), seeds in itertools.product(NOISES.items(), (2, 3, 5, 8)):
        draw = partial(_paired, seeds=seeds, noise=noise)
        bounds = WIDE if noise is _collapsing else COVERS
        yield Regime(interval="paired t, these prompts", name=f"{seeds} seeds, {name}", draw=draw, bounds=bounds)
    for seeds, by_seed, samples in itertools.product((3, 5, 8), (0.0, 0.02), (4, 16)):
        draw = partial(_new_prompts, seeds=seeds, by_seed=by_seed, samples=samples)
        yield Regime(interval="two-way, new prompts", name=f"{seeds} seeds of sd {by_seed}, 200 x {samples}", draw=draw)


# Whole reports


def _null_sweep(
    random: np.random.Generator,
    *,
    seeds: int,
    noise: Noise,
    primary: bool = False,
    unequal: bool = False,
    peeking: bool = False,
) -> bool:
    """Whether a sweep in which nothing differs makes a claim in any sentence, now or where it is looked at after every seed."""
    levels = ((0.1, 1.0, 4.0), (4, 8), (20, 5) if peeking else (None, 20, 5))
    arms = list(itertools.product(*levels))
    scale = np.exp(random.normal(0, 0.5, (len(arms), 1))) if unequal else 1.0
    objective = random.normal(size=seeds) + scale * noise(random, (len(arms), seeds))
    drift = 1 + 0.1 * noise(random, (len(arms), seeds))
    table = pandas.DataFrame(
        [
            {"arm": arm, "seed": seed, "status": "finished", **dict(zip(KNOBS, levels, strict=True))}
            | {"objective": objective[arm, seed], "probe_kl_init": drift[arm, seed]}
            for arm, levels in enumerate(arms)
            for seed in range(seeds)
        ]
    )
    config = SweepConfig(
        base="null", axes=dict(zip(KNOBS, levels, strict=True)), seeds=tuple(range(seeds)),
        primary=PrimaryConfig(knob=KNOBS[0]) if primary else None,
    )  # fmt: skip
    sweep = SweepRuns(name="null", config=config, runs=table, planned_runs=len(table))
    looks = range(2 if peeking else seeds, seeds + 1)
    frames = (table.assign(status=np.where(table["seed"] < look, "finished", "missing")) for look in looks)
    return any(one.is_claim for frame in frames for one in find(replace(sweep, runs=frame), OUTCOMES).sentences)


def whole_reports() -> Iterable[Regime]:
    """Return the regimes of sweeps that have nothing to find."""
    false = partial(Regime, interval="any false sentence", bounds=FALSE)
    for seeds in (3, 5, 8):
        yield false(name=f"{seeds} seeds, normal", draw=partial(_null_sweep, seeds=seeds, noise=_normal))
    yield false(name="5 seeds, normal, question", draw=partial(_null_sweep, seeds=5, noise=_normal, primary=True))
    yield false(name="5 seeds, t3", draw=partial(_null_sweep, seeds=5, noise=_heavy))
    yield false(name="5 seeds, 10 % collapse", draw=partial(_null_sweep, seeds=5, noise=_collapsing))
    yield false(name="5 seeds, unequal arms", draw=partial(_null_sweep, seeds=5, noise=_normal, unequal=True))
    yield false(name="5 seeds, read after each", draw=partial(_null_sweep, seeds=5, noise=_normal, peeking=True))


def regimes() -> list[Regime]:
    """Return all of them."""
    return [*over_prompts(), *over_a_step(), *over_seeds(), *whole_reports()]


def _measured(index: int) -> float:
    regime = regimes()[index]  # by number: a process is handed no functions
    return measure(regime, REPLICATIONS[regime.bounds])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a share lies outside its bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    jobs = parser.parse_args(arguments).jobs
    found, outside = regimes(), 0
    print("| interval | regime | share | ± | bounds | verdict |\n|---|---|---|---|---|---|")
    with ProcessPoolExecutor(jobs) as pool:
        for regime, share in zip(found, pool.map(_measured, range(len(found))), strict=True):
            low, high = regime.bounds
            verdict = "inside" if low <= share <= high else "OUTSIDE"
            outside += verdict == "OUTSIDE"
            error = 100 * error_of(share, REPLICATIONS[regime.bounds])
            figures = f"{100 * share:.1f} % | {error:.1f} | {100 * low:.0f}..{100 * high:.0f} % | {verdict}"
            print(f"| {regime.interval} | {regime.name} | {figures} |", flush=True)
    print(f"{outside} of {len(found)} outside")
    return bool(outside)


if __name__ == "__main__":
    sys.exit(main())
