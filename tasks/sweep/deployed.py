"""Runs as flow runs of a deployment: taken by any worker of its pool, and not tied to the life of the sweep.

A flow run is named by (sweep, arm, seed, attempt) in its idempotency key, so a resumed sweep finds those of its earlier
sessions instead of beginning them twice. The folders of the runs must be on a disk that sweep and workers share.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelling

from grpo_core.errors import SweepError, cause
from grpo_core.sweep.launcher import Ended, Job
from tasks.away import prefect_may_be_away

logger = logging.getLogger(__name__)

ASK_SECONDS = 2.0
MOST_ATTEMPTS = 20


class DeploymentLauncher:
    """Starts flow runs."""

    outlives_the_sweep = True

    def __init__(self, sweep_id: str, deployment: str) -> None:
        """Start runs of a deployment of the flow `grpo`, for example `grpo/train`."""
        self._sweep_id = sweep_id
        self._deployment = deployment
        self._waiting: list[Job] = []
        """Not handed out yet: Prefect is away."""
        self._jobs: dict[str, Job] = {}
        self._cancelling: set[str] = set()
        """Flow runs that were on their way out when they were found."""
        self._next_ask = 0.0

    def start(self, job: Job) -> None:
        """Begin a run, or resume one of an earlier session; while Prefect is away it waits.

        Raises:
            SweepError: there is no such deployment.
        """
        self._waiting.append(job)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            try:
                with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
                    self._begin(self._waiting[0])
            except ObjectNotFound as error:
                raise SweepError(f"runs.deployment {self._deployment}: there is no such deployment ({cause(error)})") from error
            except SweepError:
                raise
            except Exception:
                logger.warning("Prefect does not take a run; it is handed out again", exc_info=True)
                return
            self._waiting.pop(0)

    def _begin(self, job: Job) -> None:
        known = self._attempts(job)
        newest = known[-1] if known else None
        state = newest.state if newest is not None else None
        if state is not None and state.is_final() and not state.is_completed() and not job.is_held:
            newest = None
        if newest is None:
            newest = self._run(job, attempt=len(known) + 1)
        elif state is not None and state.type == StateType.CANCELLING:
            self._cancelling.add(str(newest.id))
        self._jobs[str(newest.id)] = job

    def poll(self) -> list[Ended]:
        """Return the runs that have ended since the last poll; nothing while Prefect is away."""
        if time.monotonic() < self._next_ask:
            return []
        self._next_ask = time.monotonic() + ASK_SECONDS
        self._hand_out()
        if not self._jobs:
            return []
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}), get_client(sync_client=True) as client:
                runs = client.read_flow_runs(
                    flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id) for run_id in self._jobs]))
                )
        except Exception:  # an outage of any kind: the runs continue, and are asked for again
            logger.warning("Prefect does not answer; the runs are asked for again", exc_info=True)
            return []
        found = {str(run.id) for run in runs}
        gone = [job for run_id, job in self._jobs.items() if run_id not in found and not job.is_held]
        ended = [end for run in runs if (end := self._end(run)) is not None]
        ended += [Ended(job=job, failure="its flow run is gone from Prefect", crashed=True) for job in gone]
        for end in ended:
            self._jobs = {run_id: job for run_id, job in self._jobs.items() if job.key != end.job.key}
        return ended

    def interrupt(self) -> None:
        """Cancel the runs: each finishes its step and checkpoints; their workers see to that, and nobody waits here."""
        self._waiting.clear()
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

    def _attempts(self, job: Job) -> Sequence[FlowRun]:
        keys = [self._key(job, attempt) for attempt in range(1, MOST_ATTEMPTS + 1)]
        named = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
        with get_client(sync_client=True) as client:
            known = client.read_flow_runs(flow_run_filter=named)
        if len(known) == MOST_ATTEMPTS:
            raise SweepError(f"{job.name}: {MOST_ATTEMPTS} attempts have come to nothing")
        return sorted(known, key=lambda run: keys.index(str(run.idempotency_key)))

    def _run(self, job: Job, attempt: int) -> FlowRun:
        parameters: dict[str, Any] = {"run_dir": str(job.run_dir.path.resolve())}
        name = self._deployment
        if job.was_begun:
            name = f"{self._deployment.rpartition('/')[0]}/resume"
        else:
            parameters |= {"config": str(job.base.resolve()), "overrides": dict(job.overrides)}
        run = run_deployment(
            name,
            parameters=parameters,
            timeout=0,
            tags=[f"sweep:{self._sweep_id}", f"arm:{job.arm:03d}", f"seed:{job.seed}"],
            idempotency_key=self._key(job, attempt),
            as_subflow=True,
        )
        assert isinstance(run, FlowRun)  # it is a coroutine only inside an event loop
        return run

    def _key(self, job: Job, attempt: int) -> str:
        return f"{self._sweep_id}/{job.arm}/{job.seed}/{attempt}"
