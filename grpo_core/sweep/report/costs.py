"""Where the time and the tokens of a sweep went."""

import math

import numpy as np
from matplotlib.figure import Figure

from grpo_core.sweep.report.colours import PALETTE
from grpo_core.sweep.report.numbers import duration
from grpo_core.sweep.statistics.effects import mean_and_half_width
from grpo_core.sweep.statistics.runs import SweepRuns


def machine_share(sweep: SweepRuns) -> float | None:
    """Return the share of the machine's time spent in training steps: journalled seconds of all runs / (elapsed x concurrency).

    None where the elapsed time or every training time is unknown.
    """
    elapsed, trained = sweep.facts.elapsed_seconds, float(sweep.table["train_seconds"].sum())
    if not elapsed or not sweep.table["train_seconds"].notna().any():
        return None
    return trained / (elapsed * sweep.facts.concurrency)


def time_lines(sweep: SweepRuns) -> tuple[str, ...]:
    """Return where wall-clock went, one line a fact."""
    trained, wall = (float(sweep.table[name].sum()) for name in ("train_seconds", "wall_seconds"))
    lines = [f"training steps of all runs: {duration(trained)} of {duration(wall)} that the runs took"]
    if (share := machine_share(sweep)) is not None and sweep.facts.elapsed_seconds is not None:
        times = f"{duration(trained)} / ({duration(sweep.facts.elapsed_seconds)} x {sweep.facts.concurrency} at a time)"
        lines.append(f"share of the machine's time spent in training steps: {share:.0%} = {times}")
    return tuple(lines)


def cost_figure(sweep: SweepRuns) -> Figure:
    """Return seconds and generated tokens per run, the mean of each arm's runs; the outlined bar is the whole run."""
    figure = Figure(figsize=(9, 1.4 + 0.28 * len(sweep.arms)), layout="constrained")
    seconds, tokens = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(sweep.arms))
    means = {name: _means(sweep, name) for name in ("train_seconds", "wall_seconds", "tokens")}
    seconds.barh(places, means["wall_seconds"], color="none", edgecolor="0.5", height=0.75, label="whole run")
    seconds.barh(places, means["train_seconds"], color=PALETTE[0], height=0.55, label="training steps")
    tokens.barh(places, means["tokens"], color=PALETTE[2], height=0.55)
    seconds.set_yticks(places, [f"{arm.number}: {arm.name}" for arm in sweep.arms], fontsize=8)
    seconds.set_ylim(len(places) - 0.4, -0.6)
    seconds.set_xlabel("seconds per run")
    tokens.set_xlabel("generated tokens per run")
    for axes in (seconds, tokens):
        axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside upper center", ncols=2, fontsize="small")
    return figure


def _means(sweep: SweepRuns, measure: str) -> list[float]:
    values = sweep.values(measure)
    means = [mean_and_half_width(values[arm.number].values())[0] for arm in sweep.arms]
    return [0.0 if math.isnan(mean) else mean for mean in means]
