"""`grpo evaluate`: which prompts a policy is evaluated on, and what they are called."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.data.prepare import load_frozen
from tests.e2e.conftest import Finished

pytestmark = pytest.mark.proof


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


@pytest.mark.parametrize(
    ("overrides", "prompts", "name"),
    [
        ({}, "own", "heldout"),
        ({"evaluation.samples": 2, "evaluation.k": [1]}, "own", "heldout"),
        ({"data.eval_fraction": 0.5}, "split", "sums"),
        ({"rollout.max_prompt_tokens": 63}, "split", "sums"),
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
