"""Twenty mistakes of a first day: each is refused in words before there is a folder, a flow run or an MLflow run."""

import json
from pathlib import Path

import pytest
import yaml

from grpo_core.config import apply_overrides
from tests.conftest import build_values
from tests.support.commands import grpo

pytestmark = pytest.mark.proof

REWARDS = """def score(prompts, completions, answer, **columns):
    return [1.0 * (completion == gold) for completion, gold in zip(completions, answer)]


def fails(prompts, completions, level, **columns):
    return [float(value) for value in level]


def reads(completions, **columns):
    return columns["level"]
"""
BARE = ["data.chat_template=false"]
MISTAKES: list[tuple[list[str], str]] = [
    (["rollout.groupsize=4"], "rollout.groupsize: unknown key; did you mean rollout.group_size?"),
    (["los.beta=0.1"], "unknown key; did you mean loss"),
    (["reference={mixup_alpha: 0.5}"], "reference.mixup_alpha: 0.5"),
    (["optimizer={schedule: linear, warmup_steps: 4}"], "optimizer.warmup_steps: 4"),
    (["training.deterministic=yes"], "training.deterministic: input should be true or false, got 'yes'"),
    (["rollout.group_size=1000000000000"], "rollout.group_size: input should be less than or equal to 65536"),
    (["evaluation.pass_score=-1"], "evaluation.pass_score: input should be greater than or equal to 0, got -1"),
    (["data.source=ftp:x"], "data.source: input should be reasoning_gym:<task>, shapes:<task>, file:<path> or hub:<dataset>"),
    (["data.source=reasoning_gym:chain_sums"], "did you mean chain_sum"),
    (["data.source=file:nowhere.jsonl"], "data.source file:nowhere.jsonl: no such file"),
    (
        ["data.source=file:rows.jsonl", "data.prompt_column=query"],
        "no column 'query' in file:rows.jsonl; it has 'question', 'answer'",
    ),
    (["data.source=file:empty.jsonl"], "data.source file:empty.jsonl: holds no rows"),
    (["data.source=file:blank.jsonl"], "data.answer_column 'answer': is empty in 1 of 3 rows, the first is row 1"),
    (["data.source=file:taken.jsonl"], "a column is called completions"),
    (["data.source=hub:nobody/nothing"], "data.source hub:nobody/nothing"),
    (["model.source="], "model.source: input should be one line of text"),
    (["model.source=nobody/nothing"], "model.source 'nobody/nothing': is no folder"),
    (["model.source=cut"], "no causal language model can be loaded from cut: model.safetensors"),
    (["training.python=''"], "training.python: input should be one line of text"),
    (["training.python=/nowhere/python"], "training.python: '/nowhere/python' is no program"),
    (["rewards.0.fn=my_rewards:scor"], "rewards.0.fn my_rewards:scor: cannot be imported"),
    (
        [*BARE, "rewards.0.fn=my_rewards:reads"],
        "fn my_rewards:reads: raised KeyError: 'level' (my_rewards.py, line 10)",
    ),
    ([*BARE, "rewards.0.fn=my_rewards:fails"], "missing 1 required positional argument: 'level'; the columns of the data are"),
    (["rollout.max_prompt_tokens=2"], "rollout.max_prompt_tokens: 2 is less than each of the first 20 prompts has"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """A folder with what a first day brings: a configuration, rewards, rows, and a model that was cut off."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "cut").mkdir()
    for file in tiny_model_dir.iterdir():
        content = file.read_bytes()
        (folder / "cut" / file.name).write_bytes(content[:-10] if file.name == "model.safetensors" else content)
    (folder / "run.yaml").write_text(yaml.safe_dump(apply_overrides(build_values(tiny_model_dir), {"data.task_args": {}})))
    (folder / "my_rewards.py").write_text(REWARDS)
    rows = [{"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(3)]
    lines = [json.dumps(row) for row in rows]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    (folder / "empty.jsonl").write_text("")
    (folder / "blank.jsonl").write_text("\n".join([lines[0], json.dumps({"question": "1 =", "answer": " "}), lines[2]]))
    (folder / "taken.jsonl").write_text("\n".join(json.dumps({**row, "completions": "x"}) for row in rows))
    return folder


@pytest.mark.parametrize(("overrides", "said"), MISTAKES, ids=[" ".join(overrides) for overrides, _ in MISTAKES])
def test_a_mistake_is_refused_and_leaves_nothing(
    desk: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], said: str
) -> None:
    before = sorted(desk.iterdir())
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    done = grpo("train", "run.yaml", *overrides, cwd=desk)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(desk.iterdir()) == before
