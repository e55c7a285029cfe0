"""How long an evaluation in a process of its own has been silent; of a training, whoever follows its journal knows."""

import time
from collections.abc import Callable

from grpo_core.run.folder import RunDir
from grpo_core.run.judge import Judge
from grpo_core.run.rules import Alert


class EvaluationSilence:
    """Applies the `stalled` rules of a run to the evaluation of one policy."""

    def __init__(self, run_dir: RunDir, policy: str, report: Callable[[Alert], None]) -> None:
        """Expect the process of an evaluation.

        Args:
            run_dir: of the run.
            policy: `base` or `final`.
            report: takes each breach when it begins.
        """
        self._judge, self._policy, self._report = Judge(run_dir), policy, report
        self._began: float | None = None

    def begin(self) -> None:
        """Take note that the process has been started."""
        self._began = time.monotonic()

    def look(self) -> None:
        """Report what has become a breach; while the process waits for a slot, nothing has."""
        if self._began is not None:
            for alert in self._judge.check_silence(time.monotonic() - self._began, self._policy):
                self._report(alert)
