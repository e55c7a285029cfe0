"""Look at the journals of the runs under way, and end those that the pruner gives up: a file STOP in their folder."""

import logging
import time
from collections.abc import Collection
from pathlib import Path

from grpo_core.errors import GrpoError
from grpo_core.run.journal import read_journal
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.pruning import prune_reason
from grpo_core.sweep.schedule import Key
from grpo_core.sweep.schema import SweepConfig

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
Curves = tuple[list[float], dict[int, float]]
"""Rewards of a run's steps, and its drift by step."""


class Pruner:
    """Judges runs of the same seed against each other."""

    def __init__(self, sweep_dir: SweepDir, sweep: SweepConfig) -> None:
        """Take the rules of a sweep."""
        self._dir, self._sweep = sweep_dir, sweep
        self._is_on = sweep.pruner.reward is not None or sweep.pruner.kl_budget is not None
        self._next_look = 0.0
        self._read: dict[Key, tuple[int, Curves]] = {}
        """Size of a journal, and what it said then."""

    def look(self, under_way: Collection[Key]) -> None:
        """Judge every run under way, at most every `LOOK_SECONDS`."""
        if not self._is_on or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        for arm, seed in under_way:
            run_dir = self._dir.run_dir(arm, seed)
            if run_dir.stop_file.exists():
                continue
            rewards, drift = self._curves(arm, seed)
            others = [self._curves(other, seed)[0] for other in self._dir.read_arms() if other != arm]
            metric = self._sweep.objective.kl_metric
            reason = prune_reason(self._sweep.pruner, rewards, [curve for curve in others if curve], drift, metric)
            if reason is not None:
                partial = run_dir.stop_file.with_suffix(".partial")  # a training that looks just now sees all of it or nothing
                partial.write_text(reason + "\n")
                partial.replace(run_dir.stop_file)

    def _curves(self, arm: int, seed: int) -> Curves:
        """Return the rewards of a run's steps, and its drift by step; nothing of a run that has no readable journal."""
        file = self._dir.run_dir(arm, seed).journal_file
        size = file.stat().st_size if file.exists() else 0
        if self._read.get((arm, seed), (-1, ([], {})))[0] != size:
            self._read[arm, seed] = size, self._parse(file)
        return self._read[arm, seed][1]

    def _parse(self, file: Path) -> Curves:
        if not file.exists():
            return [], {}
        try:
            steps = [record for record in read_journal(file) if record.kind == "step"]
        except GrpoError:  # said where the run ends; nobody is judged by it
            logger.warning("%s: not readable, so its run is not pruned", file, exc_info=True)
            return [], {}
        key = self._sweep.objective.kl_metric
        drift = {record.step: record.metrics[key] for record in steps if key in record.metrics}
        return [record.metrics["reward/mean"] for record in steps], drift
