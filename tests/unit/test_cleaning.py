"""What `grpo clean` lists and removes, in real folders."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from grpo_core.config import Origin, RunConfig
from grpo_core.machine.marker import MARKER_FILE
from grpo_core.policy.saved import TrainingState
from grpo_core.run.cleaning import find_items, remove_items
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.run.repair import cut, find_damage


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
    found = find_items(tmp_path)
    assert names(found.items) == [*([("checkpoints", "step_000020")] if older else []), *LEFT]
    assert all(item.bytes > 2_000_000 for item in found.items)
    assert remove_items(found.items) == []
    kept = {"step_000010", "step_000030", "step_000020_copy", "step_notes.txt"} | (set() if older else {"step_000020"})
    assert {path.name for path in run_dir.checkpoints.iterdir()} == kept
    assert find_items(tmp_path).items == ()


def test_a_run_with_a_damaged_journal_keeps_the_checkpoints_that_its_repair_may_need(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    run_dir.journal_file.write_bytes(b"{}\n" + run_dir.journal_file.read_bytes())
    assert names(find_items(tmp_path).items) == LEFT


def test_nothing_of_a_folder_without_a_marker_is_listed_or_removed(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    items = find_items(tmp_path).items
    (run_dir.path / MARKER_FILE).unlink()
    found = find_items(tmp_path)
    assert found.items == ()
    assert remove_items(items) == [f"{run_dir.path}: it has no {MARKER_FILE}"]
    assert all(item.path.exists() for item in items)
    assert find_items(tmp_path, runs=[run_dir.path]).items == ()


@pytest.mark.parametrize("file", ["lock_file", "journal_file"])
def test_a_run_under_way_is_left_alone_also_when_it_began_after_the_list(tmp_path: Path, file: str) -> None:
    run_dir = make(tmp_path / "run")
    items = find_items(tmp_path).items
    take = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, 2); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", take, str(getattr(run_dir, file))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert find_items(tmp_path).items == ()
        (left,) = remove_items(items)
        assert left == f"{run_dir.path}: process {holder.pid} works on it"
        assert all(item.path.exists() for item in items)
        holder.communicate()
    assert remove_items(items) == []


def test_a_run_that_went_on_after_the_list_keeps_its_checkpoints(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    items = find_items(tmp_path, kinds=["checkpoints"]).items
    journal = Journal(run_dir.journal_file)
    journal.append("resume", 30, {})
    journal.close()
    assert remove_items(items) == [f"{items[0].path}: it has changed"]
    assert items[0].path.exists()


def test_runs_of_sweeps_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    sweep = RunDir(tmp_path / "runs" / "sweep")
    sweep.mark("run")
    (sweep.path / MARKER_FILE).write_text('{"kind": "sweep", "format": 1}')
    (sweep.path / "sweep.json").write_text("{}")
    make(sweep.path / "runs" / "arm-000-seed-0")
    make(tmp_path / "elsewhere" / "run")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "run")
    found = find_items(tmp_path / "runs")
    assert {item.folder for item in found.items} == {sweep.path / "runs" / "arm-000-seed-0"}


@pytest.mark.parametrize("chosen", ["all", "option", "argument"])
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_checkpoint_that_another_run_starts_from_is_left_alone(tmp_path: Path, chosen: str, is_marked: bool) -> None:
    run_dir = make(tmp_path / "one")
    other = RunDir(tmp_path / "two")
    source = run_dir.checkpoints / "step_000020" / "policy"
    other.create(RunConfig.model_validate({"model": {"source": str(source)}}))
    if not is_marked:  # a run of an older version
        (other.path / MARKER_FILE).unlink()
    folder = run_dir.path if chosen == "argument" else tmp_path
    found = find_items(folder, ["checkpoints"], [run_dir.path] if chosen == "option" else [])
    assert found.items == ()
    assert f"{source.parent}: it is the model of {other.path}, which cannot be reproduced without it" in found.skipped


def test_a_checkpoint_whose_adapter_another_run_begins_with_is_left_alone(tmp_path: Path) -> None:
    run_dir, other, elsewhere = make(tmp_path / "one"), RunDir(tmp_path / "two"), RunDir(tmp_path / "three")
    source = run_dir.checkpoints / "step_000020" / "policy"
    other.create(RunConfig.model_validate({"model": {"lora": {"init_from": str(source)}}}))
    kept = "it is the first adapter of {}, which cannot be reproduced without it"
    assert f"{source.parent}: {kept.format(other.path)}" in find_items(tmp_path, ["checkpoints"]).skipped
    elsewhere.create(RunConfig.model_validate({"model": {"lora": {"init_from": "one/checkpoints/step_000020/policy"}}}))
    facts = {"data_digest": "d", "model_digest": "m", "folders": {"model.lora.init_from": str(source)}}
    elsewhere.provenance_file.write_text(json.dumps(facts))
    shutil.rmtree(other.path)
    found = find_items(tmp_path, ["checkpoints"])
    assert found.items == ()
    assert f"{source.parent}: {kept.format(elsewhere.path)}" in found.skipped


def test_an_evaluation_does_not_keep_the_checkpoint_that_it_was_of(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "one")
    source = run_dir.checkpoints / "step_000020" / "policy"
    config = RunConfig.model_validate({"model": {"source": str(source)}})
    RunDir(tmp_path / "two").create(config, Origin(preset="evaluation"), "evaluation")
    assert names(find_items(tmp_path, ["checkpoints"]).items) == [("checkpoints", "step_000020")]


def test_checkpoints_that_a_cut_has_set_aside_can_go(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    run_dir.journal_file.write_bytes(b"".join(run_dir.journal_file.read_bytes().splitlines(keepends=True)[:15]))
    assert names(find_items(tmp_path).items) == LEFT
    damage = find_damage(run_dir)
    assert damage is not None
    cut(run_dir, damage)
    aside = [("leftovers", "aside_step_000020"), ("leftovers", "aside_step_000030")]
    found = find_items(tmp_path)
    assert names(found.items) == sorted([*aside, *LEFT])
    assert remove_items(found.items) == []
    assert (run_dir.checkpoints / "step_000010").exists()


def test_the_finished_journal_of_another_run_frees_no_checkpoint(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    journal = Journal(tmp_path / "other.jsonl")
    for kind, step in (("start", 0), ("step", 1), ("end", 1)):
        journal.append(kind, step, {"status": "finished"} if kind == "end" else {"metrics": {}})  # type: ignore[arg-type]
    journal.close()
    (tmp_path / "other.jsonl").replace(run_dir.journal_file)
    assert names(find_items(tmp_path).items) == LEFT


@pytest.fixture
def grpo(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.cli", "clean", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_the_command_lists_and_removes_only_when_told_to(
    tmp_path: Path, grpo: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run_dir = make(tmp_path / "runs" / "one")
    listed = grpo()
    assert listed.returncode == 0, listed.stderr
    assert "checkpoints     2 MB  runs/one/checkpoints/step_000020" in listed.stdout
    assert listed.stdout.endswith("4 item(s), 8 MB can go; --yes removes them\n")
    assert (run_dir.checkpoints / "step_000020").exists()
    removed = grpo("--kind", "leftovers", "--run", "runs/one", "--yes")
    assert removed.stdout.endswith("3 item(s), 6 MB removed\n"), removed.stderr
    assert not (run_dir.checkpoints / "damaged_step_000050").exists()
    assert (run_dir.checkpoints / "step_000020").exists()
    assert grpo("--kind", "everything").returncode == 2


def test_a_misspelt_folder_is_an_error_and_no_runs_yet_is_none(
    tmp_path: Path, grpo: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    misspelt = grpo("runs/on")
    assert misspelt.returncode == 2
    assert "runs/on: is no folder; give the folder of runs" in misspelt.stderr
    assert "nothing can go" in grpo().stdout
