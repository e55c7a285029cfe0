"""A sweep waits for runs without taking the place of one: a stack with one slot and two workers."""

import os
import signal
import textwrap
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from grpo_core.config import apply_overrides
from tests.e2e.project import Project, wait_for

pytestmark = pytest.mark.timeout(600)

SHORT = {"training.steps": 2, "evaluation.samples": 0, "evaluation.num_prompts": 2}
WAITER = """
import time
from prefect import flow, get_client
from prefect.deployments import run_deployment

@flow(name="waiter")
def waiter(deployment: str, count: int) -> list[str]:
    "Start runs and wait for their end, as a sweep does."
    started = [run_deployment(deployment, parameters={"config": "tiny", "seed": seed}, timeout=0).id for seed in range(count)]
    with get_client(sync_client=True) as client:
        while True:
            states = [client.read_flow_run(run).state for run in started]
            if all(state.is_final() for state in states):
                return [state.name for state in states]
            time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> Iterator[Project]:
    """One slot, two workers, and a flow that waits for runs in the queue of the sweeps."""
    project = Project(tmp_path_factory.mktemp("project"))
    (project.folder / "configs").mkdir()
    (project.folder / "configs" / "tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, SHORT)))
    done = project.grpo("up", "--slots", "1", "--workers", "2")
    try:
        assert done.returncode == 0, done.stderr + done.stdout
        (project.folder / "waiter.py").write_text(textwrap.dedent(WAITER))
        queue = ("--pool", "grpo", "--work-queue", "sweeps")
        done = project.run("prefect", "--no-prompt", "deploy", "waiter.py:waiter", "--name", "wait", *queue)
        assert done.returncode == 0, done.stderr + done.stdout
        yield project
    finally:
        assert project.grpo("down", "--patience", "20").returncode == 0


def runs(project: Project, parent: str) -> list[Any]:
    """Return the flow runs that a flow run has started."""
    found: list[Any] = project.api("POST", "/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [parent]}}})
    return found


def limits(project: Project) -> dict[str, Any]:
    """Return {queue: its limit} of the pool, with the pool's own as `pool`."""
    queues = project.api("POST", "/work_pools/grpo/queues/filter", {})
    pool = project.api("GET", "/work_pools/grpo")
    return {"pool": pool["concurrency_limit"], **{queue["name"]: queue["concurrency_limit"] for queue in queues}}


def test_only_the_queue_of_the_runs_has_a_limit_and_a_stack_that_is_set_up_again_keeps_it(project: Project) -> None:
    expected = {"pool": None, "default": 1, "sweeps": None}
    assert limits(project) == expected
    httpx.patch(f"{project.stack.api}/work_pools/grpo", json={"concurrency_limit": 1}, timeout=30).raise_for_status()
    assert project.grpo("up").returncode == 0  # as after an update from a version in which the pool had the limit
    assert limits(project) == expected


def test_every_deployment_of_a_sweep_is_in_the_queue_without_a_limit(project: Project) -> None:
    found = project.api("POST", "/deployments/filter", {})
    flows = {flow["id"]: flow["name"] for flow in project.api("POST", "/flows/filter", {})}
    queues = {f"{flows[deployment['flow_id']]}/{deployment['name']}": deployment["work_queue_name"] for deployment in found}
    sweeps = {name for name, queue in queues.items() if queue == "sweeps"}
    assert sweeps == {"grpo-sweep/sweep", "grpo-sweep/resume", "waiter/wait"}
    assert queues["grpo/train"] == "default"


def test_status_shows_each_worker_and_up_with_another_number_is_refused(project: Project) -> None:
    lines = project.grpo("status").stdout.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["worker-1", "ready"], ["worker-2", "ready"]]
    refused = project.grpo("up", "--workers", "3")
    assert refused.returncode == 2
    assert "--workers 3: the stack of" in refused.stderr
    assert "is up with 2; run `grpo down` first" in refused.stderr


def test_a_sweep_and_its_runs_end_on_one_slot_one_run_after_the_other(project: Project) -> None:
    """Two sweeps at a time: each would hold the slot that the other one's runs need."""
    sweeps = [project.start("waiter/wait", "deployment=grpo/train", "count=1") for _ in range(2)]
    wait_for(lambda: all(project.flow_run(sweep)["state_type"] == "RUNNING" for sweep in sweeps))
    assert [project.finished(sweep)["state_type"] for sweep in sweeps] == ["COMPLETED", "COMPLETED"]
    trained = sorted((run for sweep in sweeps for run in runs(project, sweep)), key=lambda run: run["start_time"])
    assert [run["state_type"] for run in trained] == ["COMPLETED"] * 2
    first, second = trained
    assert first["end_time"] <= second["start_time"]
    for run in trained:
        (worker,) = (tag for tag in run["tags"] if tag.startswith("worker:"))
        assert worker in {"worker:grpo-local-1", "worker:grpo-local-2"}


def test_a_worker_that_has_died_is_started_again_beside_the_other(project: Project) -> None:
    before = project.stack.processes
    killed = before["worker-2"]
    os.kill(killed.pid, signal.SIGKILL)
    wait_for(lambda: not project.stack.alive("worker-2"))
    assert "worker-2 ended" in project.grpo("status").stdout
    assert project.grpo("up").returncode == 0
    after = project.stack.processes
    assert after["worker-2"] != killed
    assert {name: process for name, process in after.items() if name != "worker-2"} == {
        name: process for name, process in before.items() if name != "worker-2"
    }


def test_down_cancels_a_sweep_with_its_runs_and_ends_both_workers(project: Project) -> None:
    project.start("waiter/wait", "deployment=grpo/train", "count=2")
    wait_for(
        lambda: any(
            run["state_type"] == "RUNNING"
            for run in project.api("POST", "/flow_runs/filter", {})
            if run["work_queue_name"] == "default"
        )
    )
    done = project.grpo("down")
    assert done.returncode == 0, done.stderr
    assert "cancelling 2 run(s)" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" ended")] == [
        "worker-2",
        "worker-1",
        "mlflow",
        "prefect",
    ]
