"""What a stack loses: workers, servers, machines; and that no run is lost with them, no slot kept and no place taken twice."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate

import pytest

from flows.stack.prefect_api import BUDGET_TAG
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tests.compose.evidence import problems, run_dir_of, steps
from tests.compose.runs import SLOW, runs_of_sweep, start_sweep, start_tiny
from tests.compose.stack import ComposeStack, wait_for

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
STEPS = 30


def spans(run_dirs: Sequence[RunDir]) -> list[tuple[float, float]]:
    """Return when each training began and ended, in the order of their beginnings."""
    journals = [read_journal(run_dir.journal_file) for run_dir in run_dirs]
    ends = [(records[0].time, records[-1].time) for records in journals]
    return sorted(
        (datetime.fromisoformat(begun).timestamp(), datetime.fromisoformat(ended).timestamp()) for begun, ended in ends
    )


def most_at_once(pairs: Sequence[tuple[float, float]]) -> int:
    changes = sorted([*((begin, 1) for begin, _ in pairs), *((end, -1) for _, end in pairs)])
    return max(accumulate(change for _, change in changes))


def under_way(stack: ComposeStack) -> list[str]:
    states = ["PENDING", "RUNNING", "CANCELLING"]
    return [
        run["id"] for run in stack.prefect("POST", "/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": states}}}})
    ]


def resumed(stack: ComposeStack, name: str) -> RunDir:
    run = stack.finished(stack.start_run("grpo/resume", run_dir=f"runs/{name}"))
    assert run["state_name"] == "Completed", run["state"]
    return run_dir_of(stack, name)


def test_the_automation_cancels_a_run_that_crosses_its_kl_budget(stack: ComposeStack) -> None:
    rules = [{"kind": "kl_budget", "metric": "kl/init/drift", "bound": 1e-6, "window": 1, "action": "warn"}]
    more = {"monitor.rules": rules, "optimizer.lr": 0.003}
    left = start_tiny(stack, "budget-left", steps=STEPS, slow=True, **more)
    tagged = start_tiny(stack, "budget-tagged", BUDGET_TAG, steps=200, slow=True, **more)
    assert stack.finished(left)["state_name"] == "Completed"
    assert stack.finished(tagged)["state_name"] == "Cancelled"
    run_dir = run_dir_of(stack, "budget-tagged")
    assert 0 < len(steps(run_dir)) < 200
    run_id = json.loads((run_dir.path / "tracking.json").read_text())["run_id"]
    assert stack.mlflow("GET", f"/runs/get?run_id={run_id}")["run"]["info"]["status"] == "KILLED"


def test_runs_of_a_killed_worker_are_crashed_when_it_is_back_and_go_on(stack: ComposeStack) -> None:
    run_id = start_tiny(stack, "orphan", steps=STEPS, slow=True)
    run_dir = run_dir_of(stack, "orphan")
    wait_for(lambda: len(steps(run_dir)) > 3, 180, lambda: stack.flow_run(run_id))
    stack.kill("worker")
    assert stack.flow_run(run_id)["state_name"] == "Running"
    stack.start("worker")
    wait_for(lambda: stack.flow_run(run_id)["state_name"] == "Crashed", 60, lambda: stack.flow_run(run_id)["state"])
    assert "worker@host-1 was started again" in stack.flow_run(run_id)["state"]["message"]
    assert under_way(stack) == []
    assert problems(stack, resumed(stack, "orphan"), STEPS) == []


def test_8_runs_on_one_host_take_place_one_after_another(stack: ComposeStack) -> None:
    names = [f"queue-{number}" for number in range(8)]
    runs = [start_tiny(stack, name, steps=4) for name in names]
    assert [stack.finished(run, 900)["state_name"] for run in runs] == ["Completed"] * 8
    folders = [run_dir_of(stack, name) for name in names]
    assert most_at_once(spans(folders)) == 1
    assert [problems(stack, folder, 4) for folder in folders] == [[]] * 8
    assert under_way(stack) == []


def test_a_sweep_that_trains_by_itself_waits_for_the_run_of_another_worker(stack: ComposeStack) -> None:
    run_id = start_tiny(stack, "beside", steps=3 * STEPS, slow=True)
    wait_for(lambda: len(steps(run_dir_of(stack, "beside"))) > 3, 240, lambda: stack.flow_run(run_id))
    sweep = start_sweep(stack, "by-itself", {"loss.beta": [0.01, 1.0]}, where="local", steps=3, seeds=[0])
    assert [stack.finished(run)["state_name"] for run in (run_id, sweep)] == ["Completed", "Completed"]
    runs = runs_of_sweep(stack, "by-itself")
    assert len(runs) == 2
    logs = [path.read_text() for path in runs[0].path.parent.glob("*.log")]
    assert any("waiting for one of 1 slot(s)" in log for log in logs), logs
    assert most_at_once(spans([run_dir_of(stack, "beside"), *runs])) == 1


@pytest.mark.parametrize("service", ["postgres", "redis", "s3", "prefect-server", "prefect-services", "mlflow-server"])
def test_a_server_that_is_killed_under_load_costs_nothing(stack: ComposeStack, service: str) -> None:
    name = f"without-{service}"
    run_id = start_tiny(stack, name, steps=STEPS, slow=True)
    waiting = start_tiny(stack, f"{name}-waiting", steps=3)
    run_dir = run_dir_of(stack, name)
    wait_for(lambda: len(steps(run_dir)) > 3, 240, lambda: stack.flow_run(run_id))
    stack.kill(service)
    time.sleep(5)
    stack.start(service)
    stack.wait_healthy()
    assert [stack.finished(run)["state_name"] for run in (run_id, waiting)] == ["Completed", "Completed"]
    assert problems(stack, run_dir, STEPS) == []
    assert problems(stack, run_dir_of(stack, f"{name}-waiting"), 3) == []
    assert under_way(stack) == []


TWO_HOSTS = """
services:
  worker-2:
    extends: {file: docker-compose.yml, service: worker}
    environment:
      GRPO_WORKER: worker@host-2
      GRPO_SLOT_FOLDER: /home/grpo/slots
"""
"""Another container with slots of its own and the same volume of runs stands for another machine."""


def test_a_sweep_of_8_on_two_hosts_outlives_one_of_them(stack: ComposeStack) -> None:
    (stack.folder / "two-hosts.yml").write_text(TWO_HOSTS)
    both = ComposeStack(stack.folder, stack.project, files=("docker-compose.yml", "two-hosts.yml"))
    both.up("worker-2")
    betas = {"loss.beta": [0.01, 0.1, 0.5, 1.0]}
    run_id = start_sweep(stack, "eight", betas, where="deployment", steps=20, overrides=SLOW, seeds=[0, 1])
    try:
        seen = wait_for(lambda: (alive := _training(both)) and sum(alive.values()) == 2 and alive, 300)
        assert seen == {"worker": 1, "worker-2": 1}
        both.kill("worker-2")  # and it does not come back; its run is crashed after 300 s of silence, and the sweep repeats it
        run = stack.finished(run_id, 1500)
        assert run["state_name"] == "Completed", run["state"]
    finally:
        both.remove("worker-2")
    assert _taken_by(stack, "worker@host-2")["Crashed"] == 1
    assert [problems(stack, run_dir, 20) for run_dir in runs_of_sweep(stack, "eight")] == [[]] * 8
    assert under_way(stack) == []


def _taken_by(stack: ComposeStack, worker: str) -> Counter[str]:
    runs = stack.prefect("POST", "/flow_runs/filter", {})
    return Counter(run["state_name"] for run in runs if run["labels"].get("prefect.worker.name") == worker)


def _training(stack: ComposeStack) -> dict[str, int]:
    """Return how many training processes there are in each worker's container; never two in one."""
    # By a word of its own on the command line: this script has it in a longer one.
    script = "import psutil; print(sum('grpo_core.training' in p.cmdline() for p in psutil.process_iter()))"
    found = {service: int(stack.run_in(service, "python", "-c", script)) for service in ("worker", "worker-2")}
    assert max(found.values()) <= 1, found
    return found
