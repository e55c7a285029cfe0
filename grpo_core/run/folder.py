"""The folder of one run: where each thing lies, and the small files in it.

config.json  origin.json    the resolved configuration; the preset, and what was changed of it
provenance.json             what the run was made with
data/                       frozen prompts
given/                      of a run from Python: the source of its reward functions and its rows, as they were given
journal.jsonl               the truth; journal.damaged-<time>.jsonl after a repair
alerts.jsonl                one line an alert of the monitor: the journal itself has one writer, the training
completions/  probe/        one Parquet table a step, or a measurement of the probe set
blackbox/                   the worst tokens of the newest steps, and of those before an alert (`black_box.py`)
checkpoints/                step_NNNNNN folders
index.html                  the page of the run
summary.json                what the run reached; a flow that has written it is complete
eval/  report/              results of evaluations; the report of a folder that holds an evaluation alone
original/                   of a reproduction: configuration, provenance, prompts, journal of the run that it repeats
source/                     of an evaluation: what was downloaded of the run that made the policy
parent/                     of a fork: the run from which it goes on, with the checkpoint before (`forking.py`)
passes.json                 how much a run that was resumed with other passes computes at once, and in how many processes
process.json  train.log     process id of the training process while it runs; its output
ranks/                      why processes of a training that has several have failed
STOP                        asks the training to finish the step, checkpoint and end; its text says why
.grpo-folder  lock  flow_run  tracking.json      those of every flow's folder (`flow_folder.py`)
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.config import Origin, RunConfig, apply_overrides, validate_config
from grpo_core.config.derived import weight_shards
from grpo_core.errors import ConfigError, JournalError, raised_as, shown
from grpo_core.machine.disk import FILE_MODE, append_json, build, read_json, read_lines, remove, write_json, write_whole
from grpo_core.run.flow_folder import FlowDir, Kind, Place
from grpo_core.run.journal import JOURNAL_FILE, Record, read_journal

PROMPTS_MANIFEST = "data/manifest.json"


@dataclass(frozen=True)
class RunDir(FlowDir):
    """Paths of one run."""

    what: ClassVar[str] = "run dir"
    kinds: ClassVar[tuple[str, ...]] = ("run", "evaluation", "reproduction")

    config_file = Place("config.json")
    origin_file = Place("origin.json")
    provenance_file = Place("provenance.json")
    journal_file = Place(JOURNAL_FILE)
    alerts_file = Place("alerts.jsonl")
    passes_file = Place("passes.json")
    process_file = Place("process.json")
    stop_file = Place("STOP")
    ranks = Place("ranks")
    data = Place("data")
    images = Place("data/images")
    given = Place("given")
    completions = Place("completions")
    probe = Place("probe")
    black_box = Place("blackbox")
    checkpoints = Place("checkpoints")
    eval = Place("eval")
    report = Place("report")
    page = Place("index.html")
    summary_file = Place("summary.json")
    original = Place("original")
    parent = Place("parent")
    also_file = Place("also.json")
    source = Place("source")

    def completions_file(self, step: int) -> Path:
        """Completions of a step."""
        return self.completions / f"step_{step:06d}.parquet"

    def probe_file(self, step: int) -> Path:
        """Tokens of the probe set, as measured in a step."""
        return self.probe / f"step_{step:06d}.parquet"

    def log_file(self, process: str) -> Path:
        """Output of a process of the run."""
        return self.path / f"{process}.log"

    @property
    def has_started(self) -> bool:
        """Whether a process of the run has been started, or its result was there: until then nothing would be lost with it."""
        begun = self.checkpoints.exists() or any(self.path.glob("*.log"))
        return begun or (not self.parent.exists() and (self.journal_file.exists() or self.eval.exists()))  # a fork inherits

    def request_stop(self, reason: str) -> None:
        """Ask the training to finish its step, checkpoint and end; a training that looks just now sees all of it or nothing.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self.stop_file, f"{reason}\n")

    def create(
        self,
        config: RunConfig,
        origin: Origin = Origin(),  # noqa: B008  (frozen)
        kind: Kind = "run",
        history: bytes = b"",
    ) -> None:
        """Take a folder for a new run, write the resolved configuration and its origin into it.

        Args:
            config: of the run.
            origin: of the configuration.
            kind: of the folder.
            history: with which the journal begins.

        Raises:
            JournalError: the folder already holds a run.
            FolderError: it is not empty and not ours.
        """
        self.refuse_second_run()
        self.mark(kind)
        write_json(self.origin_file, asdict(origin))
        if history:
            write_whole(self.journal_file, history)
        write_json(self.config_file, config.model_dump(mode="json"))

    def forget_start(self) -> None:
        """Remove what a start that came to nothing has left: of a run, a reproduction or an evaluation.

        Raises:
            FolderError: the folder is not ours.
            JournalError: it holds a run.
        """
        self.require_ours()
        self.refuse_second_run()
        folders = (self.data, self.eval, self.report, self.completions, self.probe, self.original, self.parent, self.source)
        settings = (self.config_file, self.origin_file, self.provenance_file, self.passes_file, self.flow_run_file, self.page)
        logs = (self.given, self.black_box, self.ranks, self.tracking_file, self.alerts_file, self.process_file, self.stop_file)
        for place in (*folders, *settings, *logs, self.journal_file):
            remove(place)

    def refuse_second_run(self) -> None:
        """Keep a run from being written over.

        Raises:
            JournalError: the folder already holds a run.
        """
        # A checkpoint without its journal is a run, too: a training that found it would resume from there.
        # A fork without its configuration, where its start was killed, is none yet.
        has_begun = self.journal_file.exists() and (self.config_file.exists() or not self.parent.exists())
        if self.kind is not None and (has_begun or self.checkpoints.exists()):
            raise JournalError(
                f"run dir {self.path}: already holds a run; give another --run-dir, or leave it out "
                f"(`grpo train --resume {self.path}` resumes that run)"
            )

    def close_private_files(self) -> None:
        """Let nobody but the owner read what may hold a secret: the git diff in the provenance, the store's address, logs."""
        for file in (self.provenance_file, self.tracking_file, *self.path.glob("*.log")):
            if file.exists():
                file.chmod(FILE_MODE)

    def read_provenance(self) -> dict[str, Any]:
        """Return what the run was made with; empty where that is not known yet."""
        return dict(read_json(self.provenance_file)) if self.provenance_file.exists() else {}

    def read_origin(self) -> Origin:
        """Return where the configuration comes from; a folder that was made by hand has no preset."""
        origin = build(Origin, read_json(self.origin_file)) if self.origin_file.exists() else Origin()
        return replace(origin, import_from=(*origin.import_from, *([str(self.given.resolve())] if self.given.is_dir() else [])))

    def read_config(self) -> RunConfig:
        """Return the resolved configuration; it is validated once a process, however often it is asked for.

        Raises:
            JournalError: the folder holds no run.
            FolderError: another version made it.
            ConfigError: the file was changed into something invalid.
        """
        self.marker()  # refuses the folder of another version, whose keys may have other names
        with raised_as(
            JournalError,
            f"run dir {self.path}: no readable config.json ({{cause}}); give the folder of a run",
            OSError,
            ValueError,
        ):
            return _resolved(self.config_file.read_bytes())


@lru_cache(maxsize=256)
def _resolved(content: bytes) -> RunConfig:
    """Return the configuration that a config.json with this content holds.

    The content is the key: whoever writes the file again, in this process or another, is read as written.
    """
    return validate_config(json.loads(content))


@dataclass(frozen=True, kw_only=True)
class RaisedAlert:
    """An alert that was raised, as alerts.jsonl holds it; `rule` is the name of a rule of the run, if it comes from one."""

    step: int
    text: str
    rule: str = ""


def add_alert(run_dir: RunDir, step: int, text: str, rule: str = "") -> None:
    """Append an alert of the monitor to alerts.jsonl; the journal itself has one writer, the training.

    Raises:
        OSError: it cannot be written.
    """
    append_json(run_dir.alerts_file, asdict(RaisedAlert(step=step, text=text, rule=rule)))


def monitor_alerts(run_dir: RunDir) -> list[RaisedAlert]:
    """Return the monitor's alerts, oldest first; a torn last line is dropped."""
    return [RaisedAlert(**json.loads(line)) for line in read_lines(run_dir.alerts_file)]


PASSES_FIELD = "passes"
"""Of a `start` or `resume` record."""
FIELDS = ("microbatch_tokens", "rollout_rows")
"""Of `training`: what a resume may lower."""
PROCESS_FIELDS = ("processes", "shards")
"""Of `training`: what a resume may raise as well."""
Processes = tuple[int, int]
"""Processes that computed steps together, and over how many of them the weights were spread."""


@dataclass(frozen=True)
class BatchLimits:
    """How much each step of a run computes at once, and in how many processes: as its configuration says, or a later resume.

    These settings decide memory and speed, and results in their last digits alone. So they are the only ones that a run may
    change once it has begun: a run that was out of memory continues on the same device with smaller passes, or on more of them.
    The wish is in `passes.json`; the `start` and `resume` records hold what is in force from their step on. A reproduction
    lowers sizes after the same steps as the run that it repeats; its processes are the same from its first step to its last.

    `changes` are (step after which they hold, {field: size}), the first of the configuration; the smallest of each counts.
    `processes` are {field: number} of a resume that has set them, and `computed_by` the processes of each session so far, then
    those of the next.
    """

    changes: tuple[tuple[int, Mapping[str, int]], ...]
    processes: Mapping[str, int]
    computed_by: tuple[Processes, ...]

    def after(self, step: float = math.inf) -> dict[str, int]:
        """Return {field: size} of the step that follows `step`, and of an evaluation after it."""
        return {
            field: min(sizes[field] for since, sizes in self.changes if since <= step and field in sizes) for field in FIELDS
        }

    def applied(self, config: RunConfig, step: float = math.inf) -> RunConfig:
        """Return a configuration with the sizes of the step that follows `step`, and the processes of the next session."""
        return config.model_copy(update={"training": config.training.model_copy(update={**self.after(step), **self.processes})})

    @property
    def is_lowered(self) -> bool:
        """Whether some steps were computed in larger passes than the next ones."""
        return self.after() != self.changes[0][1]


def batch_limits(run_dir: RunDir) -> BatchLimits:
    """Return how much a run has computed at once, and will if it is resumed now.

    Raises:
        JournalError: a journal is damaged.
    """
    config = run_dir.read_config()
    changes: list[tuple[int, dict[str, int]]] = [(0, {field: getattr(config.training, field) for field in FIELDS})]
    own, originals = (
        read_journal(file) if file.exists() else [] for file in (run_dir.journal_file, RunDir(run_dir.original).journal_file)
    )
    changes += [*_recorded(own), *_recorded(originals)]
    wish: dict[str, int] = read_json(run_dir.passes_file) if run_dir.passes_file.exists() else {}
    changes.append((0, wish))
    processes = {field: wish[field] for field in PROCESS_FIELDS if field in wish}
    limits = BatchLimits(tuple(changes), processes, ())
    next_ones = limits.applied(config)
    return replace(limits, computed_by=(*computed_by(own), (next_ones.training.processes, weight_shards(next_ones))))


def computed_by(records: Iterable[Record]) -> list[Processes]:
    """Return the processes of each session that a journal tells of."""
    return [(sizes["processes"], sizes["shards"]) for _, sizes in _recorded(records)]


def _recorded(records: Iterable[Record]) -> list[tuple[int, dict[str, int]]]:
    """Return (step, {field: number}) of each session; the record of one process says nothing of processes."""
    return [
        (record.step, {**record.data[PASSES_FIELD], **{field: record.data.get(field, 1) for field in PROCESS_FIELDS}})
        for record in records
        if PASSES_FIELD in record.data
    ]


def changed_notes(records: Iterable[Record]) -> list[str]:
    """Return a line for each resume with other passes or processes."""
    return [
        f"passes: resumed after step {step} with "
        + ", ".join(f"training.{field} {size} (was {was[field]})" for field, size in now.items() if size != was.get(field))
        for (_, was), (step, now) in pairwise(_recorded(records))
        if now != was
    ]


def change_passes(run_dir: RunDir, wanted: Mapping[str, int]) -> list[str]:
    """Let a run be resumed with smaller passes, or by other processes; return a line for each setting that is changed.

    Args:
        run_dir: of the run, which nobody works on.
        wanted: {field: number}; the others stay.

    Raises:
        ConfigError: a size is larger than what is in force, a configuration could not have such processes, or the engine has
            no such setting.
        JournalError: as `batch_limits`.
    """
    config, limits = run_dir.read_config(), batch_limits(run_dir)
    in_force = limits.applied(config)
    before = {**limits.after(), "processes": in_force.training.processes, "shards": weight_shards(in_force)}
    for field, value in wanted.items():
        if config.training.engine != "native":
            raise ConfigError(
                f"training.{field}: training.engine {config.training.engine} cannot be resumed with another value"
            )
        if field in FIELDS and value > before[field]:
            raise ConfigError(
                f"training.{field}: {value} is more than the {before[field]} of this run; a resume may only lower it"
            )
    if wanted:
        validate_config(apply_overrides(in_force.model_dump(mode="json"), {f"training.{key}": wanted[key] for key in wanted}))
        write_json(run_dir.passes_file, {**limits.after(), **limits.processes, **wanted})
    return [f"training.{field}: {value} from here on, {before[field]} until now" for field, value in wanted.items()]


def passes_to_change(values: Mapping[str, Any], instead: str | None = None) -> dict[str, int]:
    """Return what a resume is to change, by field, of overrides; `instead` is the command that begins a run with others.

    Raises:
        ConfigError: a key may not change, or a value is no whole number above 0.
    """
    keys = {f"training.{name}": name for name in (*FIELDS, *PROCESS_FIELDS)}
    for key, value in values.items():
        if key not in keys:
            lowered, others = (" and ".join(f"training.{name}" for name in names) for names in (FIELDS, PROCESS_FIELDS))
            raise ConfigError(
                f"{key}: a run keeps the configuration with which it began; a resume may lower {lowered}, and set {others}; "
                f"a new run goes on from its weights: `{instead or f'grpo train --continue runs/<run> {key}={value}'}`"
            )
        if type(value) is not int or value < 1:
            raise ConfigError(f"{key}: {shown(value)} is not a whole number of at least 1")
    return {keys[key]: size for key, size in values.items()}
