"""The folder of one sweep: where each thing lies, and nothing else.

.grpo-folder  sweep.json  <base>.yaml  arms.json  begun.jsonl  outcomes.jsonl  sessions.json  tracking.json  flow_run  lock
study.json  study.db  runs/arm-000-seed-0/ ...  results/  report/
"""

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic.dataclasses import dataclass as stored_dataclass

from grpo_core.errors import GrpoError, SweepError, cause
from grpo_core.machine.jsonfile import STORED, Count, append_json, build, parse_json, read_json, write_json
from grpo_core.machine.marker import Kind
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.plan import Plan, make_plan

SWEEP_FILE = "sweep.json"


@stored_dataclass(frozen=True, kw_only=True, config=STORED)
class Outcome:
    """How one run of a sweep ended."""

    arm: Count
    seed: Count
    status: str
    """`finished`, `stopped` (a rule, a person), `pruned` or `failed`."""
    cause: str | None = None
    """Why it was stopped or pruned, or how it failed."""
    wall_seconds: float = 0.0
    """From its start to its end, in all sessions, waiting for a slot included; 0.0 where it never ran."""


@dataclass(frozen=True)
class SweepDir(FlowDir):
    """Paths of one sweep, and the records in them."""

    what: ClassVar[str] = "sweep dir"
    option: ClassVar[str] = "--sweep-dir"
    kinds: ClassVar[tuple[str, ...]] = ("sweep",)
    subfolders: ClassVar[tuple[str, ...]] = ("results", "report")
    files: ClassVar[tuple[str, ...]] = (
        *FlowDir.files,
        "runs",  # what is in it may lie behind links: each is a folder of its own
        SWEEP_FILE,
        "arms.json",
        "begun.jsonl",
        "outcomes.jsonl",
        "sessions.json",
        "study.json",
        "study.db",
    )

    @property
    def sweep_file(self) -> Path:
        """The sweep's own keys, and its id."""
        return self.path / SWEEP_FILE

    @property
    def arms_file(self) -> Path:
        """The arms that have been chosen so far; the study's trials, readable without it."""
        return self.path / "arms.json"

    @property
    def outcomes_file(self) -> Path:
        """One JSON line a run that has ended."""
        return self.path / "outcomes.jsonl"

    @property
    def begun_file(self) -> Path:
        """One JSON line a beginning of a run: when it was started, or went on."""
        return self.path / "begun.jsonl"

    @property
    def sessions_file(self) -> Path:
        """When the sweep was at work: [[start, last sign of life], ...] in seconds since 1970."""
        return self.path / "sessions.json"

    @property
    def study_file(self) -> Path:
        """The Optuna study, where it is SQLite."""
        return self.path / "study.db"

    @property
    def report(self) -> Path:
        """Page, figures and tables."""
        return self.path / "report"

    @property
    def results(self) -> Path:
        """Tables of all runs and of all their steps."""
        return self.path / "results"

    def run_dir(self, arm: int, seed: int) -> RunDir:
        """Return where the run of an arm with a seed lies."""
        return RunDir(self.path / "runs" / f"arm-{arm:03d}-seed-{seed}")

    def log_file(self, arm: int, seed: int) -> Path:
        """Return where the output of such a run goes, beside its folder: it may fail before it has one."""
        return self.path / "runs" / f"arm-{arm:03d}-seed-{seed}.log"

    def create(self, plan: Plan, name: str, sweep_id: str) -> None:
        """Make the folder and write the sweep and its base into it.

        Raises:
            SweepError: the folder already holds a sweep, or cannot be written.
            FolderError: it is not empty and not ours.
        """
        self.refuse_second_sweep()
        self.mark("sweep")
        try:
            (self.path / "runs").mkdir(exist_ok=True)
            base = self.path / f"{plan.preset}.yaml"
            base.write_text(yaml.safe_dump(dict(plan.base), sort_keys=False, allow_unicode=True), encoding="utf-8")
            sweep = {**plan.sweep.model_dump(mode="json"), "base": str(base.resolve()), "overrides": {}}
            write_json(self.sweep_file, {"id": sweep_id, "name": name, "sweep": sweep})
        except OSError as error:
            raise SweepError(
                f"sweep dir {self.path}: cannot be written ({error.strerror}); give another --sweep-dir"
            ) from error

    def refuse_second_sweep(self) -> None:
        """Keep a sweep from being written over.

        Raises:
            SweepError: the folder already holds a sweep.
        """
        if self.sweep_file.exists() and (self.marker() is not None or self.why_not_older() is None):
            raise SweepError(f"sweep dir {self.path}: already holds a sweep; `grpo sweep --resume {self.path}` goes on with it")

    def why_not_older(self) -> str | None:
        """Return why a folder without a marker holds no sweep of an older version; None where it does."""
        try:
            self.read()
        except (GrpoError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            return cause(error)
        return None

    def older_kind(self) -> Kind:
        """Return what a sweep is."""
        return "sweep"

    def read(self) -> "StoredSweep":
        """Return the sweep of the folder, checked again.

        Raises:
            SweepError: the folder holds no sweep.
            ConfigError: its files were changed into something invalid.
        """
        try:
            facts = read_json(self.sweep_file)
            stored = {key: facts[key] for key in ("id", "name", "sweep")}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SweepError(
                f"sweep dir {self.path}: no readable {SWEEP_FILE} ({cause(error)}); give a sweep's folder"
            ) from error
        base = self.path / Path(stored["sweep"]["base"]).name  # the folder may have moved
        return StoredSweep(
            id=stored["id"],
            name=stored["name"],
            plan=make_plan({**stored["sweep"], "base": str(base)}, begun=True),
            base=base,
        )

    def write_arms(self, arms: Mapping[int, Arm]) -> None:
        """Write the arms that have been chosen so far."""
        write_json(self.arms_file, {str(number): dict(arm.values) for number, arm in arms.items()})

    def read_arms(self) -> dict[int, Arm]:
        """Return the arms that have been chosen so far, by number.

        Raises:
            SweepError: the file was changed into something else.
        """
        if not self.arms_file.exists():
            return {}
        try:
            facts = read_json(self.arms_file)
            return {int(number): Arm(number=int(number), values=dict(values)) for number, values in facts.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise SweepError(f"{self.arms_file}: not the arms of a sweep ({cause(error)})") from error

    def add_outcome(self, outcome: Outcome) -> None:
        """Append how a run ended, in the place of a last line that was torn; it is on disk when this returns."""
        append_json(self.outcomes_file, asdict(outcome))

    def read_outcomes(self) -> dict[tuple[int, int], Outcome]:
        """Return how the runs have ended, by (arm, seed); the last line of each counts, a torn last line is dropped.

        Raises:
            SweepError: a whole line is no outcome.
        """
        if not self.outcomes_file.exists():
            return {}
        outcomes = {}
        for number, line in enumerate(self.outcomes_file.read_bytes().split(b"\n")[:-1], start=1):
            try:
                outcome = build(Outcome, parse_json(line))
            except ValueError as error:
                raise SweepError(f"{self.outcomes_file}, line {number}: not an outcome ({cause(error)})") from error
            outcomes[outcome.arm, outcome.seed] = outcome
        return outcomes

    def note_begin(self, arm: int, seed: int) -> None:
        """Write down that a run begins, or goes on, now."""
        append_json(self.begun_file, {"arm": arm, "seed": seed, "time": time.time()})

    def wall_seconds(self, arm: int, seed: int) -> float:
        """Return how long a run that has just ended was under way, in all sessions, waiting for a slot included."""
        begun = [entry["time"] for entry in self._begun() if (entry["arm"], entry["seed"]) == (arm, seed)]
        ends = [*begun[1:], time.time()]
        return float(sum(min(self._session_end(start), end) - start for start, end in zip(begun, ends, strict=True)))

    def _begun(self) -> list[Mapping[str, Any]]:
        lines = self.begun_file.read_bytes().split(b"\n")[:-1] if self.begun_file.exists() else []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):  # a line that something else has damaged
                entries.append(parse_json(line))
        return entries

    def _session_end(self, moment: float) -> float:
        """Return the last sign of life of the session at work at a moment; without limit for the newest."""
        sessions = self.sessions()
        return next((max(end, moment) for start, end in sessions[:-1] if start <= moment <= end), math.inf)

    def sessions(self) -> list[list[float]]:
        """Return when the sweep was at work."""
        try:
            return [[float(start), float(end)] for start, end in read_json(self.sessions_file)]
        except (OSError, ValueError, TypeError):
            return []

    def elapsed_seconds(self) -> float:
        """Return how long the sweep has been at work, all sessions together."""
        return sum(end - start for start, end in self.sessions())


@dataclass(frozen=True, kw_only=True)
class StoredSweep:
    """A sweep as its folder holds it."""

    id: str
    """What its runs are labelled with, and the name of its Optuna study."""
    name: str
    plan: Plan
    base: Path
    """File of the base, with the sweep's overrides applied: what its runs are started with."""


def run_facts(stored: StoredSweep, arm: Arm, seed: int) -> dict[str, Any]:
    """Return what names and groups one run in MLflow: its name and labels."""
    return {
        "tracking.run_name": f"{arm.name} seed={seed}",
        "tracking.labels": {
            "sweep": stored.id,
            "arm": f"{arm.number:03d}",
            **{key: str(value) for key, value in arm.values.items()},
        },
    }
