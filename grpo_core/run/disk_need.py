"""How much disk a run needs, known before it starts: from the number of its parameters and its configuration.

    checkpoint = 4 bytes x parameters x (policy, two moments of AdamW; the reference once a sync made it differ)
    most       = (keep_checkpoints + 1 while one is written + 1 for the best) x checkpoint + 4 bytes x parameters, once, of the
                 initial policy

All weights that are kept are fp32. With `model.lora` they are the adapter's (`adapter_size.py`): its base is `model.source`.
Activations and the model's own files are no part of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.errors import JournalError
from grpo_core.machine.disk import free_bytes
from grpo_core.run.adapter_size import adapter_size
from grpo_core.run.model_shape import count_parameters, linear_layers_in

BYTES_PER_WEIGHT = 4
MOMENTS = 2
TEXT_BYTES = 20_000_000
"""Journal, completions, tables, report: what does not grow with the model."""


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """Bytes that a run has still to write."""

    most: int
    """While it runs."""
    lasting: int
    """When it has ended."""


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


def disk_need(
    config: RunConfig, weights: KeptWeights, *, from_step: int = 0, present: Sequence[int] = (), tracked_here: bool = False
) -> DiskNeed:
    """Return what a run has still to write.

    Args:
        config: of the run.
        weights: that it keeps.
        from_step: the step of its newest checkpoint; 0 = it has none.
        present: bytes of each whole checkpoint that it has, which make room for those that come.
        tracked_here: whether MLflow keeps its artifacts on this disk.
    """
    checkpoint, coming = checkpoint_bytes(config, weights), checkpoints_to_come(config, from_step)
    evaluates = config.evaluation.every_steps is not None
    kept = config.training.keep_checkpoints + evaluates
    most, lasting = (max(0, min(count, len(present) + coming) * checkpoint - sum(present)) for count in (kept + 1, kept))
    policies = (0 if present or not coming else 1) + (1 + evaluates) * (tracked_here and config.tracking.log_policy)
    beside = policies * BYTES_PER_WEIGHT * weights.policy + TEXT_BYTES
    return DiskNeed(most=beside + most * (coming > 0), lasting=beside + lasting * (coming > 0))


def checkpoint_bytes(config: RunConfig, weights: KeptWeights) -> int:
    """Return the size of one checkpoint, at its largest."""
    return BYTES_PER_WEIGHT * (weights.policy * (1 + MOMENTS) + weights.reference * reference_moves(config))


def checkpoints_to_come(config: RunConfig, from_step: int) -> int:
    """Return how many checkpoints a run writes at most after a step."""
    steps = config.training.steps
    periods = filter(None, (config.training.checkpoint_every, config.evaluation.every_steps))  # an evaluation may be the best
    return sum(step > from_step for step in {steps, *(step for every in periods for step in range(every, steps + 1, every))})


def sweep_need(needs: Sequence[DiskNeed], num_runs: int, concurrency: int) -> DiskNeed:
    """Return what a sweep has to write: all its runs, each as the largest, of which some are under way at the same time.

    Args:
        needs: of the arms that are known.
        num_runs: arms times seeds.
        concurrency: runs at a time.
    """
    lasting = num_runs * max(need.lasting for need in needs)
    writing = min(concurrency, num_runs) * max(need.most - need.lasting for need in needs)
    return DiskNeed(most=lasting + writing, lasting=lasting)


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


REMEDIES = ("training.keep_checkpoints=1", "tracking.log_policy=false", "another disk", "`grpo clean`, which lists what can go")
"""What makes room."""


def shown_bytes(number: float) -> str:
    """Return a number of bytes as people read it, in decimal units.

    >>> shown_bytes(5_380_600_320), shown_bytes(12_345_678), shown_bytes(71e9), shown_bytes(139_264), shown_bytes(9)
    ('5.4 GB', '12 MB', '71 GB', '139 kB', '1 kB')
    """
    if number >= 1e9:
        return f"{number / 1e9:.1f} GB" if number < 10e9 else f"{number / 1e9:.0f} GB"
    unit, name = (1e6, "MB") if number >= 0.9995e6 else (1e3, "kB")
    return f"{max(1, math.ceil(number / unit - 0.5))} {name}"


def describe_need(need: DiskNeed, folder: Path) -> tuple[str, list[tuple[int, int | None]]]:
    """Return what is needed and free in words, and (needed, free) of the disk of a folder."""
    free = free_bytes(folder)
    stays = f" ({shown_bytes(need.lasting)} stay)" if need.most - need.lasting > 1e6 else ""
    there = "how much is free is not known" if free is None else f"{shown_bytes(free)} free"
    return f"needs up to {shown_bytes(need.most)} in {folder}{stays}; {there}", [(need.most, free)]
