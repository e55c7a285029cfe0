"""Of generated configurations that pass without a warning, each key that was changed changes what the run does.

Each is run beside the same one without that key, and with the key off. GRPO_EFFECTS=7 draws others.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pandas
import pytest

from grpo_core.config import RunConfig, apply_overrides
from grpo_core.config.derived import events, most_measurements
from grpo_core.config.rules import RuleConfig
from grpo_core.data.prepare import prepare
from grpo_core.errors import GrpoError
from grpo_core.evaluation.__main__ import main as evaluate
from grpo_core.metrics import find_metric
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_records
from grpo_core.training.__main__ import main as train
from tests.integration.test_generated_overrides import is_cheap
from tests.mutated.effects import BASES, EVERYTHING, draw_changed

DRAWN, RUN = 300, 40
REPEATS_THE_KEY = ("ref/sync", "ref/steps_since_sync", "optim/lr", "progress/")
"""Figures that the key decides even where it has no effect."""


def what_it_does(config: RunConfig, run_dir: RunDir) -> dict[str, Any]:
    """Return the figures, files and evaluation of a run."""
    run_dir.create(config)
    try:
        prepare(config, run_dir.data)
    except GrpoError as error:
        return {"refused": str(error)}
    done: dict[str, Any] = {"exit code": train([str(run_dir.path)])}
    for record in read_records(run_dir.journal_file):
        figures = record.metrics if record.kind in ("step", "eval") else {}
        done |= {f"{record.step} {key}": repr(value) for key, value in figures.items() if shows_an_effect(key)}
        done |= {f"{record.step} prompts": record.data["num_prompts"]} if record.kind == "eval" else {}
    done |= {path.name: True for path in run_dir.checkpoints.glob("step_*")}
    done |= {path.name: len(pandas.read_parquet(path)) for path in run_dir.completions.glob("*.parquet")}
    if config.data.eval_fraction > 0 and evaluate([str(run_dir.path), "--policy", "final"]) == 0:
        done["final"] = json.loads((run_dir.eval / "final.json").read_text())["estimates"]
        done["rows"] = len(pandas.read_parquet(run_dir.eval / "final.parquet"))
    return done


def shows_an_effect(key: str) -> bool:
    metric = find_metric(key)
    return metric is not None and metric.deterministic and not key.startswith(REPEATS_THE_KEY)


def teaches_nothing(done: dict[str, Any]) -> bool:
    """Tell whether the completions of each group had equal rewards: then there was nothing to shape."""
    return all(value == "0.0" for key, value in done.items() if key.endswith("group/reward_std/max"))


def clips_nothing(done: dict[str, Any]) -> bool:
    """Tell whether no ratio came near a bound, as where the learning rate is nearly 0."""
    return all(float(value) <= 1.2 for key, value in done.items() if key.endswith("policy/ratio_max"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_key_that_is_accepted_without_a_warning_changes_the_run(tiny_values: dict[str, Any], tmp_path: Path) -> None:
    draw = Random(int(os.environ.get("GRPO_EFFECTS", "0")))
    bases = {name: apply_overrides(tiny_values, EVERYTHING | base) for name, base in BASES.items()}
    drawn = [changed for changed in (draw_changed(bases, draw) for _ in range(DRAWN)) if changed is not None]
    sample = [changed for changed in drawn if is_cheap(changed.config) and changed.config.training.steps <= 100][:RUN]
    known: dict[str, dict[str, Any]] = {}

    def done_by(config: RunConfig) -> dict[str, Any]:
        text = config.model_dump_json()
        if text not in known:
            known[text] = what_it_does(config, RunDir(tmp_path / f"run{len(known)}"))
        return known[text]

    idle = [
        text
        for changed in sample
        for text, other in changed.compared()
        if done_by(changed.config) == done_by(other)
        and not (text.startswith("advantage.") and teaches_nothing(done_by(changed.config)))
        and not (text.startswith(("loss.clip_eps", "loss.dual_clip")) and clips_nothing(done_by(changed.config)))
    ]
    keys = Counter(key for changed in sample for key in changed.keys)
    sys.stdout.write(f"{len(drawn)} of {DRAWN} without a warning, {len(sample)} in {len(known)} runs, {len(keys)} keys\n")
    assert not idle, "\n".join(idle)
    assert len(sample) == RUN


@pytest.mark.parametrize(
    "overrides",
    [
        {"reference.kl_init_every": 3, "reference.distance_every": 2, "training.completions_every": 2, "probe.every_steps": 3},
        {"reference.sync_steps": 3, "reference.kl_init_every": 2, "training.completions_every": 4, "probe.every_steps": 4},
    ],
)
def test_a_run_does_things_when_its_schedule_has_them(tiny_run: Any, overrides: dict[str, Any]) -> None:
    run = tiny_run({**overrides, "training.steps": 7, "evaluation.every_steps": 3, "training.checkpoint_every": 7})
    config = run.read_config()
    assert train([str(run.path)]) == 0
    records = [record for record in read_records(run.journal_file) if record.kind == "step"]
    measured = {key: [record.step for record in records if key in record.metrics] for key in ("kl/init/drift", "kl/probe/full")}
    times = {key: list(steps) for key, steps in events(config).items()}
    assert measured["kl/probe/full"] == times["probe.every_steps"]
    tables = sorted(path.stem for path in run.completions.glob("*.parquet"))
    assert tables == [f"step_{step:06d}" for step in times["training.completions_every"]]
    sync = config.reference.sync_steps
    assert measured["kl/init/drift"] == [*range(1, sync + 1), *times["reference.kl_init_every"]]
    assert [record.step for record in records if record.metrics["ref/synced"] and record.step < 7] == times[
        "reference.sync_steps"
    ]
    for key, steps in measured.items():
        assert most_measurements(config, RuleConfig(kind="kl_budget", metric=key)) == len(steps)
