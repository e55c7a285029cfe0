"""The examples run as a reader runs them, and reproduce what was recorded or what is computed here by other means."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_core import Run
from tests.compared import write_compared

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that runs an example in an empty folder, as its docstring says, and returns what it prints."""

    def run(name: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "MPLBACKEND": "Agg"}
        command = [sys.executable, str(EXAMPLES / name)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def only_run(folder: Path) -> Run:
    (path,) = folder.glob("runs/*/")
    return Run(path)


@pytest.mark.proof
def test_grpo_in_one_file_reproduces_its_recorded_figures(run_example: Callable[[str], str]) -> None:
    output = run_example("grpo_in_one_file.py")
    recorded = re.search(r"last 10 steps: mean reward [\d.]+, mean KL [\d.]+", (EXAMPLES / "grpo_in_one_file.py").read_text())
    assert recorded is not None
    assert output.splitlines()[-1] == recorded[0]
    rewards = [float(value) for value in re.findall(r"^step .* reward ([\d.]+) ", output, re.MULTILINE)]
    assert len(rewards) == 15
    assert rewards[0] < 0.1 < 0.7 < rewards[-1]


def test_own_tensors_prints_what_is_computed_by_hand(run_example: Callable[[str], str]) -> None:
    # 7 tokens count. k3 = 1/2 - 1 + log 2. Advantages +-1/2 cancel: the surrogate is 0. Gradient: -A/7 + 0.1 (1 - r)/7.
    assert run_example("own_tensors.py").splitlines() == [
        "advantages [0.5, -0.5, 0.0, 0.0]",
        "k3 of the first token 0.193147",
        "policy 0.000000, KL 0.027592, total 0.002759",
        "gradient of the first row [-0.064286, -0.071429]",
    ]


@pytest.mark.proof
def test_own_reward_is_the_reward_of_the_run(tmp_path: Path, run_example: Callable[[str], str]) -> None:
    output = run_example("own_reward.py")
    run = only_run(tmp_path)
    assert run.state == "finished"
    assert [reward.fn for reward in run.config.rewards] == ["own_reward:near_miss"]
    # Scored here once more: 1 for the number, 1/2 within 2 of it, else 0.
    rows = run.completions
    expected = [credit(text, answer) for text, answer in zip(rows["completion"], answers(run), strict=True)]
    assert rows["reward"].tolist() == expected
    assert set(expected) == {0.0, 0.5, 1.0}
    assert list(run.evaluations["policy"]) == ["base", "final"]
    assert f"{run.steps['reward/mean'].iloc[-1]:.6f}" in output


def answers(run: Run) -> list[str]:
    """Return the gold answer of each completion of a run."""
    frozen = [json.loads(line) for line in (run.path / "data" / "train.jsonl").read_text().splitlines()]
    by_prompt = {row["text"]: row["columns"]["answer"] for row in frozen}
    return [by_prompt[prompt] for prompt in run.completions["prompt"]]


def credit(text: str, answer: str) -> float:
    number = re.fullmatch(r"\s*[+-]?\d+\s*", text)
    return 0.0 if number is None else {0: 1.0, 1: 0.5, 2: 0.5}.get(abs(int(text) - int(answer)), 0.0)


@pytest.mark.proof
def test_own_data_is_what_is_trained_on(tmp_path: Path, run_example: Callable[[str], str]) -> None:
    run_example("own_data.py")
    run = only_run(tmp_path)
    written = {
        row["problem"]: row["solution"] for row in map(json.loads, (tmp_path / "problems.jsonl").read_text().splitlines())
    }
    frozen = [json.loads(line) for line in (run.path / "data" / "train.jsonl").read_text().splitlines()]
    assert len(frozen) > 300
    assert all(written[row["text"]] == row["columns"]["answer"] for row in frozen)
    held_out = {json.loads(line)["text"] for line in (run.path / "data" / "eval.jsonl").read_text().splitlines()}
    assert held_out
    assert held_out.isdisjoint(row["text"] for row in frozen)
    assert run.state == "finished"
    assert run.steps["reward/mean"].between(0.01, 0.99).all()  # `math_answer` tells right from wrong


@pytest.mark.slow
def test_own_model_is_what_is_trained(tmp_path: Path, run_example: Callable[[str], str]) -> None:
    from grpo_core.policy.sources.find import weights_digest

    run_example("own_model.py")
    run = only_run(tmp_path)
    assert run.config.model.source == "models/sums"
    assert run.dir.read_provenance()["model_digest"] == weights_digest(tmp_path / "models" / "sums")
    assert run.state == "finished"


@pytest.mark.proof
def test_own_conversations_reach_the_reward_as_messages(tmp_path: Path, run_example: Callable[[str], str]) -> None:
    run_example("own_conversations.py")
    run = only_run(tmp_path)
    frozen = [json.loads(line) for line in (run.path / "data" / "train.jsonl").read_text().splitlines()]
    assert [message["role"] for message in frozen[0]["content"]] == ["system", "user"]
    rows = run.completions
    assert rows["reward"].tolist() == [float(text == gold) for text, gold in zip(rows["completion"], answers(run), strict=True)]
    assert run.steps["reward/mean"].iloc[-1] > 0.1


def test_references_are_compared_in_one_picture(tmp_path: Path) -> None:
    runs = [write_compared(tmp_path / name, {"reference.sync_steps": every}).path for name, every in (("a", None), ("b", 5))]
    panels = [f"fixed={runs[0]}", f"copied, k=5={runs[1]}"]
    command = [sys.executable, str(EXAMPLES / "compare_references.py"), "--out", str(tmp_path / "out.png"), *panels]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "MPLBACKEND": "Agg"}, check=True)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
