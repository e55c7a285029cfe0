"""`training.deterministic`: what it sets in the process of a training, and that it is journalled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import read_journal
from tests.integration.test_training import step_figures

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]


def score(prompts: Any, completions: Any, path: str, **_: Any) -> list[float]:
    """Write down how torch is set while a reward function is called."""
    import torch

    deterministic, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    facts = [deterministic, warns, torch.backends.cudnn.benchmark, os.environ.get("CUBLAS_WORKSPACE_CONFIG")]
    Path(path).write_text(json.dumps(facts))
    return [float(len(completion[0]["content"]) < 5) for completion in completions]


def test_it_is_on_unless_it_is_switched_off_and_changes_no_figure_on_a_cpu(tiny_run: Any, tmp_path: Path) -> None:
    journals = []
    cases = ((True, None, [True, True, False, ":4096:8"]), (False, ":16:8", [False, False, False, ":16:8"]))
    for wanted, workspace, seen in cases:
        rewards = [{"fn": "tests.integration.test_determinism:score", "args": {"path": str(tmp_path / "seen.json")}}]
        options = {"training.deterministic": wanted, "training.steps": 2, "rewards": rewards}
        run_dir = tiny_run(options, name=f"run-{wanted}")
        own = {key: value for key, value in os.environ.items() if key != "CUBLAS_WORKSPACE_CONFIG"}
        given = {"CUBLAS_WORKSPACE_CONFIG": workspace} if workspace else {}
        command = [sys.executable, "-m", "grpo_core.training", str(run_dir.path)]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env={**own, **given, "PYTHONPATH": str(ROOT)})
        assert json.loads((tmp_path / "seen.json").read_text()) == seen
        journals.append(read_journal(run_dir.journal_file))
        assert journals[-1][0].data["deterministic"] is wanted
    assert step_figures(journals[0]) == step_figures(journals[1])
