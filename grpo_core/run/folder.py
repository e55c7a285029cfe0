"""The folder of one run: where each thing lies, and nothing else.

.grpo-folder  config.json  origin.json  provenance.json  data/  journal.jsonl  completions/  checkpoints/  eval/  report/
original/  alerts.jsonl  tracking.json  process.json  flow_run  lock  train.log  STOP
journal.damaged-<time>.jsonl (after a repair)
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.config import Origin, RunConfig, validate_config
from grpo_core.errors import FolderError, GrpoError, JournalError, cause, shown
from grpo_core.machine.jsonfile import append_json, parse_json, read_json, write_json
from grpo_core.machine.marker import Kind
from grpo_core.machine.private import close_to_others
from grpo_core.redaction import kept_uri
from grpo_core.run.flow_folder import FlowDir
from grpo_core.run.journal import JOURNAL_FILE, holds_record

PROMPTS_MANIFEST = "data/manifest.json"


@dataclass(frozen=True)
class RunDir(FlowDir):
    """Paths of one run."""

    what: ClassVar[str] = "run dir"
    kinds: ClassVar[tuple[str, ...]] = ("run", "evaluation", "reproduction")
    subfolders: ClassVar[tuple[str, ...]] = ("data", "completions", "checkpoints", "eval", "report", "original", "source")
    files: ClassVar[tuple[str, ...]] = (
        *FlowDir.files,
        "config.json",
        "origin.json",
        "provenance.json",
        JOURNAL_FILE,
        "alerts.jsonl",
        "process.json",
        "STOP",
    )

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

    def create(self, config: RunConfig, origin: Origin = Origin(), kind: Kind = "run") -> None:  # noqa: B008  (frozen)
        """Take a folder for a new run, write the resolved configuration and its origin into it.

        What a failed start of ours has left there is replaced.

        Raises:
            JournalError: the folder already holds a run.
            FolderError: it is not empty and not ours.
        """
        self.refuse_second_run()
        self.mark(kind)
        try:
            self.set_kind(kind)
            if self.config_file.exists():
                self.forget_start()
            write_json(self.origin_file, asdict(origin))
            write_json(self.config_file, config.model_dump(mode="json"))
        except OSError as error:
            raise JournalError(f"run dir {self.path}: cannot be written ({error.strerror}); give another --run-dir") from error

    def forget_start(self, *others: Path) -> None:
        """Remove what a start that came to nothing has left, in a folder of ours only.

        Args:
            others: what is removed as well.

        Raises:
            FolderError: the folder is not ours, or was taken over from a version that marked none: what it holds may be wanted.
            JournalError: it holds a run, which another start may have begun since this one looked.
        """
        marker = self.marker()
        if marker is None or marker.adopted:
            raise FolderError(
                f"run dir {self.path}: holds the start of a run by an older version, which is not removed; "
                f"resume it with `grpo train --resume {self.path}`, or give another --run-dir"
            )
        self.refuse_links()
        self.refuse_second_run()
        for folder in (self.data, self.eval, self.report, self.completions, *others):
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
        if not (self.journal_file.exists() or self.checkpoints.exists()):
            return
        if self.marker() is None and self.why_not_older() is not None:
            return  # not a run of ours, and no folder of ours: that is what is to be said of it
        raise JournalError(
            f"run dir {self.path}: already holds a run; give another --run-dir, or leave it out "
            f"(`grpo train --resume {self.path}` goes on with that run)"
        )

    def why_not_older(self) -> str | None:
        """Return why a folder without a marker holds no run; None where an older version, or a person, made it for one.

        It holds one with a configuration that is valid, beside the origin or the frozen prompts of a run; a journal must hold
        a record that can be read. Whether it is whole is the business of who reads it: its repair writes here as well.
        """
        try:
            if not read_json(self.config_file):
                return "config.json is empty"
            self.read_config()
            if not self.origin_file.exists() and not (self.path / PROMPTS_MANIFEST).exists():
                return f"it has neither origin.json nor {PROMPTS_MANIFEST}"
            self.read_origin()
            if self.journal_file.exists() and not holds_record(self.journal_file):
                return f"{self.journal_file}: holds no journal record"
        except (GrpoError, OSError, ValueError) as error:
            return cause(error)
        return None

    def older_kind(self) -> Kind:
        """Return what a run of an older version is, from what lies in its folder."""
        if self.original.exists():
            return "reproduction"
        return "evaluation" if self.read_origin().preset == "evaluation" else "run"

    def close_private_files(self) -> None:
        """Let nobody but the owner read what may hold a secret: the git diff in the provenance, the store's address, logs."""
        for file in (self.provenance_file, self.tracking_file, *self.path.glob("*.log")):
            close_to_others(file)

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
        return validate_config(_without_credentials(values))

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


def _without_credentials(values: Any) -> Any:
    """Return a stored configuration without the password that an earlier version let into `tracking.uri`."""
    tracking = values.get("tracking") if isinstance(values, dict) else None
    if isinstance(tracking, dict) and isinstance(tracking.get("uri"), str):
        return {**values, "tracking": {**tracking, "uri": kept_uri(tracking["uri"])}}
    return values


def _pair(key: str, values: Any) -> tuple[Any, Any]:
    """Return (the preset's value, the run's value)."""
    if not isinstance(values, list) or len(values) != 2:
        raise TypeError(f"{shown(key)} has not two values")
    return values[0], values[1]
