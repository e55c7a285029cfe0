"""How much a run computes at once: as its configuration says, and less from the step on at which a resume lowers it.

These sizes decide memory and speed, and results in their last digits alone. So they are the only settings that a run may change
once it has begun, and only downwards: a run that was out of memory continues on the same device.

`grpo train --resume RUN training.microbatch_tokens=N` leaves the wish in `passes.json`; the `start` and `resume` records hold
the sizes that are in force from their step on. A reproduction lowers them after the same steps as the run that it repeats.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, shown
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal

PASSES_FIELD = "passes"
"""Of a `start` or `resume` record."""
FIELDS = ("microbatch_tokens", "rollout_rows")
"""Of `training`: what a resume may lower."""


@dataclass(frozen=True)
class BatchLimits:
    """How much each step of a run computes at once.

    `changes` are (step after which they hold, {field: size}), the first of the configuration; the smallest of each counts.
    """

    changes: tuple[tuple[int, Mapping[str, int]], ...]

    def after(self, step: float = math.inf) -> dict[str, int]:
        """Return {field: size} of the step that follows `step`, and of an evaluation after it."""
        return {
            field: min(sizes[field] for since, sizes in self.changes if since <= step and field in sizes) for field in FIELDS
        }

    def applied(self, config: RunConfig, step: float = math.inf) -> RunConfig:
        """Return a configuration with the sizes of the step that follows `step`."""
        return config.model_copy(update={"training": config.training.model_copy(update=self.after(step))})


def batch_limits(run_dir: RunDir) -> BatchLimits:
    """Return how much a run has computed at once, and will if it is resumed now.

    Raises:
        JournalError: a journal is damaged.
    """
    training = run_dir.read_config().training
    changes: list[tuple[int, dict[str, int]]] = [(0, {field: getattr(training, field) for field in FIELDS})]
    for file in (run_dir.journal_file, RunDir(run_dir.original).journal_file):
        changes += _recorded(read_journal(file) if file.exists() else ())
    if run_dir.passes_file.exists():
        changes.append((0, read_json(run_dir.passes_file)))
    return BatchLimits(tuple(changes))


def _recorded(records: Iterable[Record]) -> list[tuple[int, dict[str, int]]]:
    return [(record.step, record.data[PASSES_FIELD]) for record in records if PASSES_FIELD in record.data]


def lowered_notes(records: Iterable[Record]) -> list[str]:
    """Return a line for each resume that lowered a size."""
    return [
        f"passes: resumed after step {step} with "
        + ", ".join(f"training.{field} {size} (was {before.get(field)})" for field, size in now.items())
        for (_, before), (step, now) in pairwise(_recorded(records))
        if now != before
    ]


def lower_passes(run_dir: RunDir, wanted: Mapping[str, int]) -> list[str]:
    """Let a run be resumed with smaller sizes; return a line for each that is changed.

    Args:
        run_dir: of the run, which nobody works on.
        wanted: {field: size}; the others stay.

    Raises:
        ConfigError: a value is larger than what is in force, or the engine has no such setting.
        JournalError: as `batch_limits`.
    """
    engine, before = run_dir.read_config().training.engine, batch_limits(run_dir).after()
    for field, value in wanted.items():
        if engine != "native":
            raise ConfigError(f"training.{field}: training.engine {engine} cannot be resumed with another value")
        if value > before[field]:
            raise ConfigError(
                f"training.{field}: {value} is more than the {before[field]} of this run; a resume may only lower it"
            )
    if wanted:
        write_json(run_dir.passes_file, {**before, **wanted})
    return [f"training.{field}: {value} from here on, {before[field]} until now" for field, value in wanted.items()]


def sizes_to_lower(values: Mapping[str, Any]) -> dict[str, int]:
    """Return what a resume is to change, by field, of overrides.

    Raises:
        ConfigError: a key may not change, or a value is no whole number above 0.
    """
    keys = [f"training.{name}" for name in FIELDS]
    for key, value in values.items():
        if key not in keys:
            may = " and ".join(keys)
            raise ConfigError(f"{key}: a run keeps the configuration with which it began; a resume may lower {may} alone")
        if type(value) is not int or value < 1:
            raise ConfigError(f"{key}: {shown(value)} is not a whole number of at least 1")
    return {key.removeprefix("training."): size for key, size in values.items()}
