"""`grpo evaluate`: which prompts a policy is evaluated on, and what they are called."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.data.frozen import load_frozen
from tests.e2e.conftest import Finished

pytestmark = pytest.mark.proof

ROWS = [{"question": f"{a} + 1 =", "answer": str(a + 1)} for a in range(7)]


@pytest.fixture
def file_called_heldout(tmp_path: Path) -> Path:
    """A data file whose name is that of the evaluation set that every run has."""
    path = tmp_path / "heldout.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_run_is_evaluated_on_the_prompts_that_it_held_out(
    grpo: Any, finished_run: tuple[Path, Finished], tmp_path: Path
) -> None:
    run, _ = finished_run
    done = grpo("evaluate", str(run), "evaluation.samples=0", "evaluation.k=[]", "--run-dir", "e", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "e" / "eval" / "base.json").read_text())
    assert facts["set"] == "heldout"
    assert facts["step"] == 4
    assert load_frozen(tmp_path / "e" / "data")[1] == load_frozen(run / "data")[1]
    final = json.loads((run / "eval" / "final.json").read_text())
    for figure in ("greedy_accuracy", "greedy_score"):
        assert facts["estimates"][f"eval/heldout/{figure}"] == final["estimates"][f"eval/heldout/{figure}"]


def test_all_rows_of_a_data_source_are_evaluated_whatever_its_name(
    grpo: Any, finished_run: tuple[Path, Finished], file_called_heldout: Path, tmp_path: Path
) -> None:
    run, _ = finished_run
    done = grpo(
        "evaluate",
        str(run),
        "--data",
        f"file:{file_called_heldout}",
        "rewards=[{fn: exact_answer}]",
        "evaluation.samples=0",
        "evaluation.k=[]",
        "--run-dir",
        "e",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "e" / "eval" / "base.json").read_text())
    assert (facts["set"], facts["num_prompts"]) == ("heldout_data", len(ROWS))
    train, held_out = load_frozen(tmp_path / "e" / "data")
    assert train == ()
    assert sorted(prompt.columns["answer"] for prompt in held_out) == sorted(row["answer"] for row in ROWS)


@pytest.mark.parametrize(
    ("overrides", "prompts", "name"),
    [
        ({}, "own", "heldout"),
        ({"evaluation.samples": 2, "evaluation.k": [1]}, "own", "heldout"),
        ({"data.eval_fraction": 0.5}, "split", "chain_sum"),
        ({"rollout.max_prompt_tokens": 63}, "split", "chain_sum"),
        ({"data.source": "reasoning_gym:decimal_chain_sum"}, "all", "decimal_chain_sum"),
    ],
)
def test_what_is_asked_for_decides_on_the_prompts(
    finished_run: tuple[Path, Finished], tmp_path: Path, overrides: dict[str, Any], prompts: str, name: str
) -> None:
    from tasks.run.setup import open_evaluation

    run, _ = finished_run
    plan = open_evaluation.fn(str(run), None, overrides, tmp_path / "e")
    assert (plan.prompts, plan.set_name) == (prompts, name)
