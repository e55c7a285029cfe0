"""The folder of one sweep: where each thing is, and what its files hold.

.grpo-folder  preregistered.json  sweep.json  <base>.yaml  arms.json  outcomes.jsonl  tracking.json  flow_run  lock  study.db
runs/arm-000-seed-0/ ...  results/  report/  vllm/
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.config.loading import dump_yaml
from grpo_core.config.section import MOST_TITLE
from grpo_core.config.spelling import SETTING, cut
from grpo_core.errors import SweepError, raised_as
from grpo_core.machine.disk import append_json, read_json, read_lines, write_json, write_whole
from grpo_core.run.flow_folder import FlowDir, Place
from grpo_core.run.folder import RunDir
from grpo_core.run.resuming import path_argument
from grpo_core.sweep.arms import Arm, Outcome, arm_overrides
from grpo_core.sweep.plan import Plan, make_plan

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepDir(FlowDir):
    """Paths of one sweep, and the records in them."""

    what: ClassVar[str] = "sweep dir"
    option: ClassVar[str] = "--sweep-dir"
    kinds: ClassVar[tuple[str, ...]] = ("sweep",)

    preregistered_file = Place("preregistered.json")
    """What was to be answered and how, as it was before the first run."""
    sweep_file = Place(SWEEP_FILE)
    arms_file = Place("arms.json")
    """The arms that have been chosen so far; the study's trials, readable without it."""
    outcomes_file = Place("outcomes.jsonl")
    study_file = Place("study.db")
    """The Optuna study, where it is SQLite."""
    runs = Place("runs")
    """A folder for each run. What is in it may lie behind links, so it is watched as a file is."""
    results = Place("results")
    report = Place("report")
    page = Place("report/report.html")
    vllm = Place("vllm")
    """vLLM servers that the runs hand on, for the owner alone."""

    def run_dir(self, arm: int, seed: int) -> RunDir:
        """Return where the run of an arm with a seed lies."""
        return RunDir(self.runs / f"arm-{arm:03d}-seed-{seed}")

    def log_file(self, arm: int, seed: int) -> Path:
        """Return where the output of such a run goes, beside its folder: it may fail before it has one."""
        return self.runs / f"arm-{arm:03d}-seed-{seed}.log"

    def create(self, plan: Plan, name: str, sweep_id: str, import_from: tuple[str, ...] = ()) -> None:
        """Make the folder and write the sweep and its base into it.

        Args:
            plan: the sweep, checked.
            name: of it.
            sweep_id: its label in MLflow.
            import_from: folders in which its runs look for reward functions.

        Raises:
            SweepError: the folder already holds a sweep, or cannot be written.
            FolderError: it is not empty and not ours.
        """
        self.refuse_second_sweep()
        self.mark("sweep")
        base = self.path / f"{plan.preset}.yaml"
        with raised_as(SweepError, f"sweep dir {self.path}: cannot be written ({{cause}}); give another --sweep-dir", OSError):
            self.runs.mkdir(exist_ok=True)
            write_whole(base, dump_yaml(plan.base))
            self.write(StoredSweep(dir=self, id=sweep_id, name=name, plan=plan, base=base, import_from=import_from))

    def write(self, stored: "StoredSweep") -> None:
        """Write the sweep itself; whoever reads it, also after a kill, finds all of it or what was there before.

        Raises:
            OSError: it cannot be written.
        """
        # The base has them, but forks begin with another run's configuration.
        overrides = stored.plan.sweep.overrides if stored.plan.sweep.fork else {}
        sweep = {**stored.plan.sweep.model_dump(mode="json"), "base": str(stored.base.resolve()), "overrides": overrides}
        facts = {"id": stored.id, "name": stored.name, "import_from": stored.import_from, "extensions": stored.extensions}
        write_json(self.sweep_file, {**facts, "sweep": sweep})

    def refuse_second_sweep(self) -> None:
        """Keep a sweep from being written over.

        Raises:
            SweepError: the folder already holds a sweep.
        """
        if self.sweep_file.exists() and self.marker() is not None:
            resume = f"grpo sweep --resume {path_argument(self.path)}"
            raise SweepError(f"sweep dir {self.path}: already holds a sweep; `{resume}` resumes it")

    def read(self) -> "StoredSweep":
        """Return the sweep of the folder, checked again.

        Raises:
            SweepError: the folder holds no sweep.
            FolderError: another version made it.
            ConfigError: its files were changed into something invalid.
        """
        self.marker()
        what = f"sweep dir {self.path}: no readable {SWEEP_FILE} ({{cause}}); give a sweep's folder"
        with raised_as(SweepError, what, OSError, ValueError, LookupError, TypeError):
            file = read_json(self.sweep_file)
            base = self.path / Path(file["sweep"]["base"]).name  # the folder may have moved
            return StoredSweep(
                dir=self,
                id=file["id"],
                name=file["name"],
                plan=make_plan({**file["sweep"], "base": str(base)}),
                base=base,
                import_from=tuple(file["import_from"]),
                extensions=tuple(file.get("extensions", ())),
            )

    def write_arms(self, arms: Mapping[int, Arm]) -> None:
        """Write the arms that have been chosen so far."""
        write_json(self.arms_file, {str(number): dict(arm.values) for number, arm in arms.items()})

    def read_arms(self) -> dict[int, Arm]:
        """Return the arms that have been chosen so far, by number."""
        arms = read_json(self.arms_file) if self.arms_file.exists() else {}
        return {int(number): Arm(number=int(number), values=values) for number, values in arms.items()}

    def add_outcome(self, outcome: Outcome) -> None:
        """Append how a run ended, in the place of a last line that was torn; it is on disk when this returns."""
        append_json(self.outcomes_file, asdict(outcome))

    def read_outcomes(self) -> dict[tuple[int, int], Outcome]:
        """Return how the runs have ended, by (arm, seed); the last line of each counts, a torn last line is dropped."""
        outcomes = [Outcome(**json.loads(line)) for line in read_lines(self.outcomes_file)]
        return {(outcome.arm, outcome.seed): outcome for outcome in outcomes}


@dataclass(frozen=True, kw_only=True)
class StoredSweep:
    """A sweep as its folder holds it."""

    dir: SweepDir
    id: str
    """Its runs have it as a label, and its Optuna study as a name."""
    name: str
    plan: Plan
    base: Path
    """File of the base, with the sweep's overrides applied: what its runs are started with."""
    import_from: tuple[str, ...] = ()
    """Folders in which the runs look for reward functions: of the sweep's start, and of its base."""
    extensions: tuple[str, ...] = ()
    """What was added to it after its first runs: a sentence each, which its report says."""

    def run_overrides(self, arm: Arm, seed: int) -> dict[str, Any]:
        """Return what one run changes of the base, with what names and groups it in MLflow.

        Raises:
            ConfigError: the arm cannot keep the sweep's invariant.
        """
        named = {key: level for key, level in arm.values.items() if key == SETTING}
        return {
            **self.plan.sweep.overrides,
            **arm_overrides(self.plan.sweep, self.plan.base, arm.values),
            "training.seed": seed,
            "tracking.run_name": cut(arm.run_name(seed), MOST_TITLE),
            "tracking.labels": {"sweep": self.id, "arm": f"{arm.number:03d}", **named},
        }
