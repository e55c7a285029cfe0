"""How far a sweep is: what the journals of its runs hold so far, and how long the rest takes at the pace until now."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_core.errors import GrpoError
from grpo_core.run.journal import read_journal
from grpo_core.sweep.arms import Arm, Key, Outcome, total_runs
from grpo_core.sweep.display import duration, plain
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.launcher import Job
from grpo_core.sweep.results import covered_seconds, measure, work_spans

logger = logging.getLogger(__name__)

SHOWN_CHARACTERS = 160
SILENCE_SECONDS = 60.0
"""After so long without a line, one reports how far the runs under way are."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the journal of one run holds so far."""

    step: int = 0
    tokens: int = 0
    rewards: Sequence[float] = ()
    drift: Mapping[int, float] = field(default_factory=dict)
    """`objective.kl_metric` by step, where it was measured."""
    spans: Sequence[tuple[float, float]] = ()


class Journals:
    """Reads the journals of a sweep's runs, each again only when it has grown."""

    def __init__(self, stored: StoredSweep) -> None:
        """Read those of a sweep."""
        self._dir, self._sweep = stored.dir, stored.plan.sweep
        self._read: dict[Key, tuple[int, Progress]] = {}

    def of(self, key: Key) -> Progress:
        """Return how far a run is; nothing of a run that has no readable journal."""
        file = self._dir.run_dir(*key).journal_file
        size = file.stat().st_size if file.exists() else 0
        if size != self._read.get(key, (0, None))[0]:
            self._read[key] = size, self._parse(key)
        return self._read[key][1] if size else Progress()

    def _parse(self, key: Key) -> Progress:
        run_dir, metric = self._dir.run_dir(*key), self._sweep.objective.kl_metric
        try:
            records = read_journal(run_dir.journal_file)
        except GrpoError:  # reported where the run ends
            logger.warning("%s: no readable journal, so it is neither pruned nor counted", run_dir.path, exc_info=True)
            return Progress()
        steps = [record for record in records if record.kind == "step"]
        return Progress(
            step=steps[-1].step if steps else 0,
            tokens=int(steps[-1].metrics["progress/generated_tokens"]) if steps else 0,
            rewards=[record.metrics["reward/mean"] for record in steps],
            drift={record.step: record.metrics[metric] for record in steps if metric in record.metrics},
            spans=work_spans(run_dir, records),
        )

    def spent_budget(self, arms: Collection[int]) -> str | None:
        """Return why no further run begins, the sweep's hours or tokens being used up; None while they are not."""
        budget = self._sweep.budget
        if budget.hours is None and budget.tokens is None:
            return None
        runs = [self.of((arm, seed)) for arm in arms for seed in self._sweep.seeds]
        hours, tokens = covered_seconds(span for run in runs for span in run.spans) / 3600, sum(run.tokens for run in runs)
        if budget.hours is not None and hours >= budget.hours:
            return f"budget.hours: {budget.hours:g} are spent"
        if budget.tokens is not None and tokens >= budget.tokens:
            return f"budget.tokens: {tokens} of {budget.tokens} are spent"
        return None


class SweepPace:
    """How fast runs end, and so how long the rest takes."""

    def __init__(self, stored: StoredSweep, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> None:
        """Begin to count with what earlier sessions have left."""
        self._stored, self._arms, self._outcomes = stored, arms, outcomes
        self._before = len(outcomes)
        self._started = self._printed = time.monotonic()

    @property
    def total(self) -> int:
        """Runs of the sweep."""
        return total_runs(self._stored.plan.num_arms, self._stored.plan.sweep, self._arms)

    @property
    def percent(self) -> float:
        """How far the sweep is."""
        return 100.0 * len(self._outcomes) / max(1, self.total)

    def under_way(self, jobs: Iterable[Job], journals: Journals) -> str | None:
        """Return a line about the runs under way, once nothing has been printed for a minute."""
        if time.monotonic() - self._printed < SILENCE_SECONDS:
            return None
        lines = [f"{job.name} step {journals.of(job.key).step}" for job in jobs]
        return self._line(f"under way: {', '.join(lines)}") if lines else None

    def describe(self, outcome: Outcome) -> str:
        """Return the line of a run that has just ended."""
        cause = " ".join(str(outcome.cause).split())[:SHOWN_CHARACTERS]
        ending = "finished" if outcome.status == "finished" else f"{outcome.status}: {cause}"
        return self._line(f"{self._arms[outcome.arm].run_name(outcome.seed)}: {ending}{self._reached(outcome)}")

    def _reached(self, outcome: Outcome) -> str:
        run_dir = self._stored.dir.run_dir(outcome.arm, outcome.seed)
        if outcome.status == "failed" or not run_dir.journal_file.exists():
            return ""
        records = read_journal(run_dir.journal_file)
        figures = measure(records, run_dir.read_config(), self._stored.plan.sweep.objective)
        return (
            f", objective {plain(figures['objective'])}, reward {plain(figures['reward'])}, KL to the initial policy "
            f"{plain(figures['kl_init_seq'])} nats per completion, {duration(covered_seconds(work_spans(run_dir, records)))}"
        )

    def _line(self, text: str) -> str:
        """Return a text between how far the sweep is and how long the rest takes."""
        self._printed = time.monotonic()
        elapsed, ended = self._printed - self._started, len(self._outcomes)
        left = duration((self.total - ended) * elapsed / max(1, ended - self._before))
        return f"[{ended}/{self.total}] {text}; {duration(elapsed)}, about {left} left"
