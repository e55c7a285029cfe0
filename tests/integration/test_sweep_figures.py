"""Every drift figure that a sweep shows is the last probe of the journals, read here line by line and not as a table."""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas
import pytest
from scipy import stats

from grpo_core.machine.disk import write_json
from grpo_core.sweep.arms import Outcome, arm_config
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.results import collect
from grpo_core.sweep.statistics.findings import find
from tasks.sweep.stages import report_again
from tasks.tracking.store import make_client
from tests.support.sweep_frames import statements
from tests.support.sweeps import choose_arms, stored_sweep, write_run

STEPS, PROBE_EVERY, LAST_STEPS = 30, 10, 5
PROBE = "kl/probe/full_init"
BOUND = 0.4
SEEDS = (0, 1, 2)
Key = tuple[int, int]
"""Arm and seed."""


def figures(arm: int, seed: int, step: int) -> dict[str, float]:
    """Return what a run measures at a step; the drift grows all the time, so that a mean of probes is far from the last."""
    drift = 0.01 * step * (1 + 0.2 * arm) + 0.001 * seed * (2 + arm)
    probe = {PROBE: drift, "kl/probe/full": drift, "kl/probe/se": 0.01, "kl/probe/se_init": 0.01}
    return {
        "reward/mean": 0.5 + 0.001 * step + 0.01 * arm + 0.002 * seed,
        "kl/ref/drift": drift / 2,
        "kl/init/drift": drift,
        "kl/ref/seq": drift,
        "kl/init/seq": 2 * drift,
        **(probe if step % PROBE_EVERY == 0 else {}),
    }


def last_probe(sweep_dir: SweepDir, arm: int, seed: int) -> float:
    """Return the last probe that a journal holds, from its lines."""
    lines = sweep_dir.run_dir(arm, seed).journal_file.read_text().splitlines()
    metrics = [record["data"]["metrics"] for line in lines if (record := json.loads(line))["kind"] == "step"]
    return float([of_step[PROBE] for of_step in metrics if PROBE in of_step][-1])


def write_sweep(folder: Path, client: Any, last: int = STEPS, **keys: Any) -> SweepDir:
    """Write a sweep all of whose runs have finished after so many steps, each tracked in the store of the environment."""
    defaults = {
        "overrides": {"training.steps": STEPS, "probe.every_steps": PROBE_EVERY},
        "axes": {"loss.beta": [0.1, 1.0], "reference.sync_steps": [None, 20]},
        "seeds": list(SEEDS),
    }
    stored = stored_sweep(folder, **{**defaults, **keys})
    experiment = client.create_experiment(str(folder), artifact_location=(folder / "artifacts").as_uri())

    def track(file: Path, name: str) -> None:
        run_id = client.create_run(experiment, run_name=name).info.run_id
        uri = client.tracking_uri
        write_json(file, {"uri": uri, "experiment_id": experiment, "run_id": run_id, "name": name})

    track(stored.dir.tracking_file, "sweep")
    for arm, seed in itertools.product(choose_arms(stored).values(), stored.plan.sweep.seeds):
        run_dir, config = stored.dir.run_dir(arm.number, seed), arm_config(stored.plan.sweep, stored.plan.base, arm.values)
        write_run(run_dir, config, lambda step: figures(arm.number, seed, step), last)  # noqa: B023  (called at once)
        stored.dir.add_outcome(Outcome(arm=arm.number, seed=seed, status="finished"))
        track(run_dir.tracking_file, f"{arm.number}-{seed}")
    return stored.dir


def tracked_metrics(client: Any, sweep_dir: SweepDir, arm: int, seed: int) -> dict[str, float]:
    run_id = json.loads(sweep_dir.run_dir(arm, seed).tracking_file.read_text())["run_id"]
    return dict(client.get_run(run_id).data.metrics)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The client of an empty MLflow store, the one of the environment."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        yield make_client(uri)


def test_tables_words_effects_and_mlflow_hold_the_last_probe(tmp_path: Path, client: Any) -> None:
    objective = {"metric": "reward/mean", "kl_metric": PROBE, "kl_bound": BOUND, "last_steps": LAST_STEPS}
    sweep_dir = write_sweep(tmp_path, client, objective=objective)
    _, _, problems = report_again(sweep_dir.path)
    assert problems == ()
    words = statements(find(collect(sweep_dir.read())))
    probes = {key: last_probe(sweep_dir, *key) for key in itertools.product(range(4), SEEDS)}
    for row in pandas.read_parquet(sweep_dir.results / "runs.parquet").to_dict("records"):
        wanted = probes[row["arm"], row["seed"]]
        assert (row["probe_kl_init"], row["drift"]) == pytest.approx((wanted, wanted), rel=1e-12)
    for key, wanted in probes.items():
        metrics = tracked_metrics(client, sweep_dir, *key)
        assert metrics["sweep/probe_kl_init"] == metrics["sweep/drift"] == pytest.approx(wanted, rel=1e-12)
    effects = pandas.read_parquet(sweep_dir.report / "effects.parquet").set_index(["outcome", "knob"])
    for name, knob, larger, smaller, levels in (
        ("β", "loss.beta", (2, 3), (0, 1), "1 over 0.1"),
        ("sync period", "reference.sync_steps", (1, 3), (0, 2), "20 over never"),
    ):
        of_seed = [fmean(probes[arm, seed] for arm in larger) - fmean(probes[arm, seed] for arm in smaller) for seed in SEEDS]
        interval = stats.ttest_1samp(of_seed, 0).confidence_interval(0.95)
        (line,) = [text for text in words if text.startswith(f"drift (exact, nats per token on the probe set), {name}: ")]
        assert f"{levels} by {fmean(of_seed):.3f} [{interval.low:.3f}, {interval.high:.3f}]" in line
        assert abs(effects.loc[("probe_kl_init", knob), "difference"]) == pytest.approx(fmean(of_seed), rel=1e-9)
    (bound,) = [text for text in words if text.startswith("within the bound")]
    assert "β 1 · sync 20" in bound.partition("over it, so never the best: ")[2]


def test_without_a_probe_in_the_last_steps_there_is_no_exact_drift(tmp_path: Path, client: Any) -> None:
    """Runs that a bound on their tokens ended a step early: what an earlier report knew is unknown now, in MLflow, too."""
    objective = {"metric": "reward/mean", "kl_metric": PROBE, "kl_penalty": 0.5, "last_steps": LAST_STEPS}
    sweep_dir = write_sweep(tmp_path, client, STEPS - 1, axes={"loss.beta": [0.1, 1.0]}, seeds=[0], objective=objective)
    run_id = json.loads(sweep_dir.run_dir(1, 0).tracking_file.read_text())["run_id"]
    client.log_metric(run_id, "sweep/objective", 0.42, step=STEPS - 1)
    _, answer, problems = report_again(sweep_dir.path)
    assert (problems, "Nothing to compare yet" in answer[0]) == ((), True)
    rows = pandas.read_csv(sweep_dir.results / "runs.csv")
    assert rows[["probe_kl_init", "drift", "objective"]].isna().all(axis=None)
    assert rows["kl_init_seq"].notna().all()
    assert math.isnan(tracked_metrics(client, sweep_dir, 1, 0)["sweep/objective"])
