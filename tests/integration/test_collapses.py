"""The black box of a training: what it leaves beside the journal, and what `grpo why` says of three that collapse."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import load_config
from grpo_core.data.prepare import prepare
from grpo_core.run.black_box import read_tokens
from grpo_core.run.curves import Run
from grpo_core.run.folder import RunDir
from grpo_core.run.why import explain
from tests.integration.test_training import assert_same_weights, killed_after_two_steps_of_four, of_kind, step_figures, train

HERE = "tests.integration.test_collapses"
NOISE = ("optim/grad_signal", "optim/grad_variance", "optim/noise_scale")


def long_ones(completions: Any, **_: Any) -> list[float]:
    """Pay for length alone."""
    return [float(len(one)) for one in completions]


def ones(completions: Any, **_: Any) -> list[float]:
    """Pay for an answer that begins with 1, whatever the question."""
    return [float(one.strip().startswith("1")) for one in completions]


def test_the_noise_scale_changes_no_other_figure_and_a_resume_writes_the_same_files_again(tiny_run: Any) -> None:
    plain = tiny_run({"training.checkpoint_every": 2}, "plain")
    measured = tiny_run({"training.checkpoint_every": 2, "training.noise_scale_every": 2}, "measured")
    figures, without = step_figures(train(measured)), step_figures(train(plain))
    assert [NOISE[0] in step for step in figures] == [False, True, False, True]
    assert [{key: value for key, value in step.items() if key not in NOISE} for step in figures] == without
    assert_same_weights(measured, plain)
    assert figures[1][NOISE[0]] + figures[1][NOISE[1]] / 3 == pytest.approx(figures[1]["optim/grad_norm"] ** 2)
    files = {file.name: file.read_bytes() for file in measured.black_box.iterdir()}
    assert list(read_tokens(measured, 4)) == [1, 2, 3, 4]
    killed = killed_after_two_steps_of_four(measured, "killed")
    for step in (3, 4):
        (killed.black_box / f"step_{step:06d}.json").unlink()
    assert of_kind(train(killed), "alert") == []
    assert {file.name: file.read_bytes() for file in killed.black_box.iterdir()} == files


def test_the_worst_tokens_stand_where_they_were_written_and_of_several_updates_there_are_ratios(tiny_run: Any) -> None:
    run = tiny_run({"loss.epochs_per_rollout": 2, "training.steps": 2})
    train(run)
    table = Run(run.path).completions.query("step == 2")
    tokens = read_tokens(run, 2)[2]
    assert {one["kind"] for one in tokens} == {"k1 to the initial policy, nats", "ratio", "share of the loss"}
    for one in tokens:
        rows = table[table["prompt_id"] == one["prompt_id"]]
        whole = (one["before"] + one["token"] + one["after"]).replace("<|end|>", "")
        assert whole in [text.replace("<unk>", "") for text in rows["completion"]] or "<" in whole  # other special tokens
        assert one["reward"] in rows["reward"].tolist()
    for kind in {one["kind"] for one in tokens}:
        sizes = [abs(one["value"]) for one in tokens if one["kind"] == kind]
        assert sizes == sorted(sizes, reverse=True)


COLLAPSES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a bonus for length": (
        {
            "training.steps": 18,
            "rewards": [{"fn": "exact_answer"}, {"fn": f"{HERE}:long_ones", "weight": 4}],
            "rollout.max_completion_tokens": 24,
            "loss.beta": 0.04,
            "optimizer.lr": 1e-3,
        },
        ["KL to the initial policy", "completion length"],
    ),
    "a learning rate 30 times too high": ({"training.steps": 5, "optimizer.lr": 9e-3}, ["KL to the initial policy"]),
    "no KL term and a sharp task": (
        {
            "training.steps": 20,
            "rewards": [{"fn": f"{HERE}:ones"}, {"fn": "exact_answer", "weight": 0}],
            "evaluation.verifier": "exact_answer",
            "loss.beta": 0,
            "optimizer.lr": 1e-3,
        },
        ["KL to the initial policy", "reward exact_answer"],
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", COLLAPSES)
def test_a_collapse_is_explained_by_the_figure_that_moved_first(tmp_path: Path, name: str) -> None:
    changes, expected = COLLAPSES[name]
    few = {"rollout.num_prompts_per_step": 16, "probe.every_steps": None, "training.checkpoint_every": None}
    config = load_config("sums_tiny_cpu", {**few, "training.completions_every": 100, **changes})
    run = RunDir(tmp_path / "run")
    run.create(config)
    prepare(config, run.data)
    train(run)
    lines = list(explain(Run(run.path)))
    moved = [line.split(": ", 1)[1] for line in lines if line.startswith("  step ")]
    assert lines[1].endswith(f": {expected[0]} moved first")
    assert moved[0].startswith(expected[0])
    assert all(any(one.startswith(figure) for one in moved) for figure in expected), lines
    assert any(line.startswith("worst tokens of step ") for line in lines)
    assert f"completions of step {config.training.steps}, after" in lines
