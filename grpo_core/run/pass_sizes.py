"""How much a run computes at once: as its configuration says, and less from the step on at which a resume lowers it.

The sizes of passes decide memory and speed, and results in their last digits alone. So they are the only settings that a run
may change once it has begun, and only downwards: a run that was out of memory continues on the same device.

`grpo train --resume RUN training.microbatch_tokens=N` leaves the wish in `passes.json`; the `start` and `resume` records hold
the sizes that are in force from their step on. A reproduction lowers them after the same steps as the run that it repeats.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as stored_dataclass

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, JournalError, cause, listed, raised_as, shown
from grpo_core.machine.jsonfile import STORED, build, read_json, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal

PASSES_FIELD = "passes"
"""Of a `start` or `resume` record."""
KEYS = {"training.microbatch_tokens": "microbatch_tokens", "training.rollout_rows": "rollout_rows"}
"""What a resume may lower, and the field of it."""


@stored_dataclass(frozen=True, kw_only=True, config=STORED)
class PassSizes:
    """Bounds of what is computed at once."""

    microbatch_tokens: Annotated[int, Field(ge=1)]
    """Tokens of a forward pass."""
    rollout_rows: Annotated[int, Field(ge=1)]
    """Completions that are sampled together."""

    @classmethod
    def of(cls, config: RunConfig) -> "PassSizes":
        """Return those of a configuration."""
        return cls(microbatch_tokens=config.training.microbatch_tokens, rollout_rows=config.training.rollout_rows)

    def lowest(self, others: Iterable["PassSizes"]) -> "PassSizes":
        """Return the smallest of each, of these and others.

        >>> PassSizes(microbatch_tokens=8, rollout_rows=4).lowest([PassSizes(microbatch_tokens=9, rollout_rows=2)])
        PassSizes(microbatch_tokens=8, rollout_rows=2)
        """
        found = (self, *others)
        return PassSizes(
            microbatch_tokens=min(sizes.microbatch_tokens for sizes in found),
            rollout_rows=min(sizes.rollout_rows for sizes in found),
        )

    def applied(self, config: RunConfig) -> RunConfig:
        """Return a configuration with these sizes."""
        return config.model_copy(update={"training": config.training.model_copy(update=asdict(self))})

    def as_json(self) -> dict[str, int]:
        """Return them as a record or a file holds them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Change:
    """Sizes that are in force from a step on."""

    after_step: int
    sizes: PassSizes


@dataclass(frozen=True, kw_only=True)
class PassPlan:
    """Which sizes each step of a run is computed with."""

    begun_with: PassSizes
    """Of the configuration."""
    changes: tuple[Change, ...] = ()

    def after(self, step: int) -> PassSizes:
        """Return those of the step that follows `step`, and of an evaluation after it."""
        return self.begun_with.lowest(change.sizes for change in self.changes if change.after_step <= step)

    @property
    def smallest(self) -> PassSizes:
        """Those with which the run would continue."""
        return self.begun_with.lowest(change.sizes for change in self.changes)


def pass_plan(run_dir: RunDir) -> PassPlan:
    """Return the sizes that a run has been computed with, and those that are in force if it is resumed now.

    Raises:
        JournalError: `passes.json` holds something else, or a journal is damaged.
    """
    begun_with = PassSizes.of(run_dir.read_config())
    wish = read_wish(run_dir)
    changes = [*_changes(run_dir), *(_changes(RunDir(run_dir.original)) if run_dir.original.exists() else ())]
    if wish is not None:
        changes.append(Change(after_step=0, sizes=wish))
    return PassPlan(begun_with=begun_with, changes=tuple(changes))


def sizes_in(record: Record) -> PassSizes | None:
    """Return the sizes that a record puts in force; None for other records, and those of versions that did not write them.

    Raises:
        ValueError: it holds something else than sizes.
    """
    if record.kind not in ("start", "resume") or PASSES_FIELD not in record.data:
        return None
    try:
        return build(PassSizes, record.data[PASSES_FIELD])
    except ValueError as error:
        raise ValueError(f"line {record.seq + 1}, {PASSES_FIELD} of the {record.kind} record: {cause(error)}") from error


def lowered_notes(records: Iterable[Record]) -> list[str]:
    """Return a line for each resume that lowered a size.

    Raises:
        ValueError: a record holds something else than sizes.
    """
    notes, before = [], None
    for record in records:
        sizes = sizes_in(record)
        if sizes is None:
            continue
        if before is not None and sizes != before:
            pairs = zip(before.as_json().items(), sizes.as_json().values(), strict=True)
            changes = [f"training.{field} {new} (was {old})" for (field, old), new in pairs if new != old]
            notes.append(f"passes: resumed after step {record.step} with {', '.join(changes)}")
        before = sizes
    return notes


def read_wish(run_dir: RunDir) -> PassSizes | None:
    """Return the sizes that a person has asked to resume with; None where nobody has.

    Raises:
        JournalError: the file holds something else.
    """
    file = run_dir.passes_file
    if not file.exists():
        return None
    with raised_as(
        JournalError, f"{file}: not the sizes of passes ({{cause}}); remove it, and resume again", OSError, ValueError
    ):
        return build(PassSizes, read_json(file))


def lower_passes(run_dir: RunDir, wanted: Mapping[str, int]) -> list[str]:
    """Let a run be resumed with smaller sizes; return a line for each that is changed.

    Args:
        run_dir: of the run, which nobody works on.
        wanted: by field of `PassSizes`; the others stay.

    Raises:
        ConfigError: a value is larger than what is in force, or the engine has no such setting.
        JournalError: as `pass_plan`.
    """
    config = run_dir.read_config()
    if wanted and config.training.engine != "native":
        raise ConfigError(
            f"training.{next(iter(wanted))}: training.engine {config.training.engine} cannot be resumed with another value"
        )
    now = pass_plan(run_dir).smallest
    before = now.as_json()
    if faults := [
        f"training.{field}: {value} is more than the {before[field]} of this run; a resume may only lower it"
        for field, value in wanted.items()
        if value > before[field]
    ]:
        raise ConfigError(listed(faults))
    changed = {field: value for field, value in wanted.items() if value < before[field]}
    if changed:
        write_json(run_dir.passes_file, before | changed)
    return [f"training.{field}: {value} from here on, {before[field]} until now" for field, value in changed.items()]


def sizes_to_lower(values: Mapping[str, Any]) -> dict[str, int]:
    """Return what a resume is to change, by field, of overrides.

    Raises:
        ConfigError: a key may not change, or a value is no whole number above 0.
    """
    faults = [
        f"{key}: a run keeps the configuration with which it began; a resume may lower {' and '.join(KEYS)} alone"
        for key in values
        if key not in KEYS
    ]
    faults += [
        f"{key}: {shown(value)} is not a whole number of at least 1"
        for key, value in values.items()
        if key in KEYS and not (type(value) is int and value >= 1)
    ]
    if faults:
        raise ConfigError(listed(faults))
    return {KEYS[key]: value for key, value in values.items()}


def _changes(run_dir: RunDir) -> Sequence[Change]:
    history = read_journal(run_dir.journal_file) if run_dir.journal_file.exists() else []
    with raised_as(JournalError, f"{run_dir.journal_file}, {{cause}}", ValueError):
        found = [(record.step, sizes_in(record)) for record in history]
    return [Change(after_step=step, sizes=sizes) for step, sizes in found if sizes is not None]
