"""The report: what was run where, as a record that is kept as JSON."""

import json
import subprocess
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu_check.devices import Machine, torch_pin
from benchmarks.gpu_check.environment import ROOT
from benchmarks.gpu_check.part import Result, finite

FORMAT, MADE_BY = 1, "grpo-flow gpu-check"
JSON_FILE, MARKDOWN_FILE = "report.json", "report.md"
State = Literal["running", "finished", "interrupted"]


class ReportError(Exception):
    """A folder cannot take the report, or a file is none."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a part."""

    name: str
    purpose: str
    seconds: float
    result: Result
    log: tuple[str, ...] = ()
    """The last lines of its output, where it failed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One check."""

    machine: Machine
    device: str
    small: bool
    commit: str | None
    """None outside of a git repository."""
    dirty: bool
    """Whether files differ from the commit."""
    pin: str | None
    """The version of torch that this project pins."""
    started: str
    """ISO-8601."""
    state: State = "running"
    seconds: float = 0.0
    outcomes: tuple[Outcome, ...] = ()

    @property
    def torch_differs(self) -> bool:
        """Whether torch is another version than the pinned one, whatever it was built for."""
        return self.machine.versions.get("torch", "").partition("+")[0] != (self.pin or "")

    @property
    def exit_code(self) -> int:
        """0 where no part failed, and one was not skipped."""
        verdicts = [outcome.result.verdict for outcome in self.outcomes]
        return int("failed" in verdicts or all(verdict == "skipped" for verdict in verdicts))

    def add(self, outcome: Outcome) -> "Report":
        """Return it with one more part."""
        return replace(self, outcomes=(*self.outcomes, outcome))

    def as_json(self) -> str:
        """Return it as JSON."""
        head = {"format": FORMAT, "made_by": MADE_BY, "torch_differs": self.torch_differs}
        found = head | asdict(self) | {"machine": self.machine.as_json()}
        return json.dumps(finite(found), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return what `as_json` wrote.

        Raises:
            ReportError: it is no report, or one of another version.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("made_by") != MADE_BY:
            raise ReportError("is no report of gpu-check")
        if found["format"] != FORMAT:
            raise ReportError(f"has format {found['format']}; this version reads {FORMAT}")
        rest = {key: value for key, value in found.items() if key not in ("format", "made_by", "torch_differs")}
        outcomes = tuple(map(_outcome, rest.pop("outcomes")))
        return cls(**rest | {"machine": Machine.of(found["machine"]), "outcomes": outcomes})


def _outcome(found: dict[str, Any]) -> Outcome:
    return Outcome(**found | {"result": Result.of(found["result"]), "log": tuple(found["log"])})


def begin(machine: Machine, *, device: str, small: bool) -> Report:
    """Return the report of a check that begins now, in this checkout."""
    status = _git("status", "--porcelain")
    return Report(
        machine=machine,
        device=device,
        small=small,
        commit=_git("rev-parse", "HEAD"),
        dirty=bool(status),
        pin=torch_pin(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def claim(folder: Path) -> None:
    """Make a folder for the report; an earlier report in it may be replaced.

    Raises:
        ReportError: it holds other files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            Report.from_json((folder / JSON_FILE).read_text())
    except (OSError, ValueError, LookupError, TypeError, ReportError) as error:
        raise ReportError(
            f"--output {folder}: cannot be used, or holds files that are no report of gpu-check ({error}); name a new folder"
        ) from error
