"""What `grpo clean` lists and removes, in real folders."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from flows.cli.results import clean as command
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.machine.disk import sha256_of
from grpo_core.policy.saved import TrainingState
from grpo_core.run.cleaning import clean, used_checkpoints
from grpo_core.run.flow_folder import MARKER_FILE
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.sweep.folder import SweepDir
from tests.support.locks import held_by_another


def checkpoint(run_dir: RunDir, step: int, *, best: int | None = None, whole: bool = True) -> Path:
    folder = run_dir.checkpoints / f"step_{step:06d}"
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "model.safetensors").write_bytes(b"0" * 2_000_000)
    state = TrainingState(
        step=step, optimizer_step=step, prompts=0, tokens=0, sync_count=0, last_sync_step=0, best_step=best, best_accuracy=None
    )
    (folder / "state.json").write_text(json.dumps(asdict(state)))
    if whole:
        (folder / "manifest.json").write_text("{}")
    return folder


def make(folder: Path, status: str | None = "finished") -> RunDir:
    """A run with checkpoints of steps 10 (the best), 20, 30 and all kinds of leftovers."""
    run_dir = RunDir(folder)
    run_dir.create(RunConfig())
    for step in (10, 20, 30):
        checkpoint(run_dir, step, best=10)
    checkpoint(run_dir, 40, whole=False)
    checkpoint(run_dir, 50).rename(run_dir.checkpoints / "damaged_step_000050")
    checkpoint(run_dir, 60).rename(run_dir.checkpoints / ".step_000060.partial")
    checkpoint(run_dir, 70).rename(run_dir.checkpoints / "step_000020_copy")
    (run_dir.checkpoints / "step_notes.txt").write_text("mine")
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    for step in range(1, 31):
        journal.append("step", step, {"metrics": {}})
        if step in (10, 20, 30):
            num_bytes, sha256 = journal.mark
            mark = run_dir.checkpoints / f"step_{step:06d}" / "journal.json"
            mark.write_text(json.dumps({"bytes": num_bytes, "sha256": sha256}))
            (mark.parent / "manifest.json").write_text(json.dumps({mark.name: sha256_of(mark)}))
    if status is not None:
        journal.append("end", 30, {"status": status, "reason": None})
    journal.close()
    return run_dir


def names(items: object) -> list[tuple[str, str]]:
    return sorted((item.kind, item.path.name) for item in items)  # type: ignore[attr-defined]


LEFT = [("leftovers", ".step_000060.partial"), ("leftovers", "damaged_step_000050"), ("leftovers", "step_000040")]


@pytest.mark.parametrize(
    ("status", "older"), [("finished", True), ("stopped", True), ("failed", False), (None, False)], ids=str
)
def test_older_checkpoints_go_once_a_run_has_ended(tmp_path: Path, status: str | None, older: bool) -> None:
    run_dir = make(tmp_path / "run", status)
    listed = clean(tmp_path)
    assert names(listed.items) == [*([("checkpoints", "step_000020")] if older else []), *LEFT]
    assert all(item.bytes > 2_000_000 and item.path.exists() for item in listed.items)
    assert clean(tmp_path, remove_them=True) == listed
    kept = {"step_000010", "step_000030", "step_000020_copy", "step_notes.txt"} | (set() if older else {"step_000020"})
    assert {path.name for path in run_dir.checkpoints.iterdir()} == kept
    assert clean(tmp_path).items == ()


def test_a_run_whose_journal_is_not_as_it_was_keeps_the_checkpoints_that_its_repair_may_need(tmp_path: Path) -> None:
    file = make(tmp_path / "run").journal_file
    file.write_bytes(b"{}\n" + file.read_bytes())
    assert names(clean(tmp_path).items) == LEFT


def test_nothing_of_a_folder_without_a_marker_is_listed_or_removed(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    (run_dir.path / MARKER_FILE).unlink()
    before = sorted(run_dir.path.rglob("*"))
    assert clean(tmp_path, remove_them=True).items == ()
    found = clean(tmp_path, runs=[run_dir.path], remove_them=True)
    assert found.items == ()
    assert MARKER_FILE in found.skipped[0]
    assert sorted(run_dir.path.rglob("*")) == before


@pytest.mark.parametrize("file", ["lock_file", "journal_file"])
def test_a_run_under_way_is_left_alone(tmp_path: Path, file: str) -> None:
    run_dir = make(tmp_path / "run")
    with held_by_another(getattr(run_dir, file)) as holder:
        found = clean(tmp_path, remove_them=True)
        assert found.items == ()
        assert f"process {holder} works on this run" in found.skipped[0]
    assert len(clean(tmp_path, remove_them=True).items) == 4


def test_runs_of_sweeps_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "runs" / "sweep")
    sweep.mark("sweep")
    run_dir = make(sweep.run_dir(0, 0).path)
    make(tmp_path / "elsewhere" / "run")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "run")
    assert {item.path.parent for item in clean(tmp_path / "runs").items} == {run_dir.checkpoints}


@pytest.mark.parametrize("place", ["two", "sweep/runs/arm-000-seed-0"])
@pytest.mark.parametrize("key", ["source", "init_from", "moved"])
def test_a_checkpoint_that_another_run_begins_with_is_left_alone(tmp_path: Path, place: str, key: str) -> None:
    run_dir, other = make(tmp_path / "one"), RunDir(tmp_path / place)
    policy = run_dir.checkpoints / "step_000020" / "policy"
    lora = {"lora": {"init_from": str(policy) if key == "init_from" else "one/checkpoints/step_000020/policy"}}
    other.create(RunConfig.model_validate({"model": {"source": str(policy)} if key == "source" else lora}))
    if key == "moved":  # a relative path of elsewhere
        other.provenance_file.write_text(json.dumps({"folders": {"model.lora.init_from": str(policy)}}))
    assert used_checkpoints(run_dir)[policy.parent] == other.path
    for chosen in (clean(tmp_path, ["checkpoints"]), clean(run_dir.path, ["checkpoints"])):
        assert chosen.items == ()
        assert f"{policy.parent}: {other.path} begins with it" in chosen.skipped[0]


def test_the_command_lists_and_removes_only_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = make(tmp_path / "runs" / "one")
    command()
    listed = capsys.readouterr().out
    assert "checkpoints     2 MB  runs/one/checkpoints/step_000020" in listed
    assert listed.endswith("4 item(s), 8 MB can go; --yes removes them\n")
    assert (run_dir.checkpoints / "step_000020").exists()
    command(kind=["leftovers"], run=[Path("runs/one")], yes=True)
    assert capsys.readouterr().out.endswith("3 item(s), 6 MB removed\n")
    assert not (run_dir.checkpoints / "damaged_step_000050").exists()
    with pytest.raises(ConfigError, match="everything"):
        command(kind=["everything"])
