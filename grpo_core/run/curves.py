"""Curves of a run over its steps, with its reference syncs: what the run's page, `grpo compare` and a notebook plot.

The arrays are the journal's own figures: nothing is smoothed, joined or filled in. A curve holds the steps at which its metric
was measured and no others; a figure that was not finite stays in it as NaN or infinity.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from grpo_core.config import run_name
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.summary import run_state
from grpo_core.types import SCHEDULE

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

AT_POSITION = re.compile(r"kl/probe/init_at_(\d+)")
AFTER_STEP = 0.5
"""A sync happens after its step and holds from the next one: its mark is half a step later."""


FORGETTING = "kl/probe/forward_init"


@dataclass(frozen=True, kw_only=True)
class CurveKind:
    """What one curve shows: a metric of METRICS.md, and the one that is its standard error."""

    key: str
    title: str
    unit: str
    error: str | None = None


CURVE_KINDS = {
    kind.key: kind
    for kind in (
        CurveKind(key="kl/ref/drift", title="KL to the reference", unit="nats per token", error="kl/ref/drift_se"),
        CurveKind(key="kl/init/drift", title="KL to the initial policy", unit="nats per token", error="kl/init/drift_se"),
        CurveKind(
            key="kl/probe/full_init",
            title="Exact KL to the initial policy, on the probe",
            unit="nats per token",
            error="kl/probe/se_init",
        ),
        CurveKind(
            key="kl/probe/full", title="Exact KL to the reference, on the probe", unit="nats per token", error="kl/probe/se"
        ),
        CurveKind(
            key=FORGETTING,
            title="Forward KL from the initial policy, on its completions",
            unit="nats per completion",
            error=f"{FORGETTING}_se",
        ),
        CurveKind(key="reward/mean", title="Reward", unit="reward per completion"),
        CurveKind(key="completion/tokens/mean", title="Completion length", unit="tokens"),
        CurveKind(key="eval/heldout/greedy_accuracy", title="Held-out accuracy", unit="share of prompts"),
        CurveKind(key="eval/heldout_sample/greedy_accuracy", title="Held-out accuracy, on a sample", unit="share of prompts"),
        CurveKind(key="policy/entropy", title="Entropy", unit="nats per token"),
        CurveKind(key="group/zero_std_frac", title="Groups with equal rewards", unit="share of groups"),
        CurveKind(key="group/best_mean", title="Best reward of a group", unit="reward per completion"),
        CurveKind(key="completion/truncated_frac", title="Truncated completions", unit="share of completions"),
    )
}
"""What reports and comparisons draw, in their order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric over steps, which ascend; an evaluation before training is of step 0.

    `low` and `high` are one standard error to each side of a KL, the 95 % interval of an evaluation; None where not known.
    """

    key: str
    steps: Steps
    values: Floats
    low: Floats | None = None
    high: Floats | None = None

    def __len__(self) -> int:
        """Return how often the metric was measured."""
        return len(self.steps)

    def points(self, most: int) -> dict[str, list[Any]]:
        """Return steps, values and, where known, low and high as lists for a page.

        Of more than `most` points, the least and the greatest of each stretch, and both ends.
        """
        kept = np.arange(len(self)) if len(self) <= most else np.flatnonzero(np.isfinite(self.values))
        if len(kept) > most:
            stretches = np.array_split(kept, most // 2 - 1)
            ends = [stretch[pick(self.values[stretch])] for stretch in stretches for pick in (np.argmin, np.argmax)]
            kept = np.unique([*kept[:1], *ends, *kept[-1:]])
        return self.lists(kept)

    def lists(self, kept: Any = slice(None), digits: int | None = None) -> dict[str, list[Any]]:
        """Return steps, values and, where known, low and high, all or those at an index, with so many significant digits."""
        arrays = {"steps": self.steps, "values": self.values, "low": self.low, "high": self.high}
        found = {name: array[kept].tolist() for name, array in arrays.items() if array is not None}
        return found | {
            name: [float(f"{one:.{digits}g}") for one in part] for name, part in found.items() if digits and name != "steps"
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class SyncMarks:
    """The reference syncs of a run, in their order: after which step, and the KL to the reference in nats per token."""

    steps: Steps
    kl_before: Floats
    kl_after: Floats

    @property
    def places(self) -> Floats:
        """Where each is marked on an axis of steps."""
        return self.steps.astype(np.float64) + AFTER_STEP

    def __len__(self) -> int:
        """Return how many there were."""
        return len(self.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCurves:
    """The curves of one run by metric, without those that it never measured, and its syncs."""

    curves: Mapping[str, Curve]
    syncs: SyncMarks

    def get(self, key: str) -> Curve | None:
        """Return the curve of a metric; None where the run never measured it."""
        return self.curves.get(key)


def read_curves(records: Sequence[Record], keys: Iterable[str] = tuple(CURVE_KINDS)) -> RunCurves:
    """Return curves of a run.

    Args:
        records: its history, as `read_journal` or `Run.records` gives it.
        keys: metrics of METRICS.md.
    """
    found = {key: read_curve(records, key) for key in keys}
    syncs = sync_table(records)
    return RunCurves(
        curves={key: curve for key, curve in found.items() if len(curve)},
        syncs=SyncMarks(
            steps=syncs["step"].to_numpy(dtype=np.int64),
            kl_before=syncs["kl_before"].to_numpy(dtype=float),
            kl_after=syncs["kl_after"].to_numpy(dtype=float),
        ),
    )


def read_curve(records: Sequence[Record], key: str) -> Curve:
    """Return one metric over the steps at which it was measured; of length 0 where it never was."""
    # A dictionary: an evaluation that was repeated after a crash has two records at its step, and the last one counts.
    measured = {record.step: record for record in records if key in record.metrics}
    found = [measured[step] for step in sorted(measured)]
    steps = np.asarray([record.step for record in found], dtype=np.int64)
    values = np.asarray([record.metrics[key] for record in found], dtype=float)
    error = CURVE_KINDS[key].error if key in CURVE_KINDS else None
    ends = np.asarray([_ends(record, key, error) for record in found], dtype=float).reshape(-1, 2)
    low, high = (None, None) if np.isnan(ends).all() else ends.T
    return Curve(key=key, steps=steps, values=values, low=low, high=high)


def _ends(record: Record, key: str, error: str | None) -> tuple[float, float]:
    """Return the ends of the bar of a figure; NaN where its record does not hold them."""
    if error is not None and error in record.metrics:
        return record.metrics[key] - record.metrics[error], record.metrics[key] + record.metrics[error]
    found = record.data.get("estimates", {}).get(key, {})
    return found.get("low", math.nan), found.get("high", math.nan)


SYNC_COLUMNS: dict[str, type[int] | type[float] | type[str]] = {
    "step": int,
    "alpha": float,
    "sync_count": int,
    "kl_before": float,
    "kl_after": float,
    "param_distance": float,
    "cause": str,
}
OF_ADAPTERS = ("compression_error", "compression_bound")
"""Columns more where the reference is an average of adapters."""


def read_table(file: Path) -> pandas.DataFrame | None:
    """Return a table of completions; None where there is no such file."""
    return pandas.read_parquet(file) if file.exists() else None


def step_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a step, one column a metric key, indexed by step."""
    rows = {record.step: dict(record.metrics) for record in records if record.kind == "step"}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("step").sort_index()


def sync_table(records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row a reference sync: step, alpha, sync_count, kl_before, kl_after, param_distance, cause.

    Where the reference is an average of adapters, also compression_error and compression_bound.
    """
    syncs = [record for record in records if record.kind == "ref_sync"]
    columns = SYNC_COLUMNS | {name: float for name in OF_ADAPTERS if any(name in record.data for record in syncs)}
    rows = [{"cause": SCHEDULE, **record.data} for record in syncs]
    return pandas.DataFrame(rows, columns=list(columns)).astype(columns)  # NaN and infinities, too: they are text in it


def read_places(records: Sequence[Record]) -> pandas.DataFrame | None:
    """Return what a run's journal holds of where its drift is; None where it was never probed.

    A row for each bin of positions (`0`, `1`, `2-3`, `4-7`, ... as in every run), a column for each step with a probe, in it
    the exact KL to the initial policy in nats a token; NaN where no completion was as long.
    """
    steps = step_table(records)
    starts = sorted(int(match[1]) for key in steps.columns if (match := AT_POSITION.fullmatch(str(key))))
    found = steps[[f"kl/probe/init_at_{start}" for start in starts]].dropna(how="all").T
    found.index = pandas.Index([str(start) if start < 2 else f"{start}-{2 * start - 1}" for start in starts])
    return None if found.empty else found


PROBE = "kl/probe/"
EVALUATION_COLUMNS = ("step", "set", "policy", "num_prompts")


class Run:
    """One run as its folder holds it at the moment of opening; a run under way is opened again to see its newest steps.

    Steps that a resume took back are left out: what remains is one history, as `run/journal.py` defines it.

    Attributes:
        dir: where each of its files lies.
        config: the resolved configuration.
        records: the history of the run, record by record.
        notes: what a reader of its figures should know: it was resumed with other passes, or the journal was repaired.
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
        """Return `Run('runs/one'): β 0.04 · ..., finished, step 30 of 30`."""
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
        """One row a completion of the steps whose tables were kept (`training.completions_every`), in the order of steps.

        Where prompts have images, `images` holds a list of their digests: names of files in `data/images` of the folder.
        """
        files = [self.dir.completions_file(record.step) for record in self.records if record.kind == "step"]
        tables = [pandas.read_parquet(file) for file in files if file.exists()]
        found = pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame({"step": pandas.Series(dtype=int)})
        if "images" in found:  # a step whose prompts have none has no such column
            found["images"] = [list(cell) if isinstance(cell, np.ndarray) else [] for cell in found["images"]]
        return found

    def curves(self, *keys: str) -> RunCurves:
        """Return metrics as arrays over steps, with the syncs: those of reports and `grpo compare`, or the named ones."""
        return read_curves(self.records, keys or tuple(CURVE_KINDS))


def _evaluation(record: Record) -> dict[str, Any]:
    facts, estimates = record.data, record.data.get("estimates", {})
    ends = {f"{key}/{end}": found[end] for key, found in estimates.items() for end in ("low", "high") if end in found}
    named = {"set": facts.get("set"), "policy": facts.get("policy", "training"), "num_prompts": facts.get("num_prompts")}
    return {"step": record.step, **named, **record.metrics, **ends}
