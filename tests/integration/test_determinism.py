"""`training.deterministic`: what it sets in the process of a training, and that it is journalled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.metrics import find_metric
from grpo_core.run.journal import read_journal

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
WITNESS = '''"""A reward function that writes down how torch is set while it is called."""

import json
import os
from pathlib import Path

import torch


def score(prompts, completions, path, **columns):
    facts = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
    Path(path).write_text(json.dumps(facts))
    return [float(len(completion[0]["content"]) < 5) for completion in completions]
'''


@pytest.fixture
def trained(tiny_run: Any, tmp_path: Path) -> Any:
    """Return a function that trains in a process of its own and returns what the witness saw, and the journal."""
    (tmp_path / "witness.py").write_text(WITNESS)

    def train(wanted: bool, **environment: str) -> tuple[dict[str, Any], Any]:
        path = tmp_path / f"seen-{wanted}.json"
        rewards = [{"fn": "witness:score", "args": {"path": str(path)}}]
        options = {"training.deterministic": wanted, "training.steps": 2, "rewards": rewards}
        run_dir = tiny_run(options, name=f"run-{wanted}")
        own = {key: value for key, value in os.environ.items() if key != "CUBLAS_WORKSPACE_CONFIG"}
        paths = os.pathsep.join((str(ROOT), str(tmp_path)))
        command = [sys.executable, "-m", "grpo_core.training", str(run_dir.path)]
        subprocess.run(command, check=True, capture_output=True, env={**own, **environment, "PYTHONPATH": paths})
        return json.loads(path.read_text()), read_journal(run_dir.journal_file)

    return train


def test_it_is_on_unless_it_is_switched_off_and_changes_no_figure_on_a_cpu(trained: Any) -> None:
    (on, with_it), (off, without) = trained(True), trained(False, CUBLAS_WORKSPACE_CONFIG=":16:8")
    assert on == {"deterministic": True, "warn only": True, "benchmark": False, "workspace": ":4096:8"}
    assert off == {"deterministic": False, "warn only": False, "benchmark": False, "workspace": ":16:8"}
    assert [journal[0].data["deterministic"] for journal in (with_it, without)] == [True, False]
    figures = [
        [
            {key: value for key, value in record.metrics.items() if find_metric(key).deterministic}  # type: ignore[union-attr]
            for record in journal
            if record.kind == "step"
        ]
        for journal in (with_it, without)
    ]
    assert figures[0] == figures[1]
