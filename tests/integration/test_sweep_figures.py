"""Every drift figure that a sweep shows is the last probe of the journals, read here line by line and not as a table."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas
import pytest
from scipy import stats

from grpo_core.config import RunConfig
from grpo_core.machine.jsonfile import write_json
from grpo_core.run.journal import Journal
from grpo_core.sweep.arms import Arm, Outcome, arm_config, grid
from grpo_core.sweep.display import plain
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import make_plan
from tasks.sweep.stages import report_again

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
        "group/zero_std_frac": 0.25,
        "progress/generated_tokens": 100.0 * step,
        "time/step_seconds": 1.0,
        **(probe if step % PROBE_EVERY == 0 else {}),
    }


def write_run(sweep_dir: SweepDir, config: RunConfig, arm: int, seed: int, last: int) -> None:
    """Write a finished run of so many steps as its training would have."""
    run_dir = sweep_dir.run_dir(arm, seed)
    run_dir.create(config)
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    for step in range(1, last + 1):
        journal.append("step", step, {"metrics": figures(arm, seed, step)})
    journal.append("end", last, {"status": "finished", "reason": None})
    journal.close()
    sweep_dir.add_outcome(Outcome(arm=arm, seed=seed, status="finished"))


def last_probe(sweep_dir: SweepDir, arm: int, seed: int) -> float:
    """Return the last probe that a journal holds, from its lines."""
    lines = sweep_dir.run_dir(arm, seed).journal_file.read_text().splitlines()
    metrics = [record["data"]["metrics"] for line in lines if (record := json.loads(line))["kind"] == "step"]
    return float([of_step[PROBE] for of_step in metrics if PROBE in of_step][-1])


class Tables(HTMLParser):
    """Caption -> rows of a page's tables, each heading -> cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[dict[str, str]]] = {}
        self._caption, self._cell = "", ""
        self._head: list[str] = []
        self._row: list[str] = []
        self._is_small = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_small = tag == "small"
        if tag in ("caption", "td", "th"):
            self._cell = ""
        if tag == "thead":
            self._head = []
        if tag == "tr":
            self._row = []

    def handle_data(self, data: str) -> None:
        if not self._is_small:
            self._cell += data

    def handle_endtag(self, tag: str) -> None:
        self._is_small = False
        if tag == "caption":
            self._caption = self._cell
            self.found[self._caption] = []
        if tag == "th":
            self._head.append(self._cell)
        if tag == "td":
            self._row.append(self._cell)
        if tag == "tr" and self._row:
            self.found[self._caption].append(dict(zip(self._head, self._row, strict=True)))

    def starting(self, start: str) -> list[dict[str, str]]:
        (caption,) = [name for name in self.found if name.startswith(start)]
        return self.found[caption]


@dataclass(frozen=True, kw_only=True)
class Store:
    """An MLflow store that runs are handed to."""

    folder: Path

    @cached_property
    def client(self) -> Any:
        """Its client."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=f"sqlite:///{self.folder / 'mlflow.db'}")

    @cached_property
    def experiment(self) -> str:
        """Where its runs are."""
        return str(self.client.create_experiment("sweep", artifact_location=(self.folder / "mlartifacts").as_uri()))

    def track(self, file: Path, name: str) -> str:
        """Begin a run and note it where a sweep or a run notes where it is tracked; return its id."""
        run_id = self.client.create_run(self.experiment, run_name=name).info.run_id
        facts = {"uri": f"sqlite:///{self.folder / 'mlflow.db'}", "experiment_id": self.experiment, "run_id": run_id}
        write_json(file, {**facts, "name": name})
        return str(run_id)


def write_sweep(folder: Path, store: Store, last: int, **keys: Any) -> SweepDir:
    """Write a sweep all of whose runs have finished, each tracked in the store."""
    values = {
        "base": "sums_tiny_cpu",
        "overrides": {"training.steps": STEPS, "probe.every_steps": PROBE_EVERY},
        "axes": {"loss.beta": [0.1, 1.0], "reference.sync_steps": [None, 20]},
        "seeds": list(SEEDS),
    }
    plan = make_plan({**values, **keys})
    sweep_dir = SweepDir(folder / "runs" / "sweep")
    sweep_dir.create(plan, "drift", "drift-1")
    arms = {number: Arm(number=number, values=values) for number, values in enumerate(grid(plan.sweep))}
    sweep_dir.write_arms(arms)
    store.track(sweep_dir.tracking_file, "sweep")
    for arm, seed in itertools.product(arms.values(), plan.sweep.seeds):
        write_run(sweep_dir, arm_config(plan.sweep, plan.base, arm.values), arm.number, seed, last)
        store.track(sweep_dir.run_dir(arm.number, seed).tracking_file, f"{arm.number}-{seed}")
    return sweep_dir


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty MLflow store, the one of the environment."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        yield Store(folder=folder)


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory: pytest.TempPathFactory, store: Store) -> SweepDir:
    """A sweep of 2 x 2 arms with three seeds that has been reported on and handed to MLflow."""
    objective = {"metric": "reward/mean", "kl_metric": PROBE, "kl_bound": BOUND, "last_steps": LAST_STEPS}
    sweep_dir = write_sweep(tmp_path_factory.mktemp("sweep"), store, STEPS, objective=objective)
    _, answer, problems = report_again(sweep_dir.path)
    assert problems == ()
    (sweep_dir.path / "answer.json").write_text(json.dumps(answer))
    return sweep_dir


@pytest.fixture(scope="module")
def probes(sweep_dir: SweepDir) -> dict[Key, float]:
    """(arm, seed) -> last probe of its journal."""
    return {key: last_probe(sweep_dir, *key) for key in itertools.product(range(4), SEEDS)}


@pytest.fixture(scope="module")
def tables(sweep_dir: SweepDir) -> Tables:
    """The tables of the page."""
    return Tables((sweep_dir.report / "report.html").read_text())


def test_the_table_of_runs(sweep_dir: SweepDir, probes: dict[Key, float], tables: Tables) -> None:
    for stored in (
        pandas.read_parquet(sweep_dir.results / "runs.parquet"),
        pandas.read_csv(sweep_dir.results / "runs.csv"),
    ):
        for row in stored.to_dict("records"):
            wanted = probes[row["arm"], row["seed"]]
            assert (row["probe_kl_init"], row["drift"]) == pytest.approx((wanted, wanted), rel=1e-12)
    shown = {(int(row["arm"]), int(row["seed"])): row["drift"] for row in tables.starting("All runs")}
    assert shown == {key: f"{value:.3f}" for key, value in probes.items()}


def test_the_table_of_arms(probes: dict[Key, float], tables: Tables) -> None:
    rows = tables.starting("Arms: what they reached")
    assert len(rows) == 4
    for row in rows:
        of_arm = [probes[int(row["arm"]), seed] for seed in SEEDS]
        interval = stats.ttest_1samp(of_arm, 0).confidence_interval(0.95)
        half = (interval.high - interval.low) / 2
        decimals = max(3, 1 - math.floor(math.log10(half)))  # two digits of what is uncertain
        cell = f"{fmean(of_arm):.{decimals}f} ± {half:.{decimals}f}"
        assert row["the same, exact"] == cell
        upper = fmean(of_arm) + stats.t.ppf(0.95, len(SEEDS) - 1) * stats.sem(of_arm)
        assert row["drift"] == f"{cell}, at most {plain(upper)}" + (" (over)" if upper > BOUND else "")


def test_the_words_the_effects_and_their_table(sweep_dir: SweepDir, probes: dict[Key, float], tables: Tables) -> None:
    answer = json.loads((sweep_dir.path / "answer.json").read_text())
    effects = pandas.read_parquet(sweep_dir.report / "effects.parquet").set_index(["outcome", "knob"])
    for name, knob, larger, smaller, words in (
        ("β", "loss.beta", (2, 3), (0, 1), "0.1 has lower drift than 1"),
        ("sync period", "reference.sync_steps", (1, 3), (0, 2), "never has lower drift than 20"),
    ):
        of_seed = [fmean(probes[arm, seed] for arm in larger) - fmean(probes[arm, seed] for arm in smaller) for seed in SEEDS]
        interval = stats.ttest_1samp(of_seed, 0).confidence_interval(0.95)
        (line,) = [text for text in answer if text.startswith(f"drift by {name} (KL to the initial policy, exact, ")]
        assert f": {words} by {fmean(of_seed):.3f} [{interval.low:.3f}, {interval.high:.3f}]" in line
        assert abs(effects.loc[("probe_kl_init", knob), "difference"]) == pytest.approx(fmean(of_seed), rel=1e-9)
    (bound,) = [text for text in answer if text.startswith("over the bound")]
    first = [probes[3, seed] for seed in SEEDS]
    assert f"(arm 3) with the highest objective 0.560 at {fmean(first):.3f} nats" in bound
    for name in ("β", "sync period"):
        (row,) = tables.starting(f"{name}: paired differences in the exact KL to the initial policy")
        (said,) = [text for text in answer if text.startswith(f"drift by {name} (")]
        assert f" by {row['difference [95 %]'].split(' [')[0].lstrip('-')} [" in said


def test_the_figures_in_mlflow(sweep_dir: SweepDir, store: Store, probes: dict[Key, float]) -> None:
    for (arm, seed), wanted in probes.items():
        run_id = json.loads(sweep_dir.run_dir(arm, seed).tracking_file.read_text())["run_id"]
        metrics = store.client.get_run(run_id).data.metrics
        assert metrics["sweep/probe_kl_init"] == metrics["sweep/drift"] == pytest.approx(wanted, rel=1e-12)


def test_without_a_probe_in_the_last_steps_there_is_no_exact_drift(tmp_path: Path, store: Store) -> None:
    """Runs that a bound on their tokens ended a step early: what an earlier report knew is unknown now, in MLflow, too."""
    objective = {"metric": "reward/mean", "kl_metric": PROBE, "kl_penalty": 0.5, "last_steps": LAST_STEPS}
    axes = {"loss.beta": [0.1, 1.0]}
    sweep_dir = write_sweep(tmp_path, store, STEPS - 1, axes=axes, seeds=[0], objective=objective)
    run_id = json.loads(sweep_dir.run_dir(1, 0).tracking_file.read_text())["run_id"]
    store.client.log_metric(run_id, "sweep/objective", 0.42, step=STEPS - 1)
    _, answer, problems = report_again(sweep_dir.path)
    assert problems == ()
    assert answer[0] == "no run finished with a known objective: nothing can be compared"
    rows = pandas.read_csv(sweep_dir.results / "runs.csv")
    assert rows[["probe_kl_init", "drift", "objective"]].isna().all(axis=None)
    assert rows["kl_init_seq"].notna().all()
    assert math.isnan(store.client.get_run(run_id).data.metrics["sweep/objective"])


def test_a_comparison_that_fails_leaves_the_report_and_its_fault_is_named(tmp_path: Path, store: Store) -> None:
    sweep_dir = write_sweep(
        tmp_path, store, STEPS, axes={"loss.beta": [0.1, 1.0]}, seeds=[0], objective={"metric": "reward/mean"}
    )
    theirs = sweep_dir.report / "compare" / "thesis.tex"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    page, answer, (problem,) = report_again(sweep_dir.path)
    assert "it holds thesis.tex" in problem
    assert f"`grpo report {sweep_dir.path}` tries again" in problem
    assert answer[0].startswith("best of 2 arms")
    assert "compare/compare.html" not in page.read_text()
    theirs.unlink()
    page, _, problems = report_again(sweep_dir.path)
    assert problems == ()
    assert 'href="compare/compare.html"' in page.read_text()
