"""A prompt that is put to a run's policies gets the answers that its evaluations hold."""

import signal
from pathlib import Path

import pandas
import pytest

from grpo_core import RunDir
from grpo_core.config import load_config
from grpo_core.data.prepare import load_frozen, prepare
from grpo_core.errors import DataError, ModelError
from grpo_core.evaluation.one_prompt import answers
from grpo_core.training.__main__ import EVALUATE, main


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run_dir = RunDir(tmp_path_factory.mktemp("one_prompt") / "run")
    few = {"rollout.num_prompts_per_step": 32, "evaluation.num_prompts": 60, "evaluation.samples": 0}
    config = load_config("sums_tiny_cpu", {"training.steps": 4, "optimizer.lr": 0.003, **few})
    run_dir.create(config)
    prepare(config, run_dir.data)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    assert main([str(run_dir.path), EVALUATE]) == 0
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return run_dir


def test_both_policies_answer_as_they_did_when_they_were_evaluated(run_dir: RunDir) -> None:
    _, held_out = load_frozen(run_dir.data)
    tables = [pandas.read_parquet(run_dir.eval / f"{policy}.parquet") for policy in ("final", "base")]
    greedy = [table[table["sample"] == -1].set_index("prompt_id")["completion"] for table in tables]
    apart = [prompt for prompt in held_out if prompt.id in greedy[0].index and greedy[0][prompt.id] != greedy[1][prompt.id]]
    assert len(apart) > 3
    for prompt in apart[:3]:
        found = list(answers(run_dir, str(prompt.content), samples=2))
        assert [one.policy for one in found] == ["after step 4", "initial policy"]
        assert [one.greedy for one in found] == [table[prompt.id] for table in greedy]
        assert [len(one.sampled) for one in found] == [2, 2]


def test_a_prompt_that_is_too_long_is_refused_with_the_key(run_dir: RunDir) -> None:
    with pytest.raises(DataError, match=r"rollout\.max_prompt_tokens: \d+, and the prompt is longer"):
        list(answers(run_dir, "1 + " * 500, samples=1))


def test_a_run_without_a_checkpoint_has_nobody_to_ask(run_dir: RunDir, tmp_path: Path) -> None:
    begun = RunDir(tmp_path / "begun")
    begun.create(run_dir.read_config())
    with pytest.raises(ModelError, match="has no checkpoint yet"):
        list(answers(begun, "1 + 1 =", samples=1))
