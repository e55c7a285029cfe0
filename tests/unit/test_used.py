"""Who begins with a checkpoint: it stays while pruning; what cannot be seen is a warning, what is gone is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ModelError
from grpo_core.run.cleaning import find_items
from grpo_core.run.folder import RunDir
from grpo_core.run.start_weights import find_model
from grpo_core.run.used import places_of, prunable_starts, used_checkpoints


@pytest.fixture
def start(tmp_path: Path, tiny_config: Any) -> Path:
    """The policy in a checkpoint of a run."""
    run_dir = RunDir(tmp_path / "runs" / "first")
    run_dir.create(tiny_config())
    run_dir.provenance_file.write_text("{}")
    policy = run_dir.checkpoints / "step_000003" / "policy"
    policy.mkdir(parents=True)
    (policy.parent / "state.json").write_text("{}")
    return policy


def begin(path: Path, config: Any) -> RunDir:
    run_dir = RunDir(path)
    run_dir.create(config)
    return run_dir


@pytest.mark.parametrize("place", ["second", "sweep/runs/arm-000-seed-0"])
@pytest.mark.parametrize("key", ["model.source", "model.lora"])
def test_runs_and_arms_of_sweeps_beside_it_are_seen(
    place: str, key: str, start: Path, tmp_path: Path, tiny_config: Any
) -> None:
    value = str(start) if key == "model.source" else {"rank": 4, "init_from": str(start)}
    other = begin(tmp_path / "runs" / place, tiny_config({key: value}))
    used = used_checkpoints(set(places_of(tmp_path / "runs" / "first")))
    assert used[start.parent] == ("model" if key == "model.source" else "first adapter", other.path)
    begin(tmp_path / "runs" / "third", tiny_config({key: value}))
    assert prunable_starts(other, {"model.source": str(start)}) == []


def test_a_start_that_its_run_may_prune_without_seeing_the_other_is_a_warning(
    start: Path, tmp_path: Path, tiny_config: Any
) -> None:
    far = begin(tmp_path / "elsewhere" / "run", tiny_config({"model.source": str(start)}))
    (warning,) = prunable_starts(far, {"model.source": str(start)})
    assert f"model.source {start} is a checkpoint of {tmp_path / 'runs' / 'first'}" in warning
    assert "may prune it" in warning
    assert prunable_starts(far, {"model.source": str(tmp_path)}) == []


@pytest.mark.parametrize("kind", ["run", "reproduction"])
def test_without_a_copy_of_its_own_the_folder_that_is_gone_is_named(
    kind: Any, start: Path, tmp_path: Path, tiny_config: Any
) -> None:
    run_dir = RunDir(tmp_path / "runs" / "second")
    run_dir.create(tiny_config({"model.source": str(start)}), kind=kind)
    facts = {"data_digest": "d", "model_digest": "m", "folders": {"model.source": str(start)}}
    noted = run_dir if kind == "run" else RunDir(run_dir.original)
    noted.path.mkdir(exist_ok=True)
    noted.provenance_file.write_text(json.dumps(facts))
    shutil.rmtree(start)
    with pytest.raises(ModelError, match=rf"When this run began it was {start}, which is gone: put it back"):
        find_model(run_dir)


def test_what_a_killed_process_was_writing_is_listed_wherever_it_lies(tmp_path: Path, tiny_config: Any) -> None:
    run_dir = begin(tmp_path / "run", tiny_config())
    run_dir.journal_file.write_bytes(b"")
    places = [run_dir.path, run_dir.eval, run_dir.completions, run_dir.data, run_dir.report, run_dir.original / "data"]
    left = [place / ".final.json.4711.partial" for place in places]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half")
    (run_dir.eval / "final.json").write_text("{}")
    found = find_items(tmp_path)
    assert {(item.kind, item.path) for item in found.items} == {("leftovers", file) for file in left}
