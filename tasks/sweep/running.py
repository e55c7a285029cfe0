"""Task: run every arm once per seed, some at a time, until all have ended or the sweep may not begin more."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import SweepError
from grpo_core.plain_text import for_markdown
from grpo_core.sweep.campaign import Campaign, Reports
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.launcher import Launcher
from grpo_core.sweep.study import SweepStudy
from tasks.away import prefect_may_be_away
from tasks.process.cancellation import CancelWatch, RunCancelledError
from tasks.run.progress import say
from tasks.tracking.store import TrackedRun
from tasks.tracking.sweep import drop_strays

POLL_SECONDS = 0.2


@task(name="run-arms", cache_policy=NO_CACHE)
def run_arms(stored: StoredSweep, tracked: TrackedRun, retry_failed: bool = False) -> None:
    """Run what is left to run of a sweep; no further run begins once more have failed than `failed_runs_allowed`.

    Raises:
        SweepError: the study or what starts the runs cannot be used.
    """
    study = SweepStudy.open(stored)
    outcomes = stored.dir.read_outcomes()
    if retry_failed:
        outcomes = {key: outcome for key, outcome in outcomes.items() if outcome.status != "failed"}
    drop_strays(tracked, stored)
    launcher = _launcher(stored)
    reports = Reports(line=say, percent=_ProgressArtifact(stored.name).show)
    with closing(study), CancelWatch() as cancellation, _interrupted_with(launcher):
        campaign = Campaign(stored, study, outcomes, launcher, tracking=_tracking(tracked), reports=reports)
        while campaign.proceed():
            time.sleep(POLL_SECONDS)
            cancellation.check()


def refuse_failures(stored: StoredSweep) -> None:
    """End a sweep as failed where too many of its runs have.

    Raises:
        SweepError: names the bound, the number, and the first cause.
    """
    allowed = stored.plan.sweep.failed_runs_allowed
    failed = [outcome for outcome in stored.dir.read_outcomes().values() if outcome.status == "failed"]
    if len(failed) > allowed:
        first = failed[0]
        name = stored.dir.read_arms()[first.arm].run_name(first.seed)
        raise SweepError(
            f"failed_runs_allowed: {allowed}, and {len(failed)} run(s) have failed; the first is {name}: {first.cause}; "
            f"once that is fixed, `grpo sweep --resume {stored.dir.path} --retry-failed` runs them again"
        )


def _tracking(tracked: TrackedRun) -> Mapping[str, Any]:
    """Return the overrides of every run: without the address it would track beside its own folder, inside the sweep's."""
    uri = {} if tracked.uri.startswith("http") else {"tracking.uri": tracked.uri}
    return {"tracking.parent": tracked.run_id, **uri}


def _launcher(stored: StoredSweep) -> Launcher:
    runs = stored.plan.sweep.runs
    if runs.where == "local":
        from tasks.sweep.local import LocalLauncher

        return LocalLauncher(runs.concurrency)
    from tasks.sweep.deployed import DeploymentLauncher

    return DeploymentLauncher(stored.id, runs.deployment)


@contextmanager
def _interrupted_with(launcher: Launcher) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        cancelled = isinstance(error, RunCancelledError) or not isinstance(error, Exception)
        if cancelled or not launcher.outlives_the_sweep:
            launcher.interrupt()
        raise


class _ProgressArtifact:
    """How far a sweep is, in Prefect; missing where Prefect was away when it began."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._artifact: UUID | None = None
        with prefect_may_be_away():
            created = create_progress_artifact(progress=0.0, key="sweep-progress", description=for_markdown(name))
            assert isinstance(created, UUID)  # it is a coroutine only inside an event loop
            self._artifact = created

    def show(self, percent: float) -> None:
        if self._artifact is not None:
            with prefect_may_be_away():
                update_progress_artifact(self._artifact, progress=percent)
