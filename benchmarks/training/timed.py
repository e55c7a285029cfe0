"""What an engine says of a step, and how it is told to make one: `run(workload, folder, turns)` waits and reports for each."""

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TextIO

import torch

PHASES = ("rollout", "logps", "update", "sync", "other")
"""Completions; log-probabilities under the reference and, here, under the initial policy; forward, backward and optimizer; the
reference's synchronisation with its measurement; all the rest."""


def now() -> float:
    """Return the seconds of a clock; on a GPU, once it has done its work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_gib() -> float:
    """Return the most memory that this process has had so far: of the tensors on its GPU, or as the system sees the process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One step of one engine."""

    seconds: float
    phases: dict[str, float]
    """Seconds by phase; what they do not cover is `other`."""
    prompt_tokens: int
    """Of the step's prompts, each counted once."""
    completion_lengths: list[int]
    """Tokens of each completion, the end token included."""
    passes: dict[str, int] = field(default_factory=dict)
    """Forward passes without gradient over all completions, by phase, of an engine that counts them."""
    peak_gib: float = field(default_factory=peak_gib)
    """See `peak_gib`."""

    def phase(self, name: str) -> float:
        """Return the seconds of one of PHASES."""
        return self.seconds - sum(self.phases.values()) if name == "other" else self.phases.get(name, 0.0)

    def as_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "TimedStep":
        """Return what `as_json` wrote."""
        return cls(**json.loads(text))


class Turns:
    """The engine's end of the pipes on which it is told when it is its turn.

    What an engine prints to standard output goes to standard error from now on.
    """

    def __init__(self) -> None:
        """Take the two ends."""
        self._answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def ready(self, settings: dict[str, object]) -> None:
        """Say that the engine is open, and what of its settings decides its speed."""
        print(json.dumps(settings), file=self._answers, flush=True)

    def wait(self) -> None:
        """Wait until it is this engine's turn; without a further one the process ends."""
        if not sys.stdin.readline():
            sys.exit(0)

    def report(self, step: TimedStep) -> None:
        """Say what the step took."""
        print(step.as_json(), file=self._answers, flush=True)
