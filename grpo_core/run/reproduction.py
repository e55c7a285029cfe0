"""What a repeated run shares with the run that it repeats: configuration, prompts, every figure, the final weights."""

import math
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from grpo_core.config import RunConfig, changes_between
from grpo_core.config.derived import BITWISE, OTHER_PROCESSES, Repeatability, repeatability
from grpo_core.data.frozen_images import copy_of_run
from grpo_core.data.prepare import MANIFEST_FILE, load_frozen, read_manifest
from grpo_core.errors import JournalError
from grpo_core.machine.disk import durable, durable_folder, flush_all, read_json
from grpo_core.metrics import find_metric
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.folder import RunDir, computed_by
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Kind, Record

COMPARED: tuple[Kind, ...] = ("step", "ref_sync", "eval")
"""Kinds of records that hold figures."""
Tolerance = tuple[float, float]
"""How far two figures may lie apart and count as the same, relatively and absolutely: the larger of both bounds."""
EXACT: Tolerance = (0.0, 0.0)
IN_OTHER_PASSES: Tolerance = (1e-4, 1e-6)
"""Of the same step in other passes or processes, so that sums are taken in another order. Near 0 all may be rounding."""
STATISTICS = ("reward/mean", "kl/ref/drift", "kl/init/drift", "policy/entropy", "completion/tokens/mean")
"""Figures whose means over the steps are compared where tokens differ."""
Identity = tuple[Kind, int, str]
"""Which record of a run it is: kind, step, and of evaluations the set."""
SHOWN_DIFFERENCES = 5
POLICY_FILE = "policy.json"
"""Beside the original's journal: the step and the digest of its final policy."""
NAMES: dict[str, str] = {"step": "record", "ref_sync": "reference sync", "eval": "evaluation"}


@dataclass(frozen=True, kw_only=True)
class FigureDifference:
    """One figure that two runs, or two attempts at one step, do not share; None where one of them has no such figure."""

    step: int
    key: str
    before: float | None
    now: float | None

    def __str__(self) -> str:
        """Return `step 3: kl/ref/drift was 0.25, is 0.5 (by 0.25)`."""
        before, now = ("missing" if value is None else repr(value) for value in (self.before, self.now))
        size = "" if self.before is None or self.now is None else f" (by {abs(self.now - self.before):.3g})"
        return f"step {self.step}: {self.key} was {before}, is {now}{size}"


@dataclass(frozen=True, kw_only=True)
class MeanDifference:
    """One figure's mean over the steps that two runs share.

    `standard_error` is that of the mean of the differences, step by step; NaN for one step. A rough figure: steps of a run
    depend on each other.
    """

    key: str
    before: float
    now: float
    standard_error: float
    steps: int

    def __str__(self) -> str:
        """Return `reward/mean over 20 steps: 0.41 then, 0.43 now (difference 0.02, standard error 0.015)`."""
        size = f"difference {self.now - self.before:.3g}, standard error {self.standard_error:.2g}"
        return f"{self.key} over {self.steps} steps: {self.before:.4g} then, {self.now:.4g} now ({size})"


@dataclass(frozen=True, kw_only=True)
class JournalComparison:
    """What a run shares with the one that it repeats: steps that both hold, figures that were compared in all.

    `differences` are in the order of the journal, so that the first is the cause of the others or the nearest to it; `missing`
    are steps, syncs and evaluations of the earlier run that the later does not hold. `tolerance`: how far figures may differ.
    """

    steps: int
    figures: int
    differences: tuple[FigureDifference, ...]
    missing: tuple[Identity, ...]
    tolerance: Tolerance = EXACT

    @property
    def is_identical(self) -> bool:
        """Whether every figure of every step was repeated, within the tolerance."""
        return not self.differences and not self.missing


def identity(record: Record) -> Identity:
    """Return what a record must be compared with."""
    return record.kind, record.step, str(record.data.get("set", ""))


def figures(record: Record) -> dict[str, float]:
    """Return the figures of a record that a repetition must give again: the deterministic ones."""
    if record.kind == "ref_sync":
        return {f"ref_sync {key}": float(value) for key, value in record.data.items() if key != "cause"}
    return {key: value for key, value in record.metrics.items() if (found := find_metric(key)) is None or found.deterministic}


def differences(
    before: Record, now: Record, unlike: Collection[str] = (), tolerance: Tolerance = EXACT
) -> list[FigureDifference]:
    """Return the figures in which two records of the same step differ, those in `unlike` left out; NaN equals NaN."""
    old, new = figures(before), figures(now)
    pairs = {key: (old.get(key), new.get(key)) for key in (*old, *new) if key not in unlike}
    return [
        FigureDifference(step=now.step, key=key, before=one, now=other)
        for key, (one, other) in pairs.items()
        if one is None
        or other is None
        or not (math.isclose(one, other, rel_tol=tolerance[0], abs_tol=tolerance[1]) or (math.isnan(one) and math.isnan(other)))
    ]


def compare_journals(
    before: Sequence[Record], now: Sequence[Record], unlike: Collection[str] = (), tolerance: Tolerance = EXACT
) -> JournalComparison:
    """Compare two histories record by record.

    Args:
        before: of the run that is repeated, as `read_journal` gives it.
        now: of the repetition.
        unlike: figures that need not be the same.
        tolerance: how far the others may lie apart.
    """
    shared = shared_records(before, now)
    held = {identity(old) for old, _ in shared}
    return JournalComparison(
        steps=sum(old.kind == "step" for old, _ in shared),
        figures=sum(len(figures(old).keys() - set(unlike)) for old, _ in shared),
        differences=tuple(difference for old, new in shared for difference in differences(old, new, unlike, tolerance)),
        missing=tuple(key for key in _by_identity(before) if key not in held),
        tolerance=tolerance,
    )


def shared_records(before: Sequence[Record], now: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return the records with figures that two histories both hold, in the order of the first one's journal."""
    old, new = _by_identity(before), _by_identity(now)
    return [(old[key], new[key]) for key in old if key in new]


def _by_identity(history: Sequence[Record]) -> dict[Identity, Record]:
    return {identity(record): record for record in history if record.kind in COMPARED}


def compare_means(before: Sequence[Record], now: Sequence[Record]) -> tuple[MeanDifference, ...]:
    """Compare the means of `STATISTICS` over the steps that two histories share, each where both have it."""
    shared, found = [pair for pair in shared_records(before, now) if pair[0].kind == "step"], list[MeanDifference]()
    for key in STATISTICS:
        pairs = [(one.metrics[key], other.metrics[key]) for one, other in shared if key in one.metrics and key in other.metrics]
        if pairs:
            (old, new), changes = map(fmean, zip(*pairs, strict=True)), [other - one for one, other in pairs]
            error = stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else math.nan
            found.append(MeanDifference(key=key, before=old, now=new, standard_error=error, steps=len(pairs)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class FinalPolicy:
    """The policy with which a run ended: the SHA-256 of its weights after a step."""

    step: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came of repeating a run.

    `inputs` are what the two runs were given that differs, one line each, and what is to be known about the first one's
    journal. `final` is the policy of the run that was repeated; `same_weights`, whether the repetition's after that step is bit
    for bit the same, None where either is not kept. `promise` is how far the first run repeats; `means` are statistics over the
    steps, where it promises no more than these.
    """

    inputs: tuple[str, ...]
    journal: JournalComparison
    final: FinalPolicy | None
    same_weights: bool | None
    promise: Repeatability = BITWISE
    means: tuple[MeanDifference, ...] = ()

    @property
    def is_identical(self) -> bool | None:
        """Whether all that could be compared is the same, or as near as was promised; None where nobody promised that it is."""
        is_identical = self.journal.is_identical and (self.same_weights is not False or self.journal.tolerance != EXACT)
        return is_identical if is_identical or self.promise.is_exact or self.journal.missing else None

    def facts(self) -> list[str]:
        """Return the verdict, then what it rests on, one line a fact."""
        promise = [] if self.promise is BITWISE else [f"such a run repeats {self.promise.what}"]
        differences = self.means if self.is_identical is None else self.journal.differences[1:SHOWN_DIFFERENCES]
        weights = "final policy: not compared, one of the two is not kept"
        if self.final is not None and self.same_weights is not None:
            same = "the same weights, bit for bit" if self.same_weights else "other weights"
            weights = f"policy after step {self.final.step}: {same}"
        return [self._outcome(), *promise, weights, *self.inputs, *map(str, differences)]

    def _outcome(self) -> str:
        journal = self.journal
        held = f"{journal.figures} figures of {journal.steps} steps"
        if self.is_identical:
            same = "identical" if journal.tolerance == EXACT else "the same up to rounding"
            return f"{same}: {held}, syncs and evaluations among them"
        if self.is_identical is None:
            return f"other tokens, as expected; compared are the means over {journal.steps} steps"
        if journal.differences:
            count, steps = len(journal.differences), len({difference.step for difference in journal.differences})
            return f"not identical: {count} of {held} differ, in {steps} steps; the first is {journal.differences[0]}"
        if journal.missing:
            kind, step, name = journal.missing[0]
            record = f"{name} {NAMES[kind]} of step {step}".lstrip()
            return f"not complete: {held} are identical; {len(journal.missing)} records are missing, the first is the {record}"
        return f"not identical: {held} are identical, the weights are not"


def compare_with_original(run_dir: RunDir) -> Reproduction | None:
    """Compare a run with the one that it repeats; None where it repeats none.

    Raises:
        GrpoError: one of them cannot be read.
    """
    original, file = RunDir(run_dir.original), run_dir.original / POLICY_FILE
    if not original.path.exists():
        return None
    return compare_runs(original, run_dir, FinalPolicy(**read_json(file)) if file.exists() else None)


def compare_runs(original: RunDir, repeated: RunDir, final: FinalPolicy | None) -> Reproduction:
    """Compare a run with its repetition.

    Args:
        original: holds at least the configuration, the prompts and the journal of the first run.
        repeated: the run that repeats it.
        final: the first run's policy, None if it is not known.

    Raises:
        GrpoError: one of them cannot be read.
    """
    first, second = check_run(original), check_run(repeated)
    sessions = (*computed_by(first.history), *computed_by(second.history))
    promise, runs = repeatability(original.read_config(), sessions), (original, repeated)
    weights = [path / "policy" for path in list_checkpoints(repeated.checkpoints) if final and step_of(path) == final.step]
    same_weights = weights_digest(weights[0]) == final.digest if final and weights else None
    journal = compare_journals(first.history, second.history, promise.unlike)
    if promise.what == OTHER_PROCESSES.what and not (journal.is_identical and same_weights is not False):
        journal = compare_journals(first.history, second.history, promise.unlike, IN_OTHER_PASSES)
    manifests = [read_manifest(run.data) for run in runs if (run.data / MANIFEST_FILE).exists()]
    prompts = [f"{manifest} (SHA-256 {manifest.digest[:12]})" for manifest in manifests]
    return Reproduction(
        inputs=(
            *config_differences(original.read_config(), repeated.read_config()),
            *([f"prompts: {' then, '.join(prompts)} now"] if len(set(prompts)) > 1 else ()),
            *(f"the run that is repeated: {note}" for note in first.notes),
        ),
        journal=journal,
        final=final,
        same_weights=same_weights,
        promise=promise,
        means=() if promise.is_exact else compare_means(first.history, second.history),
    )


def final_policy(run_dir: RunDir) -> FinalPolicy | None:
    """Return the policy of a run's newest checkpoint, None where it has none."""
    newest = list_checkpoints(run_dir.checkpoints)[-1:]
    return next((FinalPolicy(step=step_of(path), digest=weights_digest(path / "policy")) for path in newest), None)


def config_differences(before: RunConfig, now: RunConfig) -> list[str]:
    """Return `training.seed: 0 then, 1 now` for every key that could change a figure."""
    return [
        f"{key}: {old} then, {new} now"
        for key, (old, new) in changes_between(before, now).items()
        if not key.startswith("tracking.")  # where a run is tracked does not change it
    ]


def copy_prompts(original: RunDir, repeated: RunDir) -> None:
    """Copy the frozen prompts and their images, the manifest last: prompts without one are prepared anew."""
    durable_folder(repeated.data)
    for file in sorted(original.data.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        with durable(repeated.data / file.name) as partial:
            if file.is_dir():
                shutil.copytree(file, partial, copy_function=copy_of_run)
                flush_all(partial)
            else:
                shutil.copy(file, partial)


def refuse_unfit(run: str, original: RunDir) -> None:
    """Refuse a run that has nothing to be compared, or whose prompts were changed.

    Raises:
        JournalError: its journal is damaged or holds no finished step.
        DataError: its prompts were changed.
    """
    load_frozen(original.data)
    if (begun := original.read_origin().forked_from) is not None:
        raise JournalError(f"run {run}: is forked from {begun['run']}; reproduce that one, and fork its repetition")
    if not any(record.kind == "step" for record in check_run(original).history):
        raise JournalError(f"run {run}: its journal holds no finished step, so there is nothing to repeat")
