"""A run whose reward and rows were given in a script: killed, resumed without the script, moved, repeated, evaluated."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core import Run, resume_training
from grpo_core.config import apply_overrides
from grpo_core.run.journal import read_journal

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
DETERMINISTIC = ["reward/mean", "reward/odd/mean", "kl/ref/drift", "kl/init/drift", "loss/total", "optim/grad_norm"]
STEPS = 20
SCRIPT = """
import sys
import pandas
from grpo_core import train

ODD = {1, 3, 5, 7, 9}

def length(text):
    return len(text)

def odd(completions, answer, **columns):
    return [float(length(text) % 2 == gold % 2) for text, gold in zip(completions, answer)]

if __name__ == "__main__":
    rows = pandas.DataFrame({"prompt": f"{a} + {b} =", "answer": a + b} for a in range(10) for b in range(10))
    short = {"fn": "length", "args": {"max_characters": 4}, "weight": 0.5}
    train("tiny.yaml", rewards=[odd, short], data=rows, run_dir=sys.argv[1])
"""


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "script.py", name], cwd=folder, env=environment, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def folder(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two runs of the script: `whole`, and `killed`, which was killed and resumed without the script."""
    folder = tmp_path_factory.mktemp("given")
    changes = {"training.steps": STEPS, "training.checkpoint_every": 5}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, changes)))
    (folder / "script.py").write_text(SCRIPT)
    whole, killed = start(folder, "whole"), start(folder, "killed")
    journal = folder / "killed" / "journal.jsonl"
    while not (journal.exists() and sum(record.kind == "step" for record in read_journal(journal)) >= 12):
        assert killed.poll() is None, (folder / "killed.log").read_text()
        time.sleep(0.02)
    os.kill(json.loads((folder / "killed" / "process.json").read_text())["pid"], signal.SIGKILL)
    assert killed.wait(60) == 1
    assert whole.wait(120) == 0, (folder / "whole.log").read_text()
    (folder / "script.py").unlink()
    (folder / "tiny.yaml").unlink()
    assert Run(folder / "killed").last_step < STEPS
    resume_training(folder / "killed", progress=False)
    return folder


def test_a_killed_run_is_resumed_with_the_function_that_was_given(folder: Path) -> None:
    whole, killed = Run(folder / "whole"), Run(folder / "killed")
    assert killed.state == "finished"
    assert killed.steps[DETERMINISTIC].equals(whole.steps[DETERMINISTIC])
    assert killed.steps["reward/odd/mean"].between(0.01, 0.99).any()
    assert killed.config.rewards == whole.config.rewards
    assert "data.source" not in whole.name


def test_a_run_that_was_moved_is_repeated_and_evaluated(folder: Path, grpo: Any, tmp_path: Path) -> None:
    (folder / "whole").rename(tmp_path / "moved")
    done = grpo("reproduce", "moved", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"figures of {STEPS} steps" in done.stdout
    assert "policy after step 20: the same weights, bit for bit" in done.stdout
    done = grpo("evaluate", "moved", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    (evaluated,) = tmp_path.glob("runs/*-evaluation")
    assert json.loads((evaluated / "config.json").read_text())["rewards"][0]["fn"].endswith(":odd")
    (tmp_path / "moved").rename(folder / "whole")


def test_runs_on_the_same_rows_are_not_told_apart_by_them(folder: Path) -> None:
    from grpo_core.compare.runs import differing_settings

    configs = [Run(folder / name).config for name in ("whole", "killed")]
    assert configs[0].data.source != configs[1].data.source
    assert differing_settings(configs) == {}
