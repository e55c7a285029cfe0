"""The examples run as a reader runs them, and reproduce what was recorded."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.proof
def test_grpo_in_one_file_reproduces_its_recorded_figures(tmp_path: Path) -> None:
    file = EXAMPLES / "grpo_in_one_file.py"
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run([sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorded = re.search(r"last 10 steps: mean reward [\d.]+, mean KL [\d.]+", file.read_text())
    assert recorded is not None
    assert done.stdout.splitlines()[-1] == recorded[0]
    rewards = [float(value) for value in re.findall(r"^step .* reward ([\d.]+) ", done.stdout, re.MULTILINE)]
    assert len(rewards) == 15
    assert rewards[0] < 0.1 < 0.7 < rewards[-1]


def test_it_stays_one_file_on_the_algorithm_alone() -> None:
    text = (EXAMPLES / "grpo_in_one_file.py").read_text()
    modules = set(re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE))
    assert {name.split(".")[0] for name in modules} == {"copy", "torch", "transformers", "grpo_core"}
    assert all(name.startswith("grpo_core.algorithm.") for name in modules if name.startswith("grpo_core"))
    assert len(text.splitlines()) <= 160
    assert "class " not in text.split('"""', maxsplit=2)[2]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_run_here(path: Path) -> None:
    assert path.name in Path(__file__).read_text()
