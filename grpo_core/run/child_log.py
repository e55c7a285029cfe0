"""What a child process writes to its log, line by line while it runs."""

from pathlib import Path

from grpo_core.rewards.call_guard import WAITING


class ChildLog:
    """Reads on from where the log ended when this was made."""

    def __init__(self, file: Path) -> None:
        """Start after what earlier processes have written; the file need not be there."""
        self.file = file
        self._position = file.stat().st_size if file.exists() else 0

    def read(self, *, last: bool = False) -> list[str]:
        """Return the lines that are new and complete, without empty ones; the last time, also one that is not complete."""
        if not self.file.exists():  # the child waits for a slot
            return []
        with self.file.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        complete = text if last else text[: text.rfind(b"\n") + 1]
        self._position += len(complete)
        return [line for line in complete.decode(errors="replace").splitlines() if line.strip()]


def names_a_wait(line: str) -> bool:
    """Return whether a line of a log names the reward function that is waited for."""
    return line.startswith(WAITING)
