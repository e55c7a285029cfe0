"""How a training ends: asked to, or by its settings; and how far it is until then.

It is asked by SIGTERM or SIGINT, a file STOP, or the lifeline (the process that started it has died). Each means the same:
finish the step, checkpoint, journal `end`, exit. A second SIGINT ends the process at once: what was journalled stays, and the
run resumes from its newest checkpoint.
"""

import math
import os
import select
import signal
from pathlib import Path
from types import FrameType

from grpo_core.config import TrainingConfig
from grpo_core.policy.saved import TrainingState
from grpo_core.run.journal import Record


def is_every(period: int | None, step: int) -> bool:
    """Return whether something that happens every `period` steps (None = never) happens after `step`."""
    return period is not None and step % period == 0


def is_over(settings: TrainingConfig, state: TrainingState) -> bool:
    """Return whether a run has had its last step: by `training.steps`, or by `training.max_tokens`."""
    return state.step >= settings.steps or state.generated_tokens >= (settings.max_tokens or math.inf)


def why_finished(settings: TrainingConfig, state: TrainingState) -> str | None:
    """Return what ended a run that has had its last step; None where only `training.steps` could."""
    most, sampled = settings.max_tokens, f"{state.generated_tokens} tokens"
    if most is None:
        return None
    if state.generated_tokens >= most:
        return f"training.max_tokens {most} reached at step {state.step}: {sampled}"
    return f"training.steps {settings.steps} reached before training.max_tokens {most}: {sampled}"


def share_done(settings: TrainingConfig, record: Record) -> float:
    """Return how much of a run is done with the step of `record`, 0..1.

    Of `training.steps` or of `training.max_tokens`, whichever is nearer to its end.
    """
    tokens = record.metrics.get("progress/generated_tokens", 0.0) / (settings.max_tokens or math.inf)
    return min(1.0, max(record.step / settings.steps, tokens))


class StopRequest:
    """Asks `reason()` between steps."""

    def __init__(self, stop_file: Path, lifeline_fd: int | None) -> None:
        """Watch the given file and pipe."""
        self._stop_file = stop_file
        self._lifeline_fd = lifeline_fd
        self._signal: signal.Signals | None = None
        self.also: str | None = None
        """Why the training itself asks for an end."""

    def install(self) -> None:
        """Catch SIGTERM and SIGINT; call it from the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def reason(self) -> str | None:
        """Return why the training should stop now, or None."""
        if self._signal is not None:
            return self._signal.name
        if self._stop_file.exists():
            return f"STOP: {self._stop_file.read_text().strip() or 'asked for by the file'}"
        return "lifeline: the process that started the training has died" if self._starter_has_died() else self.also

    @property
    def is_urgent(self) -> bool:
        """Whether nobody waits for more than the end: a signal has come, or the process that started the training has died."""
        return self._signal is not None or self._starter_has_died()

    @property
    def exit_code(self) -> int:
        """128 + signal number after a signal, else 0."""
        return 0 if self._signal is None else 128 + self._signal

    def _starter_has_died(self) -> bool:
        lifeline = self._lifeline_fd
        return lifeline is not None and bool(select.select([lifeline], [], [], 0)[0]) and os.read(lifeline, 1) == b""

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
