"""The folder of one run: where each thing lies, and nothing else.

config.json  origin.json  provenance.json  data/  journal.jsonl  completions/  checkpoints/  eval/  report/  original/
alerts.jsonl  tracking.json  process.json  flow_run  lock  train.log  STOP  journal.damaged-<time>.jsonl (after a repair)
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig, validate_config
from grpo_core.errors import JournalError, cause, shown
from grpo_core.flowdir import FlowDir
from grpo_core.journal import JOURNAL_FILE
from grpo_core.jsonfile import append_json, parse_json, read_json, write_json


@dataclass(frozen=True)
class RunDir(FlowDir):
    """Paths of one run."""

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.json"

    @property
    def origin_file(self) -> Path:
        """The preset, and what was changed of it."""
        return self.path / "origin.json"

    @property
    def provenance_file(self) -> Path:
        """What the run was made with."""
        return self.path / "provenance.json"

    @property
    def data(self) -> Path:
        """Frozen prompts."""
        return self.path / "data"

    @property
    def journal_file(self) -> Path:
        """The truth."""
        return self.path / JOURNAL_FILE

    @property
    def completions(self) -> Path:
        """One Parquet table a step."""
        return self.path / "completions"

    @property
    def checkpoints(self) -> Path:
        """step_NNNNNN folders."""
        return self.path / "checkpoints"

    @property
    def eval(self) -> Path:
        """Results of evaluations."""
        return self.path / "eval"

    @property
    def report(self) -> Path:
        """Figures and the report."""
        return self.path / "report"

    @property
    def stop_file(self) -> Path:
        """Its existence asks the training to finish the step, checkpoint and end; its text says why."""
        return self.path / "STOP"

    @property
    def original(self) -> Path:
        """Of a reproduction: configuration, provenance, prompts and journal of the run that it repeats, as a run dir."""
        return self.path / "original"

    @property
    def process_file(self) -> Path:
        """Process id of the training process while it runs."""
        return self.path / "process.json"

    def log_file(self, process: str) -> Path:
        """Output of a process of the run."""
        return self.path / f"{process}.log"

    @property
    def alerts_file(self) -> Path:
        """One JSON line an alert of the monitor; the journal itself has one writer, the training."""
        return self.path / "alerts.jsonl"

    def add_alert(self, step: int, text: str) -> None:
        """Append an alert of the monitor, in the place of a last line that was torn."""
        append_json(self.alerts_file, {"step": step, "text": text})

    def alerts(self) -> list[str]:
        """Return the texts of the monitor's alerts, oldest first; a torn last line is dropped.

        Raises:
            JournalError: a whole line is no alert.
        """
        if not self.alerts_file.exists():
            return []
        lines = self.alerts_file.read_bytes().split(b"\n")[:-1]
        return [self._alert(line, number) for number, line in enumerate(lines, start=1)]

    def _alert(self, line: bytes, number: int) -> str:
        try:
            text = parse_json(line)["text"]
            if not isinstance(text, str):
                raise TypeError(f"text is {shown(text)}")
        except (ValueError, LookupError, TypeError) as error:
            raise JournalError(f"{self.alerts_file}, line {number}: not an alert ({cause(error)})") from error
        return text

    def create(self, config: RunConfig, origin: Origin = Origin()) -> None:  # noqa: B008  (frozen)
        """Make the folder, write the resolved configuration and its origin; what a failed start has left there is replaced.

        Raises:
            JournalError: the folder already holds a run.
        """
        self.refuse_second_run()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.config_file.exists():
                self._forget_start()
            write_json(self.origin_file, asdict(origin))
            write_json(self.config_file, config.model_dump(mode="json"))
        except OSError as error:
            raise JournalError(f"run dir {self.path}: cannot be written ({error.strerror}); give another --run-dir") from error

    def _forget_start(self) -> None:
        """Remove what a start that came to nothing has left."""
        for folder in (self.data, self.eval, self.report, self.completions):
            shutil.rmtree(folder, ignore_errors=True)
        files = (
            self.provenance_file,
            self.process_file,
            self.stop_file,
            self.alerts_file,
            self.tracking_file,
            self.flow_run_file,
        )
        for file in files:
            file.unlink(missing_ok=True)

    def refuse_second_run(self) -> None:
        """Keep a run from being written over.

        Raises:
            JournalError: the folder already holds a run.
        """
        # A checkpoint without its journal is a run, too: a training that found it would go on from there.
        if self.journal_file.exists() or self.checkpoints.exists():
            raise JournalError(
                f"run dir {self.path}: already holds a run; give another --run-dir, or leave it out "
                f"(`grpo train --resume {self.path}` goes on with that run)"
            )

    def read_provenance(self) -> dict[str, Any]:
        """Return what the run was made with; empty where that is not known yet.

        Raises:
            JournalError: the file was changed into something else.
        """
        if not self.provenance_file.exists():
            return {}
        try:
            facts: dict[str, Any] = read_json(self.provenance_file)
            facts["data_digest"], facts["model_digest"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise JournalError(f"{self.provenance_file}: not the provenance of a run ({cause(error)})") from error
        return facts

    def read_config(self) -> RunConfig:
        """Return the resolved configuration.

        Raises:
            JournalError: the folder holds no run.
            ConfigError: the file was changed into something invalid.
        """
        try:
            values = read_json(self.config_file)
        except (OSError, ValueError) as error:
            raise JournalError(
                f"run dir {self.path}: no readable config.json ({cause(error)}); give the folder of a run"
            ) from error
        return validate_config(values)

    def read_origin(self) -> Origin:
        """Return where the configuration comes from; a folder that was made by hand has no preset.

        Raises:
            JournalError: origin.json was changed into something else.
        """
        if not self.origin_file.exists():
            return Origin()
        try:
            facts = read_json(self.origin_file)
            preset, changes = facts["preset"], facts["changes"]
            if not isinstance(preset, str):
                raise TypeError(f"preset is {shown(preset)}")
            return Origin(preset=preset, changes={key: _pair(key, values) for key, values in changes.items()})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise JournalError(f"run dir {self.path}: no readable origin.json ({cause(error)})") from error


def _pair(key: str, values: Any) -> tuple[Any, Any]:
    """Return (the preset's value, the run's value)."""
    if not isinstance(values, list) or len(values) != 2:
        raise TypeError(f"{shown(key)} has not two values")
    return values[0], values[1]
