"""Too little memory in a phase ends a run with its name and a setting, and loses nothing: it goes on where there is more."""

import re
import shutil
from typing import Any

import pytest
import torch

from grpo_core.config import parse_overrides
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir, change_passes, passes_to_change
from grpo_core.run.journal import read_journal
from grpo_core.training.__main__ import main
from tests.integration.test_training import assert_same_weights, step_figures, train

OPTIONS = {"training.steps": 6, "training.checkpoint_every": 1, "reference.sync_steps": 3, "training.microbatch_tokens": 160}
PHASES: dict[str, tuple[Any, str, str]] = {
    "rollout": (Policy, "sample", "training.rollout_rows"),
    "logps": (Policy, "logps_and_kl", "training.microbatch_tokens"),
    "update": (torch.optim.AdamW, "step", "training.microbatch_tokens"),
    "sync": (Reference, "sync", "training.microbatch_tokens"),
}


def full_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Let a call of a method fail as CUDA's allocator does."""
    real, calls = getattr(owner, name), []

    def method(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.5 GiB"
            )
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, method)


@pytest.mark.parametrize(
    "phase", ["update", *(pytest.param(phase, marks=pytest.mark.proof) for phase in PHASES if phase != "update")]
)
def test_a_run_that_was_out_of_memory_goes_on_as_if_it_had_not_been(
    tiny_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    owner, name, key = PHASES[phase]
    whole = tiny_run(OPTIONS, name="whole")
    expected = step_figures(train(whole))
    run = tiny_run(OPTIONS, name="full")
    with monkeypatch.context() as patched:
        full_at(patched, owner, name, 1 if phase == "sync" else 3)
        assert main([str(run.path)]) == 1
    end = read_journal(run.journal_file)[-1]
    assert (end.kind, end.data["status"]) == ("end", "failed")
    reason = end.data["reason"]
    assert f"out of memory in the phase {phase} (CUDA out of memory. Tried to allocate 2.00 GiB" in reason
    newest = list_checkpoints(run.checkpoints)[-1].name
    assert f"the newest whole checkpoint is {newest}, which stays; {key} was " in reason
    assert capsys.readouterr().err.strip().endswith(reason)
    shutil.copytree(run.path, lowered := RunDir(run.path.with_name("lowered")).path)
    assert step_figures(train(run)) == expected
    assert_same_weights(run, whole)
    # As the message says, with less at once: the same figures up to rounding.
    command = re.search(r"resume with less: `grpo train --resume (\S+) (\S+)`$", reason)
    assert command is not None
    assert command[1] == str(run.path)
    change_passes(RunDir(lowered), passes_to_change(parse_overrides([command[2]])))
    figures = step_figures(train(RunDir(lowered)))
    assert figures == [{key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in step.items()} for step in expected]
