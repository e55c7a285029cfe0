"""Runs as flow runs of a deployment: taken by any worker of its pool, and not tied to the life of the sweep.

A flow run is named by (sweep, arm, seed, attempt) in its idempotency key, so a resumed sweep finds those of its earlier
sessions instead of beginning them twice. The folders of the runs must be on a disk that sweep and workers share.
"""

import logging
import time
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling
from tenacity import before_sleep_log, retry, retry_if_exception_type, stop_after_delay, wait_fixed

from grpo_core.errors import SweepError, cause
from grpo_core.sweep.campaign import Ended, Job
from tasks.process.prefect_outage import prefect_may_be_away

logger = logging.getLogger(__name__)

ASK_SECONDS = 2.0
AWAY_SECONDS = 1800.0
MOST_ATTEMPTS = 20
outlast_outage = retry(
    retry=retry_if_exception_type(httpx.HTTPError),
    wait=wait_fixed(ASK_SECONDS),
    stop=stop_after_delay(AWAY_SECONDS),
    before_sleep=before_sleep_log(logger, logging.WARNING),
    reraise=True,
)
"""Prefect's own client does not try again where it finds no server at its first request."""


class DeploymentLauncher:
    """Starts flow runs; while Prefect is away it waits, and the runs continue."""

    outlives_the_sweep = True

    def __init__(self, sweep_id: str, deployment: str) -> None:
        """Start runs of a deployment of the flow `grpo`, for example `grpo/train`."""
        self._sweep_id = sweep_id
        self._deployment = deployment
        self._jobs: dict[str, Job] = {}
        self._cancelling: set[str] = set()
        """Flow runs that were on their way out when they were found."""
        self._next_ask = 0.0

    @outlast_outage
    def start(self, job: Job) -> None:
        """Begin a run, or resume one of an earlier session.

        Raises:
            SweepError: there is no such deployment.
        """
        keys = [f"{self._sweep_id}/{job.arm}/{job.seed}/{attempt}" for attempt in range(1, MOST_ATTEMPTS + 1)]
        known = _read(FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys)))
        if len(known) == MOST_ATTEMPTS:
            raise SweepError(f"{job.name}: {MOST_ATTEMPTS} attempts have come to nothing")
        newest = max(known, key=lambda run: keys.index(str(run.idempotency_key)), default=None)
        state = newest.state if newest is not None else None
        if newest is None or (state is not None and state.is_final() and not state.is_completed() and not job.is_held):
            newest = self._run(job, keys[len(known)])
        elif state is not None and state.type == StateType.CANCELLING:
            self._cancelling.add(str(newest.id))
        self._jobs[str(newest.id)] = job

    @outlast_outage
    def poll(self) -> list[Ended]:
        """Return the runs that have ended since the last poll."""
        if not self._jobs or time.monotonic() < self._next_ask:
            return []
        self._next_ask = time.monotonic() + ASK_SECONDS
        runs = _read(FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id) for run_id in self._jobs])))
        gone = [job for run_id, job in self._jobs.items() if run_id not in {str(run.id) for run in runs} and not job.is_held]
        ended = [end for run in runs if (end := self._end(run)) is not None]
        ended += [Ended(job=job, failure="its flow run is gone from Prefect", crashed=True) for job in gone]
        over = [end.job for end in ended]
        self._jobs = {run_id: job for run_id, job in self._jobs.items() if job not in over}
        return ended

    def interrupt(self) -> None:
        """Cancel the runs: each finishes its step and checkpoints; their workers see to that, and nobody waits here."""
        for run_id in self._jobs:
            with prefect_may_be_away(), get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(run_id), Cancelling(message="its sweep was cancelled"))

    def _end(self, run: FlowRun) -> Ended | None:
        job, state = self._jobs[str(run.id)], run.state
        if state is None or not state.is_final():
            return None
        if state.is_completed():
            return Ended(job=job)
        if state.is_crashed() and job.is_held:
            return None  # Prefect lost sight of it, for example in a long outage; its lock shows that it lives
        if state.is_cancelled() and str(run.id) not in self._cancelling:
            return Ended(job=job, cancelled=True)
        return Ended(
            job=job,
            failure=f"flow run {run.name}: {state.name}: {state.message}",
            crashed=state.is_crashed() or state.is_cancelled(),
        )

    def _run(self, job: Job, key: str) -> FlowRun:
        begun = {"config": str(job.base.resolve()), "overrides": dict(job.overrides)}
        try:
            run = run_deployment(
                f"{self._deployment.rpartition('/')[0]}/resume" if job.was_begun else self._deployment,
                parameters={"run_dir": str(job.run_dir.path.resolve()), **({} if job.was_begun else begun)},
                timeout=0,
                tags=[f"sweep:{self._sweep_id}", f"arm:{job.arm:03d}", f"seed:{job.seed}"],
                idempotency_key=key,
                as_subflow=True,
            )
        except ObjectNotFound as error:
            raise SweepError(f"runs.deployment {self._deployment}: there is no such deployment ({cause(error)})") from error
        assert isinstance(run, FlowRun)  # it is a coroutine only inside an event loop
        return run


def _read(named: FlowRunFilter) -> list[FlowRun]:
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(flow_run_filter=named)
