"""A run in a few lines: where it is, and what it reached."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_core.evaluation.results import (
    HELD_OUT_SAMPLE,
    AnswerChanges,
    Estimate,
    answer_changes,
    facts_file,
    paired_difference,
    read_estimates,
    table_file,
)
from grpo_core.machine.disk import read_json
from grpo_core.metrics import LAST_STEPS
from grpo_core.run.child import process_has_started, process_runs
from grpo_core.run.folder import RaisedAlert, RunDir, monitor_alerts
from grpo_core.run.integrity import CheckedJournal, check_run
from grpo_core.run.journal import Record, is_alert, last_event

FIRST_STEPS = 5
"""With whose mean reward the report compares that of the last steps."""


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """Held-out greedy accuracy before and after training, on the same prompts; the difference is paired over them.

    The policy that is compared with the initial one was saved after `step`: not the last step of a run resumed since.
    """

    step: int
    num_prompts: int
    before: Estimate
    after: Estimate
    difference: Estimate
    changes: AnswerChanges

    def lines(self) -> list[str]:
        """Return it in words, with the step that it is of."""
        return [
            f"held-out greedy accuracy ({self.num_prompts} prompts): {self.before} -> {self.after} on new prompts, "
            f"after step {self.step}",
            f"paired difference on new prompts, this run alone, 95 % interval: {self.difference}",
            f"answers: {self.changes}",
        ]


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run is: its last `step` record, alerts, and notes, what a reader of its figures should know about its journal.

    `state` is `not started`, `running`, `finished`, `stopped`, `failed` or `died` (no end record and no process).
    """

    state: str
    reason: str | None
    step: int
    steps: int
    last: Record | None
    num_syncs: int
    alerts: tuple[str, ...]
    warnings: tuple[str, ...]
    """Of its start."""
    notes: tuple[str, ...]


def compare_evaluations(run_dir: RunDir) -> BeforeAfter | None:
    """Return the paired comparison of the evaluations before and after training; None where one is missing."""
    import pandas

    files = [(table_file(run_dir, policy), facts_file(run_dir, policy)) for policy in ("base", "final")]
    if not all(table.exists() and facts.exists() for table, facts in files):
        return None
    greedy = [pandas.read_parquet(table).query("sample == -1").set_index("prompt_id")["correct"] for table, _ in files]
    both = pandas.concat(greedy, axis=1, join="inner", keys=["before", "after"]).sort_index()
    estimates = [read_estimates(run_dir, policy).items() for policy in ("base", "final")]
    before, after = (next(value for key, value in found if key.endswith("/greedy_accuracy")) for found in estimates)
    pair = [both[name].astype(bool).tolist() for name in ("before", "after")]
    return BeforeAfter(
        step=read_json(files[-1][1])["step"],
        num_prompts=len(both),
        before=before,
        after=after,
        difference=paired_difference(*pair),
        changes=answer_changes(*pair),
    )


def describe_result(records: Sequence[Record], comparison: BeforeAfter | None) -> list[str]:
    """Return what a run reached, one line a fact."""
    steps = [record for record in records if record.kind == "step"]
    if not steps:
        return ["no step was finished"]
    first = steps[: min(FIRST_STEPS, (len(steps) + 1) // 2)]
    last, final = steps[len(first) :][-LAST_STEPS:] or steps, steps[-1]  # no step is in both
    lines = [
        f"steps: {final.step}, reference syncs: {sum(record.kind == 'ref_sync' for record in records)}",
        f"reward: {_mean_reward(first):.3f} (first {len(first)} steps) -> {_mean_reward(last):.3f} (last {len(last)} steps)",
        f"KL per token at the last step: {final.metrics['kl/ref/drift']:.4f} to the reference"
        + (f", {final.metrics['kl/init/drift']:.4f} to the initial policy" if "kl/init/drift" in final.metrics else ""),
    ]
    key = f"eval/{HELD_OUT_SAMPLE}/greedy_accuracy"
    evaluated = [record for record in records if record.kind == "eval" and key in record.metrics]
    if evaluated:
        best = max(evaluated, key=lambda record: record.metrics[key])
        lines.append(f"best checkpoint: step {best.step}, held-out greedy accuracy {best.metrics[key]:.3f} during training")
    return lines if comparison is None else [*lines, *comparison.lines()]


def _mean_reward(records: Sequence[Record]) -> float:
    return sum(record.metrics["reward/mean"] for record in records) / len(records)


def run_status(run_dir: RunDir, journal: CheckedJournal | None = None) -> RunStatus:
    """Return where a run is, from its journal and its process.

    Args:
        run_dir: the folder.
        journal: what `check_run` has found there a moment ago; None = it is read now.

    Raises:
        GrpoError: the folder holds no run, or one whose journal is damaged or whose configuration was edited.
    """
    journal = journal or check_run(run_dir)
    last = next((record for record in reversed(journal.history) if record.kind == "step"), None)
    state, reason = run_state(journal.history, run_dir)
    return RunStatus(
        state=state,
        reason=reason,
        step=0 if last is None else last.step,
        steps=run_dir.read_config().training.steps,
        last=last,
        num_syncs=sum(record.kind == "ref_sync" for record in journal.history),
        alerts=all_alerts(run_dir, journal.history),
        warnings=next((tuple(first.data.get("warnings", ())) for first in journal.history if first.kind == "start"), ()),
        notes=journal.notes,
    )


def run_state(records: Sequence[Record], run_dir: RunDir) -> tuple[str, str | None]:
    """Return the state of a run with this history, as `RunStatus.state` has it, and why it stopped or failed."""
    last = last_event(records)
    if last is not None and last.kind == "end":
        return str(last.data.get("status")), last.data.get("reason")
    if process_runs(run_dir.process_file):
        return "running", None
    if last is None and not process_has_started(run_dir.process_file):
        return "not started", None
    return "died", "the training process is gone and left no end record"


def all_alerts(run_dir: RunDir, history: Iterable[Record]) -> tuple[str, ...]:
    """Return the text of every alert of a run, as `raised_alerts` orders them."""
    return tuple(alert.text for alert in raised_alerts(run_dir, history))


def raised_alerts(run_dir: RunDir, history: Iterable[Record]) -> list[RaisedAlert]:
    """Return every alert of a run in the order of the steps; of one step, those of the training's journal first."""
    of_training = [RaisedAlert(step=record.step, text=str(record.data.get("text"))) for record in history if is_alert(record)]
    return sorted([*of_training, *monitor_alerts(run_dir)], key=lambda alert: alert.step)
