"""The page "Coming from TRL", followed literally: its files are written, its commands run, its scripts are the given ones.

What the page converts by hand is checked against the scripts themselves: their arguments as Python's parser and TRL's own class
read them, their functions, and the rows that they make.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Run, RunConfig, load_config
from tests.e2e.conftest import Finished

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coming_from_trl.md"
SCRIPTS = ROOT / "tests" / "data" / "trl_scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

EXPECTED: dict[str, dict[str, Any]] = {
    # 8 rows x 4 accumulated / 8 completions = 4 prompts; dapo, linear and 42 are TRL's defaults.
    "gsm8k": {
        "model.source": "Qwen/Qwen2.5-0.5B",
        "rollout.num_prompts_per_step": 4,
        "rollout.group_size": 8,
        "rollout.max_completion_tokens": 64,
        "loss.beta": 0.04,
        "loss.aggregation": "token-mean",
        "reference.sync_steps": None,
        "optimizer.lr": 2e-6,
        "optimizer.schedule": "linear",
        "training.steps": 200,
        "training.seed": 42,
        "data.chat_template": False,
    },
    # 16 x 2 / 4 = 8 prompts; 400 and 64 optimizer steps are 200 and 32 steps of two updates each.
    "synced": {
        "rollout.num_prompts_per_step": 8,
        "rollout.group_size": 4,
        "loss.epochs_per_rollout": 2,
        "loss.aggregation": "seq-mean-token-mean",
        "loss.beta": 0.1,
        "reference.sync_steps": 32,
        "reference.mixup_alpha": 0.6,
        "optimizer.schedule": "constant",
        "training.steps": 200,
        "training.seed": 1,
    },
    # 12 / 6 = 2 prompts; scale_rewards false divides by nothing.
    "conversations": {
        "model.source": "Qwen/Qwen2.5-0.5B-Instruct",
        "rollout.num_prompts_per_step": 2,
        "rollout.group_size": 6,
        "rollout.temperature": 0.9,
        "advantage.scale": "none",
        "loss.aggregation": "seq-mean-token-sum-norm",
        "loss.beta": 0.0,
        "optimizer.warmup_steps": 20,
        "rewards.0.weight": 1.0,
        "rewards.1.weight": 0.2,
        "data.chat_template": True,
    },
}
"""What the configuration of each script must say, worked out by hand."""


def section(name: str) -> str:
    """Return the part of the page about a script."""
    found = re.search(rf"<!-- script: {name} -->\n(.*?)(?=\n## |\Z)", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def files_of(name: str) -> dict[str, str]:
    """Return {file: text} of the blocks that follow a line with the name of a file."""
    return dict(re.findall(r"^`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", section(name), re.DOTALL | re.MULTILINE))


def commands_in(name: str) -> list[str]:
    (block,) = re.findall(r"^```sh\n(.*?)^```", section(name), re.DOTALL | re.MULTILINE)
    return [line for line in block.splitlines() if line]


def script_of(name: str) -> str:
    """Return the script that stands on the page."""
    found = re.search(r"\A```python\n(.*?)^```", section(name), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def write_problems(folder: Path) -> None:
    rows = [{"question": f"What is {a} + {b}?", "answer": f"It is #### {a + b}"} for a in range(8) for b in range(8)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_until_settings(name: str, folder: Path) -> None:
    """Run a script with the page's one change: it writes its data set in place of settings and trainer."""
    text = script_of(name)
    begun = text[: text.index("args = GRPOConfig(")] + 'dataset.to_json("prompts.jsonl")\n'
    environment = {**os.environ, "HF_HOME": str(folder / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", begun], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_scripts_of_the_page_are_the_given_ones() -> None:
    assert sorted(EXPECTED) == NAMES
    assert {name: script_of(name) for name in NAMES} == {name: (SCRIPTS / f"{name}.py").read_text() for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_page_converts_a_script(
    name: str, tmp_path: Path, prefect_api: str, tiny_model_dir: Path, value_of: Callable[[RunConfig, str], Any]
) -> None:
    write_problems(tmp_path)
    run_until_settings(name, tmp_path)
    for file, text in files_of(name).items():
        (tmp_path / file).write_text(text)
    *conversion, training = commands_in(name)
    assert training == "grpo train mine.yaml"
    # The page's command with a model that is here, and a step that is short.
    short = f"model.source={tiny_model_dir} model.dtype=float32 training.steps=1 rollout.max_completion_tokens=4"
    schedule = "optimizer.warmup_steps=0 evaluation.samples=0"
    checked = (f"{line} {short} {schedule}" if line.startswith("grpo check") else line for line in conversion)
    for line in (*checked, f"{training} {short} {schedule} --run-dir runs/one"):
        done = shell(line, tmp_path, prefect_api)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if line.startswith("grpo check"):
            assert "the configuration is valid" in done.stdout
    config = load_config(tmp_path / "mine.yaml")
    assert {key: value_of(config, key) for key in EXPECTED[name]} == EXPECTED[name]
    run = Run(tmp_path / "runs" / "one")
    assert run.state == "finished"
    made = [json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    frozen = [json.loads(line)["content"] for line in (run.dir.data / "train.jsonl").read_text().splitlines()]
    assert frozen
    assert all(content in made for content in frozen)


@pytest.fixture
def value_of() -> Callable[[RunConfig, str], Any]:
    """Return a function that returns the value of a key path."""
    from grpo_core.config.origin import flatten

    return lambda config, key: flatten(config)[key]


def shell(line: str, folder: Path, prefect_api: str) -> Finished:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": prefect_api,
    }
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
