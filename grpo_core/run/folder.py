"""The folder of one run: where each thing lies, and the small files in it.

config.json  origin.json    the resolved configuration; the preset, and what was changed of it
provenance.json             what the run was made with
data/                       frozen prompts
journal.jsonl               the truth; journal.damaged-<time>.jsonl after a repair
alerts.jsonl                one line an alert of the monitor: the journal itself has one writer, the training
completions/  probe/        one Parquet table a step, or a measurement of the probe set
checkpoints/                step_NNNNNN folders
eval/  report/              results of evaluations; figures and the report
original/                   of a reproduction: configuration, provenance, prompts, journal of the run that it repeats
source/                     of an evaluation: what was downloaded of the run that made the policy
passes.json                 how much a run that was resumed with less computes at once
process.json  train.log     process id of the training process while it runs; its output
STOP                        asks the training to finish the step, checkpoint and end; its text says why
.grpo-folder  lock  flow_run  tracking.json      those of every flow's folder (`flow_folder.py`)
"""

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.config import Origin, RunConfig, validate_config
from grpo_core.errors import JournalError, raised_as
from grpo_core.machine.disk import FILE_MODE, remove, write_whole
from grpo_core.machine.jsonfile import append_json, build, read_json, read_lines, write_json
from grpo_core.run.flow_folder import FlowDir, Kind, Place
from grpo_core.run.journal import JOURNAL_FILE

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
    data = Place("data")
    completions = Place("completions")
    probe = Place("probe")
    checkpoints = Place("checkpoints")
    eval = Place("eval")
    report = Place("report")
    original = Place("original")
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
        return self.journal_file.exists() or self.checkpoints.exists() or self.eval.exists() or any(self.path.glob("*.log"))

    def request_stop(self, reason: str) -> None:
        """Ask the training to finish its step, checkpoint and end; a training that looks just now sees all of it or nothing.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self.stop_file, f"{reason}\n")

    def create(self, config: RunConfig, origin: Origin = Origin(), kind: Kind = "run") -> None:  # noqa: B008  (frozen)
        """Take a folder for a new run, write the resolved configuration and its origin into it.

        Raises:
            JournalError: the folder already holds a run.
            FolderError: it is not empty and not ours.
        """
        self.refuse_second_run()
        self.mark(kind)
        write_json(self.origin_file, asdict(origin))
        write_json(self.config_file, config.model_dump(mode="json"))

    def forget_start(self) -> None:
        """Remove what a start that came to nothing has left: of a run, a reproduction or an evaluation.

        Raises:
            FolderError: the folder is not ours.
            JournalError: it holds a run.
        """
        self.require_ours()
        self.refuse_second_run()
        folders = (self.data, self.eval, self.report, self.completions, self.probe, self.original, self.source)
        settings = (self.config_file, self.origin_file, self.provenance_file, self.passes_file, self.flow_run_file)
        for place in (*folders, *settings, self.tracking_file, self.alerts_file, self.process_file, self.stop_file):
            remove(place)

    def refuse_second_run(self) -> None:
        """Keep a run from being written over.

        Raises:
            JournalError: the folder already holds a run.
        """
        # A checkpoint without its journal is a run, too: a training that found it would resume from there.
        if self.marker() is not None and (self.journal_file.exists() or self.checkpoints.exists()):
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
        return build(Origin, read_json(self.origin_file)) if self.origin_file.exists() else Origin()

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
    """An alert that was raised, as alerts.jsonl holds it."""

    step: int
    text: str


def add_alert(run_dir: RunDir, step: int, text: str) -> None:
    """Append an alert of the monitor to alerts.jsonl; the journal itself has one writer, the training.

    Raises:
        OSError: it cannot be written.
    """
    append_json(run_dir.alerts_file, asdict(RaisedAlert(step=step, text=text)))


def monitor_alerts(run_dir: RunDir) -> list[RaisedAlert]:
    """Return the monitor's alerts, oldest first; a torn last line is dropped."""
    return [RaisedAlert(**json.loads(line)) for line in read_lines(run_dir.alerts_file)]
