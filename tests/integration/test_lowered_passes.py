"""A run that is resumed with smaller passes: the same figures up to rounding, and a repetition changes at the same step."""

import shutil
from typing import Any

import pytest

from grpo_core.config.derived import weight_shards
from grpo_core.errors import ConfigError
from grpo_core.policy.policy import Policy
from grpo_core.run.folder import RunDir, batch_limits, change_passes, passes_to_change
from grpo_core.run.journal import read_records
from grpo_core.run.summary import run_status
from tests.integration.test_training import of_kind, step_figures, train

OPTIONS = {"training.steps": 6, "training.checkpoint_every": 3, "reference.sync_steps": 2, "training.keep_checkpoints": 9}
LESS = {"microbatch_tokens": 60, "rollout_rows": 4}


@pytest.fixture
def sizes_used(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return (rows that may be sampled together, tokens of a pass), as each rollout finds them."""
    used: list[tuple[int, int]] = []
    sample = Policy.sample

    def noted(policy: Policy, *args: Any) -> Any:
        used.append((policy.limits.rollout_rows, policy.limits.microbatch_tokens))
        return sample(policy, *args)

    monkeypatch.setattr(Policy, "sample", noted)
    return used


def cut_back(run: RunDir, step: int) -> None:
    """Leave what a kill before the checkpoint after `step` leaves."""
    for checkpoint in run.checkpoints.glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)


def close_to(figures: list[dict[str, float]]) -> list[Any]:
    return [{key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in step.items()} for step in figures]


def replayed_alerts(run: RunDir) -> list[str]:
    return [record.data["text"] for record in of_kind(read_records(run.journal_file), "alert")]


def test_replayed_steps_are_the_same_up_to_rounding_and_the_record_holds_the_sizes(tiny_run: Any, sizes_used: Any) -> None:
    run = tiny_run(OPTIONS)
    before = step_figures(train(run))
    cut_back(run, 3)
    asked = {"training.microbatch_tokens": LESS["microbatch_tokens"], "training.rollout_rows": LESS["rollout_rows"]}
    lines = change_passes(run, passes_to_change(asked))
    assert lines == [
        "training.microbatch_tokens: 60 from here on, 16384 until now",
        "training.rollout_rows: 4 from here on, 256 until now",
    ]
    del sizes_used[:]
    records = train(run)
    assert sizes_used == [(4, 60)] * 3
    assert of_kind(records, "resume")[0].data["passes"] == LESS
    note = "passes: resumed after step 3 with training.microbatch_tokens 60 (was 16384), training.rollout_rows 4 (was 256)"
    assert run_status(run).notes == (note,)
    assert replayed_alerts(run) == []  # replayed figures are compared, with a tolerance
    after = step_figures(records)
    assert after == close_to(before)
    assert after[3:] != before[3:], "smaller passes round otherwise: nothing was changed"
    # Resumed once more without a wish: it keeps the smaller sizes, and now repeats bit for bit.
    cut_back(run, 3)
    del sizes_used[:]
    assert step_figures(train(run)) == after
    assert (sizes_used, replayed_alerts(run)) == ([(4, 60)] * 3, [])


@pytest.mark.proof
def test_a_figure_beyond_rounding_is_still_an_alert(tiny_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(OPTIONS)
    train(run)
    cut_back(run, 3)
    change_passes(run, LESS)
    logps = Policy.logps_and_kl
    monkeypatch.setattr(Policy, "logps_and_kl", lambda *given: (logps(*given)[0] * 1.001, None))
    train(run)
    assert any("resume is not bit-exact" in text for text in replayed_alerts(run))


def test_only_smaller_sizes_are_taken_and_no_other_key(tiny_run: Any) -> None:
    run = tiny_run(OPTIONS | {"training.microbatch_tokens": 512})
    with pytest.raises(ConfigError, match=r"training\.microbatch_tokens: 513 is more than the 512 of this run"):
        change_passes(run, {"microbatch_tokens": 513})
    assert change_passes(run, {"microbatch_tokens": 128}) == ["training.microbatch_tokens: 128 from here on, 512 until now"]
    with pytest.raises(ConfigError, match="256 is more than the 128 of this run"):
        change_passes(run, {"microbatch_tokens": 256})
    for key, value in {"loss.beta": 0.1, "training.rollout_rows": 0, "training.microbatch_tokens": "8"}.items():
        with pytest.raises(ConfigError, match=key):
            passes_to_change({key: value})


def test_processes_and_shards_go_up_and_down_to_what_a_configuration_may_have(tiny_run: Any) -> None:
    run = tiny_run(OPTIONS | {"training.processes": 2})
    asked = passes_to_change({"training.processes": 4})
    assert change_passes(run, asked) == ["training.processes: 4 from here on, 2 until now"]
    config = run.read_config()
    assert weight_shards(batch_limits(run).applied(config)) == 4
    lines = change_passes(run, {"shards": 2, "rollout_rows": 8})
    assert lines == ["training.shards: 2 from here on, 4 until now", "training.rollout_rows: 8 from here on, 256 until now"]
    with pytest.raises(ConfigError, match=r"training\.shards: 2 does not divide training\.processes 1"):
        change_passes(run, {"processes": 1})
    with pytest.raises(ConfigError, match=r"training\.processes: input should be less than or equal to 4096"):
        change_passes(run, {"processes": 5000})
    change_passes(run, {"processes": 1, "shards": 1})
    training = batch_limits(run).applied(config).training
    assert (training.processes, training.shards, training.rollout_rows) == (1, 1, 8)
    assert run.read_config() == config
    with pytest.raises(ConfigError, match=r"may lower .*rollout_rows, and set training\.processes and training\.shards"):
        passes_to_change({"training.collective_seconds": 5})
    with pytest.raises(ConfigError, match=r"training\.shards: None is not a whole number"):
        passes_to_change({"training.shards": None})
