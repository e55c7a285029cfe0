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
from grpo_core.sweep.launcher import Ended, Job
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


def only(ended: list[Ended]) -> Ended:
    (one,) = ended
    return one


def test_a_run_is_begun_once_however_often_the_sweep_goes_on(job: Job, launcher: Callable[[], DeploymentLauncher]) -> None:
    for _ in range(2):
        session = launcher()
        session.start(job)
        assert session.poll() == []
    become(only_run := flow_runs(job)[0], Running(), Completed())
    assert len(flow_runs(job)) == 1
    assert session.poll() == [Ended(job=job)]
    assert session.poll() == []
    later = launcher()
    later.start(job)
    assert later.poll() == [Ended(job=job)], "its end is not forgotten either"
    assert [run.id for run in flow_runs(job)] == [only_run.id]


def test_a_run_that_prefect_lost_sight_of_is_waited_for_while_its_lock_is_held(
    job: Job, launcher: Callable[[], DeploymentLauncher]
) -> None:
    session = launcher()
    session.start(job)
    with job.run_dir.lock_file.open("wb") as lock:
        assert try_lock(lock)
        become(flow_runs(job)[0], Running(), Crashed(message="lease lost"))
        assert session.poll() == []
        again = launcher()
        again.start(job)
        assert again.poll() == []
        assert len(flow_runs(job)) == 1, "nor is it begun a second time beside itself"
    for each in (session, again):
        end = only(each.poll())
        assert end.crashed
        assert "lease lost" in str(end.failure)


def test_what_failed_or_was_lost_is_begun_again_by_the_next_session(
    job: Job, launcher: Callable[[], DeploymentLauncher]
) -> None:
    for attempt, state in enumerate((Failed(message="no such data"), Crashed(), Cancelled()), start=1):
        session = launcher()
        session.start(job)
        assert len(flow_runs(job)) == attempt
        become(flow_runs(job)[-1], Running(), state)
        assert len(session.poll()) == 1


def test_a_run_that_fails_says_why_and_one_that_a_person_cancels_is_not_a_failure(
    job: Job, launcher: Callable[[], DeploymentLauncher]
) -> None:
    session = launcher()
    session.start(job)
    become(flow_runs(job)[-1], Running(), Failed(message="no such data"))
    end = only(session.poll())
    assert "no such data" in str(end.failure)
    assert not end.crashed
    session.start(job)
    become(flow_runs(job)[-1], Running(), Cancelled())
    assert session.poll() == [Ended(job=job, cancelled=True)]


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
    assert only(again.poll()).crashed
    again.start(job)
    assert len(flow_runs(job)) == 2


def test_a_run_that_was_deleted_in_prefect_is_not_waited_for(job: Job, launcher: Callable[[], DeploymentLauncher]) -> None:
    session = launcher()
    session.start(job)
    with get_client(sync_client=True) as client:
        client.delete_flow_run(flow_runs(job)[0].id)
    end = only(session.poll())
    assert end.crashed
    assert "gone" in str(end.failure)


def test_a_deployment_that_is_not_there_is_refused_by_name(job: Job) -> None:
    with pytest.raises(SweepError, match=r"runs\.deployment grpo/nowhere: there is no such deployment"):
        DeploymentLauncher("sweep", "grpo/nowhere").start(job)
