"""Sweeps through the command: killed and gone on with, failing and pruned, with a real Prefect and a real MLflow store."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import psutil
import pytest
import yaml

from grpo_core.config import apply_overrides, load_config
from grpo_core.data.prepare import prepare
from grpo_core.metrics import LAST_STEPS
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.reproduction import compare_journals
from grpo_core.run.warm import MODULE
from grpo_core.sweep.folder import SweepDir
from grpo_core.training.__main__ import main
from tests.e2e.conftest import ROOT, Finished

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
STEPS = 16
"""Enough for a training to be in the middle when it has noticed that its sweep is dead."""


def write_sweep(folder: Path, tiny_values: dict[str, Any], base: dict[str, Any], **keys: Any) -> None:
    """Write tiny.yaml, without held-out prompts so that a run is one process, and sweep.yaml, which varies it."""
    folder.mkdir(exist_ok=True)
    values = apply_overrides(tiny_values, {"data.eval_fraction": 0.0, "tracking.log_policy": False, **base})
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    sweep = {"base": "tiny.yaml", "objective": {"metric": "reward/mean"}, **keys}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))


def kill_when(condition: Callable[[], bool], prefect_api: str, folder: Path, *words: str) -> None:
    """Run `grpo sweep` in a folder and kill it with SIGKILL once a condition holds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "sweep", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 600
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def steps_of(run_dir: RunDir) -> int:
    return run_dir.journal_file.read_text().count('"kind":"step"') if run_dir.journal_file.exists() else 0


@pytest.fixture(scope="module")
def resumed(
    grpo: Callable[..., Finished], prefect_api: str, tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SweepDir, Finished]:
    """(a sweep of 2 arms with 2 group sizes that was killed when some runs had ended, the command that ended it)."""
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(
        folder,
        tiny_values,
        {"training.steps": STEPS, "training.checkpoint_every": 4},
        question="Which β?",
        axes={"loss.beta": [0.01, 0.5], "rollout.group_size": [2, 4]},
        hold="completions",
        seeds=[3],
        runs={"concurrency": 2},
    )
    sweep_dir = SweepDir(folder / "runs" / "one")
    kill_when(lambda: steps_of(sweep_dir.run_dir(2, 3)) >= 1, prefect_api, folder, "sweep.yaml", "--sweep-dir", "runs/one")
    return sweep_dir, grpo("sweep", "--resume", "runs/one", cwd=folder)


def test_every_arm_and_seed_is_there_exactly_once(resumed: tuple[SweepDir, Finished]) -> None:
    sweep_dir, done = resumed
    assert done.returncode == 0, done.stderr
    runs = pandas.read_parquet(sweep_dir.results / "runs.parquet")
    assert sorted(zip(runs["arm"], runs["seed"], strict=True)) == [(arm, 3) for arm in range(4)]
    assert set(runs["status"]) == {"finished"}
    steps = pandas.read_parquet(sweep_dir.results / "steps.parquet")
    assert steps.groupby(["arm", "seed"])["step"].apply(list).tolist() == [list(range(1, STEPS + 1))] * 4
    lines = [json.loads(line) for line in sweep_dir.outcomes_file.read_text().splitlines()]
    assert len(lines) == 4
    assert "4 finished" in done.stdout
    assert "<h1>" in (sweep_dir.report / "report.html").read_text()
    # What was ready for a next run, of the killed sweep as well, is that run or gone.
    ready = [one.info["cwd"] for one in psutil.process_iter(["cmdline", "cwd"]) if MODULE in (one.info["cmdline"] or ())]
    assert str(sweep_dir.path.parents[1]) not in ready


def test_mlflow_nests_each_run_once_below_the_sweep(resumed: tuple[SweepDir, Finished]) -> None:
    from mlflow import MlflowClient

    sweep_dir, _ = resumed
    tracked = json.loads(sweep_dir.tracking_file.read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    children = client.search_runs([tracked["experiment_id"]], f"tags.`mlflow.parentRunId` = '{tracked['run_id']}'")
    swept = ("arm", "loss.beta", "rollout.group_size", "training.seed")
    assert len({tuple(run.data.params[key] for key in swept) for run in children}) == len(children) == 4
    for run in children:
        assert (run.info.status, run.data.tags["sweep"]) == ("FINISHED", sweep_dir.read().id)
        rewards = [point.value for point in client.get_metric_history(run.info.run_id, "reward/mean")[-LAST_STEPS:]]
        assert run.data.metrics["sweep/objective"] == pytest.approx(sum(rewards) / len(rewards))
    parent = client.get_run(tracked["run_id"])
    assert parent.info.status == "FINISHED"
    assert " was highest in the one seed: reward " in parent.data.tags["answer"].splitlines()[0]
    paths = {file.path for folder in ("results", "report") for file in client.list_artifacts(tracked["run_id"], folder)}
    assert {"results/runs.parquet", "results/steps.parquet", "report/report.html"} <= paths


def test_a_run_of_the_sweep_has_its_page_also_in_mlflow(
    resumed: tuple[SweepDir, Finished], grpo: Callable[..., Finished]
) -> None:
    from mlflow import MlflowClient

    run_dir = resumed[0].run_dir(0, 3)
    assert (run_dir.path / "index.html").exists()
    done = grpo("report", str(run_dir.path), "--json", cwd=resumed[0].path.parents[1])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["report"], document["problems"]) == (f"{run_dir.path}/index.html", [])
    tracked = json.loads(run_dir.tracking_file.read_text())
    artifacts = MlflowClient(tracking_uri=tracked["uri"]).list_artifacts(tracked["run_id"])
    assert "index.html" in {file.path for file in artifacts}


def test_a_run_of_the_sweep_is_the_run_of_its_configuration(resumed: tuple[SweepDir, Finished], tmp_path: Path) -> None:
    """An arm that was killed and resumed inside the sweep, and the same settings by hand, step by step."""
    sweep_dir, by_hand = resumed[0], RunDir(tmp_path / "hand")
    overrides = {"loss.beta": 0.5, "rollout.group_size": 2, "rollout.num_prompts_per_step": 6, "training.seed": 3}
    config = load_config(sweep_dir.path.parents[1] / "tiny.yaml", overrides)
    by_hand.create(config)
    prepare(config, by_hand.data)
    assert main([str(by_hand.path)]) == 0
    killed = read_journal(sweep_dir.run_dir(2, 3).journal_file)
    assert any(record.kind == "resume" for record in killed)
    compared = compare_journals(read_journal(by_hand.journal_file), killed)
    assert compared.steps == STEPS
    assert compared.is_identical, compared.differences[:3]


def test_arms_share_their_first_rollouts_as_far_as_their_shapes_allow(resumed: tuple[SweepDir, Finished]) -> None:
    sweep_dir, _ = resumed
    tables = [pandas.read_parquet(sorted(sweep_dir.run_dir(arm, 3).completions.glob("*.parquet"))[0]) for arm in range(4)]
    shared = ["prompt_id", "completion", "reward"]
    for one, other in ((0, 2), (1, 3)):  # they differ in beta alone
        pandas.testing.assert_frame_equal(tables[one][shared], tables[other][shared])
        assert tables[one]["completion"].nunique() > 1
    small, large = (table.groupby("prompt_id")["completion"].apply(list) for table in tables[:2])
    for prompt, completions in large.items():
        assert completions[:2] == small[prompt]


def test_a_failing_run_is_recorded_and_a_pruned_one_keeps_its_data(
    grpo: Callable[..., Finished], tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    broken = tmp_path / "python"  # all that is tried before a run succeeds with it
    broken.write_text(
        f'#!/bin/sh\ncase "$*" in *grpo_core.training*) echo "no such device" >&2; exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    broken.chmod(0o755)
    write_sweep(
        tmp_path,
        tiny_values,
        {"training.steps": 1000, "training.checkpoint_every": None, "optimizer.lr": 0.05},
        axes={"training.python": [sys.executable, str(broken)]},
        seeds=[0, 1],
        failed_runs_allowed=1,
        pruner={"kl_budget": 1e-6, "first_step": 2, "window": 1},
        objective={"metric": "reward/mean", "kl_metric": "kl/init/drift"},
    )
    done = grpo("sweep", "sweep.yaml", "--sweep-dir", "runs/bad", cwd=tmp_path)
    assert done.returncode == 2
    assert "failed_runs_allowed: 1, and 2 run(s) have failed" in done.stderr
    assert "no such device" in done.stderr
    runs = pandas.read_parquet(tmp_path / "runs" / "bad" / "results" / "runs.parquet").set_index(["arm", "seed"])
    assert runs.loc[(0, 0), "status"] == "pruned"
    assert "over pruner.kl_budget 1e-06" in runs.loc[(0, 0), "cause"]
    assert 2 <= runs.loc[(0, 0), "steps"] < 1000
    assert runs.loc[(1, 0), "status"] == "failed"
    assert (tmp_path / "runs" / "bad" / "report" / "report.html").exists(), "also a sweep that failed is reported"
    again = grpo("sweep", "--resume", "runs/bad", cwd=tmp_path)
    assert again.returncode == 2, "finished and failed runs are not run again by themselves"
    assert len((tmp_path / "runs" / "bad" / "outcomes.jsonl").read_text().splitlines()) == 3
