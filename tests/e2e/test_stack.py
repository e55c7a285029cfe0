"""The local stack as a user works with it: up, deployments, cancelling, down; real servers, a real worker, a real training."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from flows.stack.services import choose_port, marked_processes, run_processes, service_processes
from grpo_core.machine.locks import lock_holder
from grpo_core.run.journal import read_journal
from tests.e2e.project import Project, wait_for

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("project"))
    (project.folder / "configs").mkdir()
    (project.folder / "configs" / "tiny.yaml").write_text(yaml.safe_dump(tiny_values))
    with project.up("--allow-reward", "tests.e2e.slow_reward"):
        yield project


@pytest.fixture(scope="module")
def finished(project: Project) -> str:
    run_id = project.start("grpo/train", "config=tiny", "beta=0", "ref_sync_steps=3", 'run_dir="runs/one"')
    assert project.finished(run_id)["state_type"] == "COMPLETED"
    return run_id


def test_up_again_changes_nothing_and_status_tells_the_addresses(project: Project) -> None:
    before = (project.stack, service_processes(project.stack.folder))
    assert project.grpo("up").returncode == 0
    assert (project.stack, service_processes(project.stack.folder)) == before
    status = project.grpo("status", "--json")
    services = {service["name"]: service for service in json.loads(status.stdout)["services"]}
    assert {service["condition"] for service in services.values()} == {"ready"}
    assert services["prefect"]["address"] == project.stack.prefect_address


def test_a_run_shows_what_differs_and_where_it_is_tracked(project: Project, finished: str, tiny_values: dict[str, Any]) -> None:
    run = project.flow_run(finished)
    assert run["name"] == "β 0 · G 4 · sync 3 · s0"
    assert {"grpo", "preset:tiny", f"data:{tiny_values['data']['source']}"} <= set(run["tags"])
    assert {"prepare-data", "train", "monitor", "report"} <= project.task_states(finished).keys()
    found = project.api("POST", "/artifacts/filter", {"flow_runs": {"id": {"any_": [finished]}}})
    artifacts = {artifact["key"]: artifact["data"] for artifact in found}
    assert artifacts["training-progress"] == 100.0
    assert "runs/one/index.html" in artifacts["training-report"]
    assert project.stack.mlflow_address in artifacts["training-report"]
    synced = {"filter": {"event": {"name": ["grpo.ref.synced"]}}}
    events = wait_for(lambda: project.api("POST", "/events/filter", synced)["events"], 30)
    assert [event["payload"]["step"] for event in events] == [3]
    tracked = json.loads((project.run_dir(finished) / "tracking.json").read_text())
    assert tracked["uri"] == project.stack.mlflow_address
    tracked_run = MlflowClient(tracking_uri=tracked["uri"]).get_run(tracked["run_id"])
    assert (tracked_run.info.run_name, tracked_run.info.status) == (run["name"], "FINISHED")
    assert "| `loss.beta` | 0.04 | 0.0 |" in tracked_run.data.tags["mlflow.note.content"]
    assert tracked_run.data.tags["prefect.flow_run_url"] == f"{project.stack.prefect_address}/runs/flow-run/{finished}"


@pytest.mark.slow
def test_grpo_train_uses_the_stack_that_is_up_here(project: Project) -> None:
    done = project.grpo("train", "tiny", "evaluation.samples=0", "--run-dir", "runs/direct")
    assert done.returncode == 0, done.stderr
    assert f"using the stack that is up here: Prefect {project.stack.prefect_address}" in done.stdout
    tracked = json.loads((project.folder / "runs" / "direct" / "tracking.json").read_text())
    assert tracked["uri"] == project.stack.mlflow_address


@pytest.mark.parametrize(
    ("parameter", "reason"),
    [
        ("beta=-1", "-1 is less than the minimum of 0"),
        ("group_size=two", "'group_size'"),
        ("bta=1", "not found on the deployment"),
    ],
)
def test_a_wrong_parameter_makes_no_run(project: Project, parameter: str, reason: str) -> None:
    done = project.run("prefect", "deployment", "run", "grpo/train", "--param", parameter)
    assert done.returncode == 1
    assert reason in done.stdout + done.stderr


def test_preparation_is_cached_and_cancelling_finishes_the_step_and_leaves_no_process(project: Project, finished: str) -> None:
    run_id = project.start("grpo/train", "config=tiny", 'overrides={"training.steps": 100000}', 'run_dir="runs/cancelled"')
    journal = project.folder / "runs" / "cancelled" / "journal.jsonl"
    wait_for(lambda: journal.exists() and '"kind":"step"' in journal.read_text())
    assert project.run("prefect", "flow-run", "cancel", run_id).returncode == 0
    assert wait_for(lambda: (run := project.flow_run(run_id))["state_type"] == "CANCELLED" and run)
    states = project.task_states(run_id)
    assert (states["read-prompts"], states["digest-weights"]) == ("Cached", "Cached")
    end = read_journal(journal)[-1]
    assert (end.kind, end.data["reason"]) == ("end", "SIGTERM")
    assert (journal.parent / "checkpoints" / f"step_{end.step:06d}" / "manifest.json").exists()
    assert run_processes(project.stack.folder) == []
    tracked = json.loads((journal.parent / "tracking.json").read_text())
    assert MlflowClient(tracking_uri=tracked["uri"]).get_run(tracked["run_id"]).info.status == "KILLED"


def test_a_run_outlives_its_worker_and_a_killed_flow_is_retried_from_its_checkpoint(project: Project) -> None:
    """SIGKILL to the worker, then to the flow: its retry is the same flow run and the same MLflow run."""
    slow = {"training.steps": 40, "training.checkpoint_every": 5, "rewards": [{"fn": "tests.e2e.slow_reward:slowly"}]}
    run_id = project.start("grpo/train", "config=tiny", f"overrides={json.dumps(slow)}")

    def folders() -> list[Path]:
        return [path.parent for path in project.folder.glob("runs/*/flow_run") if run_id in path.read_text()]

    (run_dir,) = wait_for(folders)
    wait_for(lambda: last_step(run_dir) >= 2)
    project.kill("worker")
    seen = last_step(run_dir)
    wait_for(lambda: last_step(run_dir) >= seen + 2)
    (flow,) = (each for each in run_processes(project.stack.folder) if any("prefect" in word for word in each.cmdline()[:4]))
    flow.kill()
    killed = time.monotonic()
    wait_for(lambda: lock_holder(run_dir / "journal.jsonl") is None, 60)
    assert time.monotonic() - killed < 60
    stopped = last_step(run_dir)
    assert stopped < 40
    assert "has died" in read_journal(run_dir / "journal.jsonl")[-1].data["reason"]

    assert "1 run(s) of before had lost their process and are Crashed now" in project.grpo("up").stdout
    assert project.run("prefect", "flow-run", "retry", run_id).returncode == 0
    assert project.finished(run_id)["state_type"] == "COMPLETED"
    assert folders() == [run_dir]
    records = read_journal(run_dir / "journal.jsonl")
    assert [record.step for record in records if record.kind == "step"] == list(range(1, 41))
    assert [record.step for record in records if record.kind == "resume"] == [stopped]
    tracked = json.loads((run_dir / "tracking.json").read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    assert client.get_run(tracked["run_id"]).info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(tracked["run_id"], "kl/ref/drift")] == list(range(1, 41))


def last_step(run_dir: Path) -> int:
    file = run_dir / "journal.jsonl"
    return max((record.step for record in read_journal(file)), default=0) if file.exists() else 0


@pytest.mark.slow
def test_down_ends_a_training_cleanly_when_prefect_has_died_and_up_starts_all_again(project: Project) -> None:
    run_id = project.start("grpo/train", "config=tiny", 'overrides={"training.steps": 100000}', 'run_dir="runs/orphaned"')
    journal = project.run_dir(run_id) / "journal.jsonl"
    wait_for(lambda: journal.exists() and '"kind":"step"' in journal.read_text())
    project.kill("prefect")
    assert "not known: Prefect does not answer" in project.grpo("status").stdout
    done = project.grpo("down")
    assert "cancelling 1 run(s)" in done.stdout, done.stderr
    end = read_journal(journal)[-1]
    assert (end.kind, end.data["reason"]) == ("end", "SIGTERM")
    assert (journal.parent / "checkpoints" / f"step_{end.step:06d}" / "manifest.json").exists()
    assert marked_processes(project.folder / ".grpo") == {}
    again = project.grpo("up")
    assert again.returncode == 0, again.stderr
    # Nobody could tell Prefect how the run ended; it must not hold the only slot for ever.
    assert "1 run(s) of before had lost their process and are Crashed now" in again.stdout
    assert project.flow_run(run_id)["state_type"] == "CRASHED"


def test_down_leaves_no_process_no_port_and_no_settings(project: Project) -> None:
    stack = project.stack
    run_id = project.start("grpo/train", "config=tiny", 'overrides={"training.steps": 100000}', 'run_dir="runs/down"')
    journal = project.run_dir(run_id) / "journal.jsonl"
    wait_for(lambda: journal.exists() and '"kind":"step"' in journal.read_text())
    project.start("grpo/train", "config=tiny", 'run_dir="runs/waiting"')
    done = project.grpo("down")
    assert done.returncode == 0, done.stderr
    assert "cancelling 1 run(s)" in done.stdout
    assert "1 run(s) are still scheduled" in done.stdout
    assert not (project.folder / "runs" / "waiting").exists()
    assert read_journal(journal)[-1].kind == "end"
    assert marked_processes(project.folder / ".grpo") == {}
    for port in (stack.prefect_port, stack.mlflow_port):
        assert choose_port("some", port, port) == port
    assert not (project.folder / "prefect.toml").exists()
    assert "nothing is up" in project.grpo("down").stdout
    assert project.grpo("status").returncode == 1
