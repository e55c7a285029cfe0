"""How much disk a run needs, known before it starts: from the number of its parameters and its configuration.

    checkpoint = 4 bytes x parameters x (policy, two moments of AdamW; the reference once a sync made it differ)
    most       = (keep_checkpoints + 1 while one is written + 1 for the best) x checkpoint + 4 bytes x parameters, once, of the
                 initial policy

All weights that are kept are fp32. With `model.lora` they are the adapter's (`adapter_size.py`): its base is `model.source`.
Activations and the model's own files are no part of it.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.errors import JournalError
from grpo_core.machine.disk import free_bytes, nearest_folder
from grpo_core.run.adapter_size import adapter_size
from grpo_core.run.model_shape import count_parameters, linear_layers_in

BYTES_PER_WEIGHT = 4
MOMENTS = 2
FEW_BYTES = 3_000_000
"""Report, tables, prompts' share of MLflow, tokenizer: what does not grow with the run."""
JOURNAL_BYTES_PER_STEP = 4_000
BYTES_PER_TOKEN = 4
"""Of a completion's text."""
BYTES_PER_ROW = 24
"""Figures of one completion, compressed."""
BYTES_PER_PROBE, BYTES_PER_PROBED_TOKEN = 6_000, 24
"""Of a table of the probe: what it has without a row, and each row."""


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """Bytes that a run has still to write."""

    most: int
    """In its folder, while it runs."""
    lasting: int
    """In its folder, when it has ended."""
    tracked: int
    """In MLflow, if its store is on a disk of this machine."""


@dataclass(frozen=True, kw_only=True)
class KeptWeights:
    """Weights that checkpoints are made of: all of a model, or those of an adapter, whose base no checkpoint holds."""

    policy: int
    """Of the policy; as many has each moment of AdamW."""
    reference: int
    """Of a reference that has moved, at its largest."""


def kept_weights(config: RunConfig, folder: Path) -> KeptWeights | None:
    """Return what a run with the model in a folder keeps; None where its files do not tell."""
    if config.model.lora is None:
        num_parameters = count_parameters(folder)
        return None if num_parameters is None else KeptWeights(policy=num_parameters, reference=num_parameters)
    try:
        size = adapter_size(config, linear_layers_in(folder))
    except (OSError, ValueError):
        return None
    return KeptWeights(policy=size.weights, reference=size.reference) if size is not None and size.weights else None


def disk_need(config: RunConfig, weights: KeptWeights, *, from_step: int = 0, present: Sequence[int] = ()) -> DiskNeed:
    """Return what a run has still to write.

    Args:
        config: of the run.
        weights: that it keeps.
        from_step: the step of its newest checkpoint; 0 = it has none.
        present: bytes of each whole checkpoint that it has.

    Returns:
        the need; what is there already, and will make room for what comes, is taken off
    """
    checkpoint = checkpoint_bytes(config, weights)
    coming = checkpoints_to_come(config, from_step)
    kept = config.training.keep_checkpoints + (config.evaluation.every_steps is not None)
    most, lasting = (min(count, len(present) + coming) * checkpoint for count in (kept + 1, kept))
    there = sum(present) if coming else lasting + checkpoint  # nothing is written any more
    tables = _completions_bytes(config, from_step) + _probe_bytes(config, from_step)
    texts = tables + (JOURNAL_BYTES_PER_STEP * (config.training.steps - from_step)) + FEW_BYTES
    initial = 0 if present or not coming else BYTES_PER_WEIGHT * weights.policy
    policies = (1 + (config.evaluation.every_steps is not None)) if config.tracking.log_policy else 0
    return DiskNeed(
        most=max(0, most - there) + initial + texts,
        lasting=max(0, lasting - there) + initial + texts,
        tracked=policies * BYTES_PER_WEIGHT * weights.policy + texts,
    )


def checkpoint_bytes(config: RunConfig, weights: KeptWeights) -> int:
    """Return the size of one checkpoint, at its largest."""
    return BYTES_PER_WEIGHT * (weights.policy * (1 + MOMENTS) + weights.reference * reference_moves(config))


def checkpoints_to_come(config: RunConfig, from_step: int) -> int:
    """Return how many checkpoints a run writes at most after a step."""
    steps = config.training.steps
    periods = filter(None, (config.training.checkpoint_every, config.evaluation.every_steps))  # an evaluation may be the best
    return sum(step > from_step for step in {steps, *(step for every in periods for step in range(every, steps + 1, every))})


def _completions_bytes(config: RunConfig, from_step: int) -> int:
    rollout, every = config.rollout, config.training.completions_every
    rows = rollout.num_prompts_per_step * rollout.group_size
    a_row = BYTES_PER_ROW + BYTES_PER_TOKEN * rollout.max_completion_tokens
    prompts = BYTES_PER_TOKEN * rollout.num_prompts_per_step * rollout.max_prompt_tokens
    return (config.training.steps // every - from_step // every) * (rows * a_row + prompts)


def _probe_bytes(config: RunConfig, from_step: int) -> int:
    every, tokens = config.probe.every_steps, config.probe.num_prompts * config.rollout.max_completion_tokens
    a_table = BYTES_PER_PROBE + tokens * BYTES_PER_PROBED_TOKEN
    return 0 if every is None else (config.training.steps // every - from_step // every) * a_table


def sweep_need(needs: Sequence[DiskNeed], num_runs: int, concurrency: int) -> DiskNeed:
    """Return what a sweep has to write: all its runs, of which some are under way at the same time.

    Args:
        needs: of the arms that are known.
        num_runs: arms times seeds; where these are more than `needs`, the others are as the largest.
        concurrency: runs at a time.
    """
    each, rest = divmod(num_runs, len(needs))
    largest = replace(needs[0], lasting=max(need.lasting for need in needs), tracked=max(need.tracked for need in needs))
    known = [need for need in needs for _ in range(each)] + [largest] * rest
    writing = min(concurrency, num_runs) * max(need.most - need.lasting for need in needs)
    lasting = sum(need.lasting for need in known)
    return DiskNeed(most=lasting + writing, lasting=lasting, tracked=sum(need.tracked for need in known))


def refuse_too_little(what: str, disks: Iterable[tuple[int, int | None]], remedies: Sequence[str]) -> None:
    """Refuse what will not fit.

    Args:
        what: the run or sweep and what it needs, for the message.
        disks: (bytes needed, bytes free or None where that is not known) of each disk that it writes to.
        remedies: what would make it fit.

    Raises:
        JournalError: there is too little room on one of them.
    """
    missing = max((need - free for need, free in disks if free is not None), default=0)
    if missing > 0:
        raise JournalError(f"{what}: too little disk by {shown_bytes(missing)}; free that much, or {', or '.join(remedies)}")


def savings(config: RunConfig, weights: KeptWeights, tracked_here: bool) -> list[str]:
    """Return which keys of a new run would need less disk, and how much less."""
    need = disk_need(config, weights).most
    saved = {}
    for key, value in (("keep_checkpoints", 1), ("checkpoint_every", None)):
        fewer = config.model_copy(update={"training": config.training.model_copy(update={key: value})})
        saved[f"training.{key}={json.dumps(value)}"] = need - disk_need(fewer, weights).most
    if config.tracking.log_policy and tracked_here:
        saved["tracking.log_policy=false"] = BYTES_PER_WEIGHT * weights.policy
    return [f"{key} ({shown_bytes(less)} less)" for key, less in saved.items() if less > 0]


def shown_bytes(number: float) -> str:
    """Return a number of bytes as people read it, in decimal units.

    >>> shown_bytes(5_380_600_320), shown_bytes(12_345_678), shown_bytes(71e9), shown_bytes(139_264), shown_bytes(9)
    ('5.4 GB', '12 MB', '71 GB', '139 kB', '1 kB')
    """
    if number >= 1e9:
        return f"{number / 1e9:.1f} GB" if number < 10e9 else f"{number / 1e9:.0f} GB"
    unit, name = (1e6, "MB") if number >= 0.9995e6 else (1e3, "kB")
    return f"{max(1, math.ceil(number / unit - 0.5))} {name}"


def describe_need(need: DiskNeed, folder: Path, artifacts: Path | None) -> tuple[str, list[tuple[int, int | None]]]:
    """Return what is needed and free in words, and (needed, free) of each disk."""
    stays = f" ({shown_bytes(need.lasting)} stay)" if need.most - need.lasting > 1e6 else ""
    text, free = f"needs up to {shown_bytes(need.most)} in {folder}{stays}", free_bytes(folder)
    if artifacts is None:
        return f"{text}; {_shown_free(free)}", [(need.most, free)]
    text += f" and {shown_bytes(need.tracked)} in {_shown_path(artifacts)}"
    there = nearest_folder(artifacts)
    if nearest_folder(folder).stat().st_dev == there.stat().st_dev:
        return f"{text}; {_shown_free(free)}", [(need.most + need.tracked, free)]
    free_there = free_bytes(there)
    return f"{text}; {_shown_free(free)} and {_shown_free(free_there)} there", [(need.most, free), (need.tracked, free_there)]


def elsewhere(path: Path, option: str, resumed: bool) -> list[str]:
    """Return what else would make room: another disk, or what can be removed."""
    return (
        [f"move {path} to a larger disk"]
        if resumed
        else [f"another {option} on a larger disk", "`grpo clean`, which lists what can go"]
    )


def _shown_free(free: int | None) -> str:
    return "how much is free is not known" if free is None else f"{shown_bytes(free)} free"


def _shown_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
