"""What a sweep can show, before it is paid for: its smallest effects, what more would buy, and what it costs (`--plan`)."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas

from grpo_core.config.origin import flatten
from grpo_core.machine.disk import read_json, write_json
from grpo_core.run.journal import finite
from grpo_core.run.sizes import shown_bytes
from grpo_core.sweep.display import UNKNOWN, counted, duration, first_few, plain, significant
from grpo_core.sweep.pilot import Pilot
from grpo_core.sweep.plan import Plan
from grpo_core.sweep.statistics.power import POWER, questions, seeds_for, smallest_effect

FEW_SEEDS = 3
"""Below so many a plan warns."""
OF_SPREAD = ("model.", "data.", "rewards", "rollout.", "loss.", "advantage.", "optimizer.", "reference.", "training.steps")
"""Beginnings of the keys on which the spread of runs depends."""


def designs(plan: Plan, pilot: Pilot) -> dict[str, dict[str, Any]]:
    """Return the sweep as planned, with one more seed, and where these matter with twice the samples and held-out prompts.

    Each has its seeds, samples and num_prompts, the smallest difference by question, half of the 95 % interval of two settings
    for new prompts, and what it takes at the pace of the pilot's runs: seconds, completion tokens, bytes on disk.
    """
    evaluation, seeds = plan.configs[0].evaluation, len(plan.sweep.seeds)
    num_prompts = min(evaluation.num_prompts or pilot.held_out, pilot.held_out)
    samples = evaluation.samples if pilot.samples > 1 else 1
    sizes = {"as planned": (seeds, samples, num_prompts), "one more seed": (seeds + 1, samples, num_prompts)}
    sizes |= {"twice the samples": (seeds, 2 * samples, num_prompts)} if pilot.samples > 1 else {}
    sizes |= {"twice the held-out prompts": (seeds, samples, 2 * num_prompts)} if pilot.num_prompts > 1 else {}
    return {name: _design(plan, pilot, *of_design) for name, of_design in sizes.items()}


def _design(plan: Plan, pilot: Pilot, seeds: int, samples: int, num_prompts: int) -> dict[str, Any]:
    variance, runs = pilot.variance.of_pair(samples, num_prompts), plan.num_arms * seeds
    run = pilot.runs.mean(numeric_only=True)
    longer = fmean(config.training.steps for config in plan.configs) / run["steps"]
    evaluated = samples * num_prompts / (pilot.samples * pilot.num_prompts)
    seconds = run["wall_seconds"] + (longer - 1) * run["train_seconds"] + (evaluated - 1) * run["eval_seconds"]
    return {
        "seeds": seeds,
        "samples": samples,
        "num_prompts": num_prompts,
        "smallest": {question.name: smallest_effect(variance, seeds, question) for question in questions(plan.sweep)},
        "new_prompts": pilot.variance.half_width(seeds, samples, num_prompts),
        "seconds": runs * float(seconds) / min(runs, plan.sweep.runs.concurrency),
        "tokens": runs * float(run["tokens"]) * longer,
        "bytes": runs * float(run["bytes"]),
    }


def describe(plan: Plan, pilot: Pilot, detect: float | None = None) -> Iterator[str]:
    """Yield the plan as lines for a terminal.

    Args:
        plan: the sweep.
        pilot: what earlier runs show.
        detect: a difference for which the number of seeds is wanted.
    """
    found, metric, variance, runs = designs(plan, pilot), plan.sweep.objective.metric, pilot.variance, pilot.runs
    planned = found["as planned"]
    drawn = (planned["samples"], planned["num_prompts"])
    evaluated = f", {f'{drawn[0]} completions to ' * (pilot.samples > 1)}{drawn[1]} prompts a run" * (pilot.num_prompts > 1)
    yield f"{plan.num_arms} settings x {counted(planned['seeds'], 'seed')} = {plan.num_runs} runs, by {metric}{evaluated}"
    counts = f"{counted(runs['setting'].nunique(), 'setting')}, {counted(runs['seed'].nunique(), 'seed')}"
    yield f"pilot: {counts}, {len(runs)} runs, {', '.join(pilot.folders)}"
    parts = {"training": variance.training}
    parts |= {"completions": variance.of_pair(*drawn) - variance.training} if pilot.samples > 1 else {}
    parts |= {} if math.isnan(variance.prompts) else {"prompts": variance.prompts / drawn[1]}
    deviations = ", ".join(f"{name} {plain(math.sqrt(value))}" for name, value in parts.items())
    yield f"standard deviations of the difference of two settings within a seed: {deviations}"
    yield ""
    yield f"smallest difference that a report establishes with {100 * POWER:.0f} % power:"
    most = 1.0 if plan.sweep.objective.is_share else math.inf
    rows = {}
    for name, of in found.items():
        effects = [UNKNOWN if effect >= most else significant(effect, 2) for effect in of["smallest"].values()]
        cost = [duration(of["seconds"]), f"{of['tokens'] / 1e6:.3g} M", shown_bytes(of["bytes"])]
        rows[name] = [*effects, significant(of["new_prompts"], 2), *cost]
    if detect is not None:
        each = [seeds_for(detect, variance.of_pair(*drawn), question) for question in questions(plan.sweep)]
        rows[f"seeds for {detect:g}"] = [*(str(one or "over 1000") for one in each), *[""] * 4]
    head = [*planned["smallest"], "± for new prompts", "time", "tokens", "disk"]
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=head)
    yield from map(str.rstrip, table.to_string(col_space=[len(name) + 1 for name in head]).splitlines())
    yield ""
    yield from (f"warning: {text}" for text in warnings(plan, pilot, planned, most))
    yield "nothing of the sweep was run"


def warnings(plan: Plan, pilot: Pilot, planned: dict[str, Any], most: float) -> Iterator[str]:
    """Yield what is doubtful about the plan, whose metric differs by `most` at the most; nothing is refused."""
    seeds, (low, high) = planned["seeds"], pilot.variance.uncertainty
    if seeds < FEW_SEEDS:
        yield f"seeds: {seeds} is below {FEW_SEEDS}; what so few seeds show is nearly never established"
    beyond = [name for name, effect in planned["smallest"].items() if effect > most]
    if beyond and seeds > 1:
        yield f"cannot be answered by {counted(seeds, 'seed')}, the smallest difference being more than 1: {', '.join(beyond)}"
    if high > 2:
        of_pair = pilot.variance.of_pair(planned["samples"], planned["num_prompts"])
        low = max(low, math.sqrt(1 - pilot.variance.training / of_pair))  # what the completions add is known
        what = f"the figures above may be {low:.1f} to {high:.3g} times as large (95 %)"
        yield f"what the pilot says of seeds has df {pilot.variance.freedom:.2g}: {what}; more runs as --pilot narrow that"
    ours, theirs = ([flatten(config) for config in configs] for configs in (plan.configs, pilot.runs["config"]))
    others = [
        key for key in theirs[0] | ours[0] if {repr(one.get(key)) for one in theirs} - {repr(one.get(key)) for one in ours}
    ]
    if differing := [f"{key} {theirs[0].get(key)}, not {ours[0].get(key)}" for key in others if key.startswith(OF_SPREAD)]:
        yield f"the pilot's runs differ from the sweep's ({first_few(differing)}): their spread may be another"


# The plan as a file, which the sweep's pre-registration takes


def plan_file(beside: Path, name: str) -> Path:
    """Return where the plan of a sweep file lies, beside the sweep's folder."""
    return beside / f"{name}.plan.json"


def subject(plan: Plan) -> str:
    """Return the digest of what a plan is about: the settings with all of their keys, question and metric, not the seeds."""
    configs = [config.model_dump_json(exclude={"tracking": True, "training": {"seed"}}) for config in plan.configs]
    asked = plan.sweep.model_dump_json(include={"axes", "from_step", "fork", "primary", "objective", "hold"})
    return hashlib.sha256(repr((configs, asked)).encode()).hexdigest()


def write_plan(file: Path, plan: Plan, pilot: Pilot, detect: float | None) -> None:
    """Write down what was planned."""
    facts = {"written": datetime.now(UTC).isoformat(timespec="seconds"), "subject": subject(plan), "power": POWER}
    of_pilot = {"folders": pilot.folders, "runs": len(pilot.runs), "variance": asdict(pilot.variance)}
    write_json(file, finite({**facts, "pilot": of_pilot, "designs": designs(plan, pilot), "detect": detect}))


def read_plan(file: Path, plan: Plan) -> dict[str, Any] | None:
    """Return the plan that was made of a sweep; None where there is none, or it is of other settings."""
    try:
        made: dict[str, Any] = read_json(file)
        return made if made["subject"] == subject(plan) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
