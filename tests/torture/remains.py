"""What a killed training leaves in its RUN_DIR, and how it is damaged further before it is resumed."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from grpo_core.errors import ModelError
from grpo_core.policy.checkpoint import verify_checkpoint
from grpo_core.policy.saved import MANIFEST_FILE, list_checkpoints
from grpo_core.run.folder import RunDir


@dataclass(frozen=True, kw_only=True)
class Remains:
    """A RUN_DIR whose process is dead."""

    torn_bytes: int
    """Of a last line of the journal that was not finished."""
    partial: str | None
    """A checkpoint that was being written."""
    headless: tuple[str, ...]
    """Checkpoints without a manifest: half deleted."""
    newest: int
    """Step of the newest whole checkpoint, 0 = there is none."""
    journalled: int
    """Step of the journal's last whole record."""

    def __str__(self) -> str:
        """Say what is unusual, and from where a resume goes on."""
        found = [
            f"{self.torn_bytes} bytes of a line" if self.torn_bytes else "",
            self.partial or "",
            *(f"{name} without manifest" for name in self.headless),
            f"{self.journalled - self.newest} steps to repeat" if self.journalled > self.newest else "",
        ]
        return "; ".join(text for text in found if text) or "nothing unusual"


def look_at(run_dir: RunDir) -> Remains:
    """Return what there is."""
    content = run_dir.journal_file.read_bytes() if run_dir.journal_file.exists() else b""
    *lines, torn = content.split(b"\n")
    folders = sorted(run_dir.checkpoints.glob("step_*"))
    whole = whole_checkpoints(run_dir)
    return Remains(
        torn_bytes=len(torn),
        partial=next((path.name for path in run_dir.checkpoints.glob(".step_*.partial")), None),
        headless=tuple(path.name for path in folders if not (path / MANIFEST_FILE).exists()),
        newest=step_of(whole[-1]) if whole else 0,
        journalled=int(json.loads(lines[-1])["step"]) if lines else 0,
    )


def whole_checkpoints(run_dir: RunDir) -> list[Path]:
    """Return the checkpoints that a resume could use, oldest first."""
    return [path for path in list_checkpoints(run_dir.checkpoints) if _is_whole(path)]


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step_"))


def damage_newest(run_dir: RunDir, rng: random.Random) -> str | None:
    """Truncate a file of the newest checkpoint or flip one of its bits; return what was done.

    None where that would leave no whole checkpoint: then there is nothing to go back to.
    """
    whole = whole_checkpoints(run_dir)
    if len(whole) < 2:
        return None
    files = [path for path in sorted(whole[-1].rglob("*")) if path.is_file() and path.stat().st_size > 1]
    file = rng.choice(files)
    content = bytearray(file.read_bytes())
    # The last byte is a newline in some files: a manifest without it says the same.
    position = rng.randrange(len(content) - 1)
    if rng.random() < 0.5:
        file.write_bytes(content[:position])
        done = f"truncated at byte {position} of {len(content)}"
    else:
        bit = rng.randrange(8)
        content[position] ^= 1 << bit
        file.write_bytes(content)
        done = f"bit {bit} of byte {position} flipped"
    return f"{whole[-1].name}/{file.relative_to(whole[-1])}: {done}"


def _is_whole(checkpoint: Path) -> bool:
    try:
        verify_checkpoint(checkpoint)
    except ModelError:
        return False
    return True
