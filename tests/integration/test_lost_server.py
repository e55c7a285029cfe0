"""A run whose server is lost for good: nothing that was trained is lost, and the message says how to continue."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from grpo_core.errors import GrpoError, ServerGoneError, TrainingError
from grpo_core.generation.sampler import RandomKey
from grpo_core.run.journal import read_journal
from grpo_core.training import session as session_module
from grpo_core.training.__main__ import main
from tests.integration.test_training import of_kind, step_figures

LOST = ServerGoneError("http://127.0.0.1:1: no answer")


@pytest.fixture
def sampler_that_fails(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts, in the place of vLLM's, a sampler which draws as the embedded one until it fails."""

    def put(error: GrpoError | None, at_call: int = 0, *, other_tokens: bool = False) -> None:
        class Sampler:
            def __init__(self, policy: Any) -> None:
                self.policy, self.calls = policy, 0

            def sample(self, prompts: Any, settings: Any, key: RandomKey) -> Any:
                self.calls += 1
                if error is not None and self.calls == at_call:
                    raise error
                return self.policy.sample(prompts, settings, replace(key, seed=key.seed + other_tokens))

        monkeypatch.setattr(session_module, "open_vllm_sampler", lambda _config, policy, *_rest: Sampler(policy))

    return put


def options(**others: Any) -> dict[str, Any]:
    return {"rollout.engine": "vllm", "model.dtype": "float32", "training.steps": 4, "training.checkpoint_every": 4, **others}


def test_the_last_step_is_saved_and_the_resumed_run_is_the_one_that_never_stopped(
    tiny_run: Any, capsys: Any, sampler_that_fails: Any
) -> None:
    sampler_that_fails(None)
    whole = tiny_run(options(), name="whole")
    assert main([str(whole.path)]) == 0

    lost = tiny_run(options(), name="lost")
    sampler_that_fails(LOST, at_call=3)
    assert main([str(lost.path)]) == 1
    *_, saved, end = read_journal(lost.journal_file)
    assert (saved.kind, saved.step, end.step, end.data["status"]) == ("checkpoint", 2, 2, "failed")
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == end.data["reason"]
    assert message.startswith(f"{LOST}; the newest whole checkpoint is step_000002; ")
    assert message.endswith(f"`grpo train --resume {lost.path}`")

    sampler_that_fails(None)
    assert main([str(lost.path)]) == 0
    records = read_journal(lost.journal_file)
    assert step_figures(records) == step_figures(read_journal(whole.journal_file))
    assert of_kind(records, "alert") == []
    assert of_kind(records, "resume")[0].data["repeats"].startswith("the same tokens")


def test_a_policy_that_is_broken_is_not_saved(tiny_run: Any, sampler_that_fails: Any) -> None:
    run = tiny_run(options(), name="broken")
    sampler_that_fails(TrainingError("the policy's weights are not finite"), at_call=2)
    assert main([str(run.path)]) == TrainingError.exit_code
    assert of_kind(read_journal(run.journal_file), "checkpoint") == []


@pytest.mark.parametrize(("dtype", "is_alert"), [("float32", True), ("bfloat16", False)])
def test_a_replayed_step_with_other_tokens_is_an_alert_where_the_same_were_promised(
    tiny_run: Any, sampler_that_fails: Any, dtype: str, is_alert: bool
) -> None:
    run = tiny_run(options(**{"model.dtype": dtype, "training.checkpoint_every": 1}), name="again")
    sampler_that_fails(None)
    assert main([str(run.path)]) == 0
    shutil.rmtree(run.checkpoints / "step_000004")
    sampler_that_fails(None, other_tokens=True)
    assert main([str(run.path)]) == 0
    assert bool(of_kind(read_journal(run.journal_file), "alert")) is is_alert
