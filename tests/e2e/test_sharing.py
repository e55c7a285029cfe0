"""Sweeps whose runs share their beginnings, or are forks of one run: the figures of one that shares nothing."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import is_inherited, read_journal
from grpo_core.run.reproduction import compare_journals
from grpo_core.sweep.folder import SweepDir
from grpo_core.training.__main__ import main

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
STEPS, SYNC, OBJECTIVE = 16, "reference.sync_steps", {"objective": {"metric": "reward/mean"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("sharing")
    base = {"data.eval_fraction": 0.0, "tracking.log_policy": False, "training.steps": STEPS, SYNC: None}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, base)))
    return folder


def sweep(grpo: Any, folder: Path, name: str, keys: Mapping[str, Any]) -> SweepDir:
    """Run a sweep of one seed, one run at a time."""
    file, where = folder / f"{name}.yaml", folder / "runs" / name
    file.write_text(yaml.safe_dump({**({} if "fork" in keys else {"base": "tiny.yaml"}), "seeds": [0], **OBJECTIVE, **keys}))
    done = grpo("sweep", str(file), "--sweep-dir", str(where), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return SweepDir(where)


def trained_alone(run: RunDir, folder: Path) -> RunDir:
    """Train the configuration of a sweep's run from its first step."""
    whole = RunDir(folder)
    folder.mkdir()
    for name in (".grpo-folder", "config.json"):
        shutil.copy(run.path / name, folder)
    shutil.copytree(run.data, whole.data)
    assert main([str(folder)]) == 0
    return whole


@pytest.mark.parametrize(
    ("name", "keys", "inherited"),
    [
        pytest.param("shared", {"axes": {SYNC: [None, 12, 8]}}, [0, 11, 7], marks=pytest.mark.slow),
        ("shared-settings", {"settings": {"late": {SYNC: 12}, "early": {SYNC: 8, "reference.mixup_alpha": 0.5}}}, [0, 7]),
    ],
)
def test_the_runs_of_a_sweep_that_shares_its_beginnings_have_the_figures_of_whole_ones(
    grpo: Any, folder: Path, name: str, keys: dict[str, Any], inherited: list[int]
) -> None:
    shared = sweep(grpo, folder, name, {**keys, "runs": {"share": True}})
    found = []
    for arm in range(len(inherited)):
        run = shared.run_dir(arm, 0)
        one, other = (read_journal(of.journal_file) for of in (trained_alone(run, folder / f"{name}-alone-{arm}"), run))
        compared = compare_journals(one, other)
        assert compared.steps == STEPS
        assert compared.is_identical, compared.differences[:3]
        found.append(sum(record.kind == "step" and is_inherited(record) for record in other))
    assert found == inherited
    assert f"{len(inherited) - 1} of {len(inherited)} runs are forked" in shared.page.read_text()
    steps = STEPS * len(inherited)
    assert f"{sum(inherited)} of {steps} steps ({sum(inherited) / steps:.0%}) are not run again" in shared.page.read_text()


@pytest.mark.slow
def test_a_key_that_changes_at_a_step_and_a_sweep_of_forks_come_to_the_same(grpo: Any, folder: Path) -> None:
    beta = {"loss.beta": [0.04, 0.5]}
    late = sweep(grpo, folder, "late", {"axes": beta, "from_step": {"loss.beta": 6}})
    control = late.run_dir(0, 0)
    forks = sweep(grpo, folder, "forks", {"axes": beta, "fork": {"run": str(control.path), "at": 6}})
    for arm in range(2):
        one, other = (read_journal(of.run_dir(arm, 0).journal_file) for of in (late, forks))
        assert compare_journals(one, other).is_identical
    histories = [read_journal(late.run_dir(arm, 0).journal_file) for arm in range(2)]
    figures = [[one.metrics["loss/total"] for one in records if one.kind == "step"] for records in histories]
    assert figures[0][:6] == figures[1][:6]
    assert figures[0][6:] != figures[1][6:]
