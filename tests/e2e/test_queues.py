"""A sweep waits for runs without taking the place of one: a stack with one slot and two workers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas
import pytest
import yaml

from flows.stack.services import service_processes
from grpo_core.config import apply_overrides
from tests.e2e.project import Project, wait_for

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

SHORT = {"training.steps": 2, "data.eval_fraction": 0.0}
SWEEP = {
    "base": "tiny",
    "axes": {"loss.beta": [0.01, 0.5]},
    "seeds": [3],
    "objective": {"metric": "reward/mean"},
    "runs": {"where": "deployment", "concurrency": 4},
}
"""Two runs, both handed out at once."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any], study_url: str) -> Iterator[Project]:
    """One slot, two workers, studies in a database of their own."""
    project = Project(tmp_path_factory.mktemp("project"), GRPO_STUDY_URL=study_url)
    (project.folder / "configs" / "sweeps").mkdir(parents=True)
    (project.folder / "configs" / "sweeps" / "betas.yaml").write_text(yaml.safe_dump(SWEEP))
    (project.folder / "configs" / "tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, SHORT)))
    with project.up("--slots", "1", "--workers", "2"):
        yield project


def runs(project: Project, parent: str) -> list[Any]:
    found: list[Any] = project.api("POST", "/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [parent]}}})
    return found


def test_status_shows_each_worker_and_up_with_another_number_is_refused(project: Project) -> None:
    lines = project.grpo("status").stdout.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["worker-1", "ready"], ["worker-2", "ready"]]
    refused = project.grpo("up", "--workers", "3")
    assert refused.returncode == 2
    assert "--workers 3: the stack of" in refused.stderr


def test_a_sweep_and_its_runs_end_on_one_slot_one_run_after_the_other(project: Project) -> None:
    sweep = project.start("grpo-sweep/sweep", "sweep=betas", "sweep_dir=runs/one")
    ended = project.finished(sweep)
    assert ended["state_type"] == "COMPLETED", ended["state"]
    assert any(tag.startswith("worker:") for tag in ended["tags"])
    trained = sorted(runs(project, sweep), key=lambda run: run["start_time"])
    assert [run["state_type"] for run in trained] == ["COMPLETED"] * 2
    assert all(before["end_time"] <= after["start_time"] for before, after in pairwise(trained)), "one slot"
    assert all({"worker:grpo-local-1", "worker:grpo-local-2"} & {*run["tags"]} for run in trained)
    assert len({tuple(sorted(tag for tag in run["tags"] if tag.startswith(("arm:", "seed:")))) for run in trained}) == 2
    table = pandas.read_parquet(project.folder / "runs" / "one" / "results" / "runs.parquet")
    assert table["status"].tolist() == ["finished"] * 2


@pytest.mark.slow
def test_a_worker_that_has_died_is_started_again_beside_the_other(project: Project) -> None:
    before = service_processes(project.stack.folder)
    project.kill("worker-2")
    assert "worker-2 ended" in project.grpo("status").stdout
    assert project.grpo("up").returncode == 0
    after = service_processes(project.stack.folder)
    assert {name for name in after if after[name] != before[name]} == {"worker-2"}


def test_down_cancels_a_sweep_with_its_runs_and_ends_both_workers(project: Project) -> None:
    project.start("grpo-sweep/sweep", "sweep=betas", 'overrides={"runs.concurrency": 1}')
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
    ended = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" ended")]
    assert ended == ["worker-2", "worker-1", "mlflow", "prefect"]
