"""A run, opened for reading: its figures, syncs, evaluations and completions as tables."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas

from grpo_core.config import run_name
from grpo_core.run.curves import CURVE_KINDS, RunCurves, read_curves, step_table, sync_table
from grpo_core.run.folder import RunDir, monitor_alerts
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.summary import run_state

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROBE = "kl/probe/"
EVALUATION_COLUMNS = ("step", "set", "policy", "num_prompts")


class Run:
    """One run as its folder holds it at the moment of opening; a run under way is opened again to see its newest steps.

    Steps that a resume took back are left out: what remains is one history, as `run/journal.py` defines it.

    Attributes:
        dir: where each of its files lies.
        config: the resolved configuration.
        records: the history of the run, record by record.
        notes: what a reader of its figures should know: it was resumed with smaller passes, or the journal was repaired.
        state: `not started`, `running`, `finished`, `stopped`, `failed` or `died`.
        reason: why it stopped or failed, if it did.

    Example:
        run = Run("runs/20260101-100000-quickstart")
        run.steps.plot(x="step", y=["kl/ref/drift", "kl/init/drift"])
    """

    def __init__(self, path: str | Path) -> None:
        """Open the run in a folder and check its journal.

        Raises:
            JournalError: there is no such folder, it holds no run, or the run's journal is damaged.
            ConfigError: config.json was edited after the run had begun.
        """
        self.dir = RunDir(Path(path).expanduser())
        self.config = self.dir.read_config()
        journal = check_run(self.dir)
        self.records: tuple[Record, ...] = tuple(journal.history)
        self.notes = journal.notes
        self.state, self.reason = run_state(self.records, self.dir)

    def __repr__(self) -> str:
        """Return `Run('runs/one'): β=0.04 ..., finished, step 30 of 30`."""
        return f"Run({str(self.path)!r}): {self.name}, {self.state}, step {self.last_step} of {self.config.training.steps}"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.dir.path

    @cached_property
    def name(self) -> str:
        """What the run is called in MLflow and Prefect."""
        return run_name(self.config, self.dir.read_origin())

    @property
    def last_step(self) -> int:
        """The last step that was finished; 0 where there is none."""
        return max((record.step for record in self.records if record.kind == "step"), default=0)

    @cached_property
    def steps(self) -> pandas.DataFrame:
        """One row a step: the column `step`, then the metrics of METRICS.md; without rows before the first step."""
        return step_table(self.records).reset_index()

    @cached_property
    def syncs(self) -> pandas.DataFrame:
        """One row a reference sync: step, alpha, sync_count, kl_before, kl_after (nats per token), param_distance."""
        return sync_table(self.records)

    @cached_property
    def probes(self) -> pandas.DataFrame:
        """One row a step at which the exact KL on the probe set was measured: `step`, then the metrics `kl/probe/...`."""
        columns = [column for column in self.steps.columns if str(column).startswith(PROBE)]
        return self.steps[["step", *columns]].dropna(subset=columns, how="all").reset_index(drop=True)

    @cached_property
    def evaluations(self) -> pandas.DataFrame:
        """One row an evaluation: step, set, policy, num_prompts, its metrics, and each one's 95 % interval.

        The policy is `base` (before training), `final`, or `training` (at that step). Intervals are in the columns
        `<metric>/low` and `<metric>/high`, where the journal holds them.
        """
        rows = [_evaluation(record) for record in self.records if record.kind == "eval"]
        return pandas.DataFrame(rows, columns=list(dict.fromkeys((*EVALUATION_COLUMNS, *(key for row in rows for key in row)))))

    @cached_property
    def completions(self) -> pandas.DataFrame:
        """One row a completion of the steps whose tables were kept (`training.completions_every`), in the order of steps."""
        files = [self.dir.completions_file(record.step) for record in self.records if record.kind == "step"]
        tables = [pandas.read_parquet(file) for file in files if file.exists()]
        return pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame({"step": pandas.Series(dtype=int)})

    def plot(self, what: Literal["drift", "reward"] = "drift") -> "Figure":
        """Return a figure of the run's report: its KL and entropy (`drift`), or its reward and accuracy, over steps."""
        from grpo_core.run.figures import drift_figure, reward_figure

        alarms = {alert.step for alert in monitor_alerts(self.dir)}
        return {"drift": drift_figure, "reward": reward_figure}[what](self.records, alarms)

    def curves(self, *keys: str) -> RunCurves:
        """Return metrics as arrays over steps, with the syncs: those of reports and `grpo compare`, or the named ones."""
        return read_curves(self.records, keys or tuple(CURVE_KINDS))


def _evaluation(record: Record) -> dict[str, Any]:
    facts, estimates = record.data, record.data.get("estimates", {})
    ends = {f"{key}/{end}": found[end] for key, found in estimates.items() for end in ("low", "high") if end in found}
    named = {"set": facts.get("set"), "policy": facts.get("policy", "training"), "num_prompts": facts.get("num_prompts")}
    return {"step": record.step, **named, **record.metrics, **ends}
