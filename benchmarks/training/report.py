"""From the steps of each engine to medians, ratios, a table and a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.training.timed import PHASES, TimedStep
from benchmarks.training.turns import Measured
from benchmarks.training.workload import Workload

FLOOR = "floor"
SAME_WORK = "native-as-trl"
"""The engine that does no more than TRL."""
TIMED = ("rollout", "logps", "update", "sync")
"""Phases that have a floor."""


def summary(workload: Workload, measured: Mapping[str, Measured], warm_up: int) -> dict[str, Any]:
    """Return everything that is known of a workload, for the JSON file.

    Args:
        workload: what was measured.
        measured: by engine; the first is what the others are compared with, and has the floors of its steps.
        warm_up: first steps of each engine that do not count.
    """
    engines = {name: _engine(found.steps[warm_up:], found.settings) for name, found in measured.items()}
    (first, *_), same = engines.values(), engines.get(SAME_WORK)
    (leading, *_) = measured.values()
    return {
        "workload": asdict(workload),
        "engines": engines,
        "ratio_of_first": {name: first["seconds"] / engine["seconds"] for name, engine in engines.items()},
        "ratio_on_same_work": {name: same["seconds"] / engine["seconds"] for name, engine in engines.items()} if same else {},
        **_against_floors(leading.steps[warm_up:], leading.floors),
        "steps": {name: [asdict(step) for step in found.steps] for name, found in measured.items()},
        "floors": leading.floors,
    }


def _against_floors(steps: Sequence[TimedStep], floors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of floors, and of each step's seconds over its own floor; of syncs those of steps that had one."""
    pairs = list(zip(steps, floors, strict=True))
    with_phase = {phase: [pair for pair in pairs if phase != "sync" or pair[0].passes.get(phase)] or pairs for phase in TIMED}

    def seconds(step: TimedStep, phases: Sequence[str] = TIMED) -> float:
        return sum(step.phase(phase) for phase in phases)

    def least(floor: Mapping[str, Any], phases: Sequence[str] = TIMED) -> float:
        return float(sum(floor["phases"][phase] for phase in phases))

    return {
        "floor": {
            "phases": {phase: median(least(floor, [phase]) for _, floor in found) for phase, found in with_phase.items()},
            "seconds": median(map(least, floors)),
            **{key: median(floor[key] for floor in floors) for key in ("gflops_per_second", "gigabytes_per_second")},
        },
        "over_floor": {
            "phases": {
                phase: median(seconds(step, [phase]) / least(floor, [phase]) for step, floor in found)
                for phase, found in with_phase.items()
            },
            "step": median(seconds(step) / least(floor) for step, floor in pairs),
        },
        "share_of_ceiling": {
            phase: median(floor[f"{phase}_gflops"] / step.phase(phase) / floor["gflops_per_second"] for step, floor in pairs)
            for phase in ("rollout", "logps", "update")
        },
    }


def _engine(steps: Sequence[TimedStep], settings: Mapping[str, object]) -> dict[str, Any]:
    tokens, synced = [sum(step.completion_lengths) for step in steps], [step for step in steps if step.passes.get("sync")]
    return {
        "seconds": median(step.seconds for step in steps),
        "phases": {
            phase: median(step.phase(phase) for step in (synced if phase == "sync" and synced else steps)) for phase in PHASES
        },
        "share_with_sync": len(synced) / len(steps),
        "completion_tokens": median(tokens),
        "rollout_tokens_per_second": sum(tokens) / sum(step.phase("rollout") for step in steps),
        "peak_gib": max(step.peak_gib for step in steps),
        "settings": dict(settings),
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the medians as a table in Markdown: a line for each engine, and for the floor of the first one's steps."""
    lines = [
        f"| workload | type | engine | step, s | of it | on TRL's work | {', s | '.join(PHASES)}, s | tokens | peak, GiB |",
        f"|---|---|---|---:|---:|---:|{'---:|' * len(PHASES)}---:|---:|",
    ]
    for result in found:
        start = f"| {result['workload']['name']} | {result['workload']['dtype']} |"
        for name, engine in result["engines"].items():
            phases = " | ".join(f"{engine['phases'][phase]:.2f}" for phase in PHASES)
            same = result["ratio_on_same_work"].get(name)
            ratios = f"{result['ratio_of_first'][name]:.2f} | {'' if same is None else f'{same:.2f}'}"
            lines.append(
                f"{start} {name} | {engine['seconds']:.2f} | {ratios} | {phases} | "
                f"{engine['completion_tokens']:.0f} | {engine['peak_gib']:.2f} |"
            )
        floor = result["floor"]
        phases = " | ".join(f"{floor['phases'][phase]:.2f}" if phase in floor["phases"] else "" for phase in PHASES)
        lines.append(f"{start} {FLOOR} | {floor['seconds']:.2f} | | | {phases} | | |")
    return "\n".join(lines)


def remarks(found: Sequence[Mapping[str, Any]]) -> str:
    """Return what the table leaves out: distance from the floor, share of the ceiling, TRL's settings."""
    lines = []
    for result in found:
        over, share = result["over_floor"], result["share_of_ceiling"]
        phases = ", ".join(f"{phase} {over['phases'][phase]:.2f}" for phase in TIMED)
        shares = ", ".join(f"{phase} {value:.0%}" for phase, value in share.items())
        lines.append(
            f"{result['workload']['name']}, {result['workload']['dtype']}: {over['step']:.2f} x the floor ({phases}); of the "
            f"ceiling of {result['floor']['gflops_per_second']:.0f} GFLOP/s: {shares}; memory "
            f"{result['floor']['gigabytes_per_second']:.1f} GB/s"
        )
    for name, engine in found[0]["engines"].items():
        settings = ", ".join(f"{key}={value}" for key, value in engine["settings"].items())
        lines.append(f"{name}: {settings}")
    return "\n".join(lines)


def faults(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the phases that this engine ran faster than their floor, which then is none."""
    return [
        f"{result['workload']['name']}, {result['workload']['dtype']}: {phase} took {over:.2f} of its floor, which is no floor"
        for result in found
        for phase, over in result["over_floor"]["phases"].items()
        if over < 1
    ]


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a figure: seconds of a step by phase, a bar for each engine and for the floor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.0 + 0.9 * len(found) * 3 / 2), layout="constrained")
    axes = figure.subplots()
    bars: list[tuple[str, Mapping[str, float]]] = []
    for result in found:
        title = f"{result['workload']['name']}, {result['workload']['dtype']}"
        bars += [(f"{title}: {name}", engine["phases"]) for name, engine in result["engines"].items()]
        bars.append((f"{title}: {FLOOR}", result["floor"]["phases"]))
    left = [0.0] * len(bars)
    for phase in PHASES:
        widths = [max(phases.get(phase, 0.0), 0.0) for _, phases in bars]
        axes.barh([name for name, _ in bars], widths, left=left, label=phase)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step (median)")
    axes.legend(ncols=len(PHASES), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
