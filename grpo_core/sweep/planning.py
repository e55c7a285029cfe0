"""What a sweep can show, before it is paid for: its smallest effects, what more would buy, and what it costs (`--plan`)."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core.machine.disk import read_json, write_json
from grpo_core.run.sizes import shown_bytes
from grpo_core.sweep.display import UNKNOWN, counted, duration, plain, significant
from grpo_core.sweep.pilot import Pilot
from grpo_core.sweep.plan import Plan
from grpo_core.sweep.statistics.power import POWER, Question, questions, seeds_for, smallest_effect
from grpo_core.sweep.statistics.variance import Variance

FEW_SEEDS = 3
"""Below so many a plan warns."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A sweep as it might be."""

    name: str
    seeds: int
    samples: int
    num_prompts: int
    times: int = 1
    """How often as many completions as planned are evaluated."""


def designs(plan: Plan, pilot: Pilot) -> list[Design]:
    """Return the sweep as planned, and with one more seed, and where these matter twice the samples and held-out prompts."""
    evaluation, metric = plan.configs[0].evaluation, plan.sweep.objective.metric
    is_known, is_sampled = pilot.num_prompts > 1, pilot.samples > 1
    samples = (evaluation.samples or 1) if is_sampled and metric.startswith("eval/") else 1
    num_prompts = (evaluation.num_prompts or pilot.num_prompts) if is_known else 1
    planned = Design(name="as planned", seeds=len(plan.sweep.seeds), samples=samples, num_prompts=num_prompts)
    more = [replace(planned, name="one more seed", seeds=planned.seeds + 1)]
    more += [replace(planned, name="twice the samples", samples=2 * samples, times=2)] if is_sampled else []
    more += [replace(planned, name="twice the held-out prompts", num_prompts=2 * num_prompts, times=2)] if is_known else []
    return [planned, *more]


def describe(plan: Plan, pilot: Pilot, detect: float | None = None) -> Iterator[str]:
    """Yield the plan as lines for a terminal.

    Args:
        plan: the sweep.
        pilot: what earlier runs show.
        detect: a difference for which the number of seeds is wanted.
    """
    tested, found, variance = questions(plan.sweep), designs(plan, pilot), pilot.variance
    planned, metric = found[0], plan.sweep.objective.metric
    evaluated = f", {planned.samples} x {planned.num_prompts} completions a run" if pilot.num_prompts > 1 else ""
    yield f"{plan.num_arms} settings x {counted(planned.seeds, 'seed')} = {plan.num_runs} runs, by {metric}{evaluated}"
    runs = f"{counted(pilot.num_settings, 'setting')}, {counted(pilot.num_seeds, 'seed')}, {pilot.num_runs} runs"
    yield f"pilot: {runs}, {', '.join(pilot.folders)}"
    yield _components(pilot)
    yield ""
    yield f"smallest difference that a report establishes with {100 * POWER:.0f} % power:"
    yield from _table(plan, pilot, tested, found)
    if detect is not None:
        yield ""
        yield f"seeds that establish a difference of {detect:g} with {100 * POWER:.0f} % power:"
        each = [seeds_for(detect, variance.of_pair(planned.samples, planned.num_prompts), question) for question in tested]
        yield from _aligned([["", *(one.name for one in tested)], ["seeds", *(str(one or "over 1000") for one in each)]])
    yield ""
    yield from (f"warning: {text}" for text in warnings(plan, pilot))
    yield "nothing of the sweep was run"


def warnings(plan: Plan, pilot: Pilot) -> Iterator[str]:
    """Yield what is doubtful about the plan; nothing is refused."""
    seeds, most = len(plan.sweep.seeds), 1.0 if plan.sweep.objective.is_share else math.inf
    variance, planned = pilot.variance, designs(plan, pilot)[0]
    if seeds < FEW_SEEDS:
        yield f"seeds: {seeds} is below {FEW_SEEDS}; what so few seeds show is nearly never established"
    of_pair = variance.of_pair(planned.samples, planned.num_prompts)
    beyond = [one.name for one in questions(plan.sweep) if smallest_effect(of_pair, seeds, one) > most]
    if beyond and seeds > 1:
        yield f"cannot be answered by {counted(seeds, 'seed')}, the smallest difference being more than 1: {', '.join(beyond)}"
    low, high = variance.uncertainty
    if high > 2:
        what = f"the figures above may be {low:.1f} to {high:.3g} times as large (95 %)"
        yield f"what the pilot says of seeds has df {variance.freedom:.2g}: {what}; more runs as --pilot narrow that"
    steps = fmean(config.training.steps for config in plan.configs)
    if steps != pilot.steps:
        yield f"the pilot's runs have {pilot.steps:g} steps, the sweep's {steps:g}: their spread may be another"


def _components(pilot: Pilot) -> str:
    of = pilot.variance
    parts = {
        "training": math.sqrt(of.training),
        "draws": math.sqrt(of.draws / (pilot.samples * pilot.num_prompts)),
        "prompt x setting": math.sqrt(of.prompts),
    }
    known = [f"{name} {plain(value)}" for name, value in parts.items() if not math.isnan(value)]
    at = f" ({pilot.samples} x {pilot.num_prompts} completions)" if pilot.samples > 1 else ""
    return f"standard deviations{at}: {', '.join(known)}; settings with the same seed correlate by {of.correlation:.2f}"


def _table(plan: Plan, pilot: Pilot, tested: list[Question], found: list[Design]) -> Iterator[str]:
    rows = [["", *(one.name for one in tested), "± for new prompts", "time", "tokens", "disk"]]
    most = 1.0 if plan.sweep.objective.is_share else math.inf
    for design in found:
        effects = (smallest_effect(_of_pair(pilot.variance, design), design.seeds, question) for question in tested)
        width = pilot.variance.half_width(design.seeds, design.samples, design.num_prompts)
        cost = costs(plan, pilot, design)
        shown = [UNKNOWN if effect > most else significant(effect, 2) for effect in effects]
        spent = [duration(cost["seconds"]), f"{cost['tokens'] / 1e6:.3g} M", shown_bytes(cost["bytes"])]
        rows.append([design.name, *shown, significant(width, 2), *spent])
    yield from _aligned(rows)


def _of_pair(variance: Variance, design: Design) -> float:
    return variance.of_pair(design.samples, design.num_prompts)


def costs(plan: Plan, pilot: Pilot, design: Design) -> dict[str, float]:
    """Return the seconds, the completion tokens and the bytes on disk that a design takes, at the pace of the pilot's runs."""
    runs, steps = plan.num_arms * design.seeds, fmean(config.training.steps for config in plan.configs)
    each = pilot.seconds + pilot.step_seconds * steps + (design.times - 1) * pilot.eval_seconds
    return {
        "seconds": runs * each / min(runs, plan.sweep.runs.concurrency),
        "tokens": runs * pilot.step_tokens * steps,
        "bytes": runs * pilot.bytes,
    }


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *cells in rows:
        yield "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))])


# The plan as a file, which the sweep's pre-registration takes


def plan_file(beside: Path, name: str) -> Path:
    """Return where the plan of a sweep file lies, beside the sweep's folder."""
    return beside / f"{name}.plan.json"


def subject(plan: Plan) -> dict[str, Any]:
    """Return what a plan is about: the same settings, question and metric, whatever the seeds."""
    asked = plan.sweep.model_dump(mode="json", include={"axes", "from_step", "fork", "primary", "objective", "hold"})
    return {"base": plan.preset, **asked}


def write_plan(file: Path, plan: Plan, pilot: Pilot, detect: float | None) -> None:
    """Write down what was planned."""
    found, tested = designs(plan, pilot), questions(plan.sweep)
    effects = {
        design.name: {
            one.name: _or_null(smallest_effect(_of_pair(pilot.variance, design), design.seeds, one)) for one in tested
        }
        for design in found
    }
    variance = {name: _or_null(value) for name, value in asdict(pilot.variance).items()}
    write_json(
        file,
        {
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "subject": subject(plan),
            "pilot": {**asdict(pilot), "variance": variance},
            "designs": [{**asdict(design), **costs(plan, pilot, design)} for design in found],
            "power": POWER,
            "smallest_effects": effects,
            "detect": detect,
        },
    )


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_plan(file: Path, plan: Plan) -> dict[str, Any] | None:
    """Return the plan that was made of a sweep; None where there is none, or it is of other settings."""
    try:
        made: dict[str, Any] = read_json(file)
        return made if made["subject"] == subject(plan) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
