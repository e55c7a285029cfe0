"""What a repeated run shares with the run that it repeats: configuration, prompts, every figure, the final weights."""

import shutil
from dataclasses import dataclass

from pydantic.dataclasses import dataclass as stored_dataclass

from grpo_core.config import RunConfig, changes_between
from grpo_core.config.derived import BITWISE, Repeatability, repeatability
from grpo_core.data.frozen import MANIFEST_FILE, load_frozen, read_manifest
from grpo_core.errors import JournalError
from grpo_core.machine.disk import durable, durable_folder
from grpo_core.machine.jsonfile import STORED, Count, build, read_json
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.comparison import JournalComparison, MeanDifference, compare_journals, compare_means
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import DamagedJournalError

SHOWN_DIFFERENCES = 5
POLICY_FILE = "policy.json"
"""Beside the original's journal: the step and the digest of its final policy."""
NAMES: dict[str, str] = {"step": "record", "ref_sync": "reference sync", "eval": "evaluation"}


@stored_dataclass(frozen=True, kw_only=True, config=STORED)
class FinalPolicy:
    """The policy with which a run ended."""

    step: Count
    digest: str
    """SHA-256 of its weights."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came of repeating a run."""

    inputs: tuple[str, ...]
    """What the two runs were given that differs, one line each, and what is to be known about the first one's journal."""
    journal: JournalComparison
    final: FinalPolicy | None
    """Of the run that was repeated; None where it is not known."""
    same_weights: bool | None
    """Whether the repetition's policy after that step is bit for bit the same; None where either is not kept."""
    promise: Repeatability = BITWISE
    """How far the run that was repeated repeats."""
    means: tuple[MeanDifference, ...] = ()
    """Statistics over the steps, where the promise is no more than these."""

    @property
    def is_identical(self) -> bool | None:
        """Whether all that could be compared is the same; None where it is not and nobody promised it."""
        is_identical = self.journal.is_identical and self.same_weights is not False
        return is_identical if is_identical or self.promise.is_exact or self.journal.missing else None

    def facts(self) -> list[str]:
        """Return the verdict, then what it rests on, one line a fact."""
        promise = [] if self.promise is BITWISE else [f"such a run repeats {self.promise.what}"]
        differences = self.means if self.is_identical is None else self.journal.differences[1:SHOWN_DIFFERENCES]
        return [self._outcome(), *promise, self._weights(), *self.inputs, *map(str, differences)]

    def _outcome(self) -> str:
        journal = self.journal
        held = f"{journal.figures} figures of {journal.steps} steps"
        if self.is_identical:
            return f"identical: {held}, syncs and evaluations among them"
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

    def _weights(self) -> str:
        if self.final is None or self.same_weights is None:
            return "final policy: not compared, one of the two is not kept"
        same = "the same weights, bit for bit" if self.same_weights else "other weights"
        return f"policy after step {self.final.step}: {same}"


def compare_with_original(run_dir: RunDir) -> Reproduction | None:
    """Compare a run with the one that it repeats; None where it repeats none.

    Raises:
        GrpoError: one of them cannot be read.
    """
    if not run_dir.original.exists():
        return None
    original = RunDir(run_dir.original)
    return compare_runs(original, run_dir, _stored_final(original))


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
    promise = repeatability(original.read_config())
    weights = [path / "policy" for path in list_checkpoints(repeated.checkpoints) if final and step_of(path) == final.step]
    return Reproduction(
        inputs=(
            *config_differences(original.read_config(), repeated.read_config()),
            *_prompt_differences(original, repeated),
            *(f"the run that is repeated: {note}" for note in first.notes),
        ),
        journal=compare_journals(first.history, second.history, promise.unlike),
        final=final,
        same_weights=weights_digest(weights[0]) == final.digest if final and weights else None,
        promise=promise,
        means=() if promise.is_exact else compare_means(first.history, second.history),
    )


def final_policy(run_dir: RunDir) -> FinalPolicy | None:
    """Return the policy of a run's newest checkpoint, None where it has none."""
    checkpoints = list_checkpoints(run_dir.checkpoints)
    if not checkpoints:
        return None
    return FinalPolicy(step=step_of(checkpoints[-1]), digest=weights_digest(checkpoints[-1] / "policy"))


def config_differences(before: RunConfig, now: RunConfig) -> list[str]:
    """Return `training.seed: 0 then, 1 now` for every key that could change a figure."""
    return [
        f"{key}: {old} then, {new} now"
        for key, (old, new) in changes_between(before, now).items()
        if not key.startswith("tracking.")  # where a run is tracked does not change it
    ]


def _prompt_differences(original: RunDir, repeated: RunDir) -> list[str]:
    """Return that two runs have other prompts, by their digests; nothing where one has no prompts yet."""
    if not all((run.data / MANIFEST_FILE).exists() for run in (original, repeated)):
        return []
    before, now = read_manifest(original.data), read_manifest(repeated.data)
    changed = f"prompts: {before} (SHA-256 {before.digest[:12]}) then, {now} (SHA-256 {now.digest[:12]}) now"
    return [changed] if before.digest != now.digest else []


def copy_prompts(original: RunDir, repeated: RunDir) -> None:
    """Copy the frozen prompts, the manifest last: prompts without one are prepared anew."""
    durable_folder(repeated.data)
    for file in sorted(original.data.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        with durable(repeated.data / file.name) as partial:
            shutil.copy(file, partial)


def refuse_unfit(run: str, original: RunDir) -> None:
    """Refuse a run that has nothing to be compared, or whose prompts are not those that its provenance names.

    Raises:
        JournalError: its journal is damaged or holds no finished step, or its prompts are another run's.
        DataError: its prompts were changed.
    """
    load_frozen(original.data)
    try:
        last = max((record.step for record in check_run(original).history if record.kind == "step"), default=0)
    except DamagedJournalError as error:  # what to do about it holds for a run, not for this copy
        raise JournalError(f"run {run}: {error.fault}; `grpo track RUN_DIR` sends MLflow a whole one") from error
    if not last:
        raise JournalError(f"run {run}: its journal holds no finished step, so there is nothing to repeat")
    final = _stored_final(original)
    if final is not None and last < final.step:
        raise JournalError(f"run {run}: its journal ends at step {last}, and its policy was saved after step {final.step}")
    expected, found = original.read_provenance().get("data_digest"), read_manifest(original.data).digest
    if expected not in (None, found):
        raise JournalError(
            f"run {run}: the digest of its frozen prompts is {found[:12]}, its provenance says {expected[:12]}: "
            "they are not the prompts that it was trained on"
        )


def _stored_final(original: RunDir) -> FinalPolicy | None:
    file = original.path / POLICY_FILE
    return build(FinalPolicy, read_json(file)) if file.exists() else None
