"""Runs of a sweep as flow runs: a real Prefect is told by hand what became of them, and the launcher concludes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Running, State

from grpo_core.errors import SweepError
from grpo_core.machine.locks import try_lock
from grpo_core.run.folder import RunDir
from grpo_core.sweep.campaign import Ended, Job
from tasks.sweep.deployed import DeploymentLauncher

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module", autouse=True)
def deployment() -> Iterator[None]:
    """A Prefect server that knows a deployment `grpo/train`, which nobody runs."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        with get_client(sync_client=True) as client:
            flow_id = client.create_flow_from_name("grpo")
            client.create_deployment(flow_id=flow_id, name="train", enforce_parameter_schema=False)
        yield


@pytest.fixture
def job(tmp_path: Path) -> Job:
    run_dir = RunDir(tmp_path / "arm-000-seed-0")
    run_dir.path.mkdir()
    return Job(arm=0, seed=0, name="arm", base=tmp_path / "b.yaml", overrides={}, run_dir=run_dir, log_file=tmp_path / "log")


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], DeploymentLauncher]:
    """Return a function that makes a launcher, as each session of the same sweep does."""
    monkeypatch.setattr("tasks.sweep.deployed.ASK_SECONDS", 0.0)
    return lambda: DeploymentLauncher(f"sweep-{tmp_path.name}", "grpo/train")


def flow_runs(job: Job) -> list[FlowRun]:
    """Return the flow runs of a job, oldest first."""
    with get_client(sync_client=True) as client:
        found = [run for run in client.read_flow_runs() if run.parameters.get("run_dir") == str(job.run_dir.path)]
    return sorted(found, key=lambda run: str(run.idempotency_key))


def become(run: FlowRun, *states: State) -> None:
    with get_client(sync_client=True) as client:
        for state in states:
            client.set_flow_run_state(run.id, state, force=True)


def test_a_run_is_begun_once_however_often_the_sweep_goes_on(job: Job, launcher: Callable[[], DeploymentLauncher]) -> None:
    for _ in range(2):
        session = launcher()
        session.start(job)
        assert session.poll() == []
    become(flow_runs(job)[0], Running(), Completed())
    assert session.poll() == [Ended(job=job)]
    assert session.poll() == []
    later = launcher()
    later.start(job)
    assert later.poll() == [Ended(job=job)], "its end is not forgotten either"
    assert len(flow_runs(job)) == 1


def test_a_run_that_prefect_lost_sight_of_is_waited_for_while_its_lock_is_held(
    job: Job, launcher: Callable[[], DeploymentLauncher]
) -> None:
    sessions = [launcher(), launcher()]
    sessions[0].start(job)
    with job.run_dir.lock_file.open("wb") as lock:
        assert try_lock(lock)
        become(flow_runs(job)[0], Running(), Crashed(message="lease lost"))
        sessions[1].start(job)
        assert [session.poll() for session in sessions] == [[], []]
        assert len(flow_runs(job)) == 1, "nor is it begun a second time beside itself"
    for session in sessions:
        (end,) = session.poll()
        assert (end.crashed, "lease lost" in str(end.failure)) == (True, True)


def test_what_failed_was_lost_or_deleted_is_begun_again_and_a_person_who_cancels_is_obeyed(
    job: Job, launcher: Callable[[], DeploymentLauncher]
) -> None:
    for attempt, (state, said, crashed, cancelled) in enumerate(
        [
            (Failed(message="no such data"), "no such data", False, False),
            (Crashed(), "Crashed", True, False),
            (Cancelled(), "None", False, True),
            (None, "gone", True, False),
        ],
        start=1,
    ):
        session = launcher()
        session.start(job)
        assert len(flow_runs(job)) == attempt
        if state is None:
            with get_client(sync_client=True) as client:
                client.delete_flow_run(flow_runs(job)[-1].id)
        else:
            become(flow_runs(job)[-1], Running(), state)
        (end,) = session.poll()
        assert said in str(end.failure)
        assert (end.crashed, end.cancelled) == (crashed, cancelled)


def test_a_run_whose_sweep_was_cancelled_just_now_is_begun_again_once_it_is_over(
    job: Job, launcher: Callable[[], DeploymentLauncher]
) -> None:
    session = launcher()
    session.start(job)
    become(flow_runs(job)[0], Running())
    session.interrupt()
    assert flow_runs(job)[0].state_name == "Cancelling"
    again = launcher()
    again.start(job)
    become(flow_runs(job)[0], Cancelling(), Cancelled())
    assert [end.crashed for end in again.poll()] == [True]
    again.start(job)
    assert len(flow_runs(job)) == 2


def test_a_deployment_that_is_not_there_is_refused_by_name(job: Job) -> None:
    with pytest.raises(SweepError, match=r"runs\.deployment grpo/nowhere: there is no such deployment"):
        DeploymentLauncher("sweep", "grpo/nowhere").start(job)
