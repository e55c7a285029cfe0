"""A folder is ours by a marker that we wrote; nothing is removed or overwritten in any other."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import Origin, RunConfig
from grpo_core.errors import FolderError, GrpoError, JournalError
from grpo_core.machine.marker import MARKER_FILE, Marker
from grpo_core.run.flow_folder import FlowDir, holding, refuse_foreign_root, starting
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Journal
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import Plan, make_plan
from tasks.run.setup import repair_run

THEIRS = {
    "config.json": '{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}',
    "model.safetensors": "weights",
    "quickstart.yaml": "mine: true",
    "lock": "held by apt",
    "data/corpus.txt": "months of work",
    "report/thesis.md": "chapter 1",
    "eval/scores.csv": "1,2",
    "completions/notes.txt": "n",
    "original/first.txt": "o",
    "source/main.py": "pass",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A folder of somebody else's, which must be as it was."""
    folder = tmp_path / "theirs"
    for name, text in THEIRS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = contents(folder)
    yield folder
    assert contents(folder) == before


@pytest.fixture
def plan() -> Plan:
    return make_plan({"base": "quickstart", "axes": {"loss.beta": [0.0, 0.1]}, "seeds": [0]})


def test_a_model_folder_is_refused_and_left_as_it_is(theirs: Path) -> None:
    with pytest.raises(
        FolderError, match=r"neither empty nor a folder of grpo-flow .* it holds completions, config\.json, data"
    ):
        RunDir(theirs).create(RunConfig())


def test_a_sweep_overwrites_nobodys_yaml(theirs: Path, plan: Plan) -> None:
    with pytest.raises(FolderError, match="give a new folder as --sweep-dir"):
        SweepDir(theirs).create(plan, "mine", "mine-1")


def test_a_link_to_a_folder_of_theirs_is_that_folder(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(theirs)
    with pytest.raises(FolderError, match="neither empty nor"):
        RunDir(tmp_path / "run").create(RunConfig())


def test_a_folder_with_checkpoints_and_a_journal_of_another_program_is_not_called_a_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "journal.jsonl").write_text("Dear diary\n")
    with pytest.raises(FolderError, match="neither empty nor a folder of grpo-flow"):
        RunDir(tmp_path).create(RunConfig())


@pytest.mark.parametrize("name", ["data", "report", "eval", "completions", "checkpoints", "original"])
def test_a_link_out_of_the_folder_is_refused(theirs: Path, tmp_path: Path, name: str) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(RunConfig())
    (run_dir.path / name).symlink_to(theirs)
    for act in (run_dir.require_ours, lambda: run_dir.mark("run"), run_dir.forget_start):
        with pytest.raises(FolderError, match=f"{name} is a link to .*theirs"):
            act()


@pytest.mark.parametrize(
    "name", ["config.json", "journal.jsonl", "lock", "train.log", "data/train.jsonl", "checkpoints/step_000010"]
)
def test_a_link_in_the_place_of_a_file_is_refused(theirs: Path, tmp_path: Path, name: str) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.mark("run")
    (run_dir.path / name).parent.mkdir(exist_ok=True)
    (run_dir.path / name).symlink_to(theirs / "config.json")
    with pytest.raises(FolderError, match="is a link to"):
        run_dir.require_ours()


def test_a_run_behind_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    RunDir(tmp_path / "run").create(RunConfig())
    RunDir(tmp_path / "run").require_ours()


def test_places_that_are_never_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file, run = tmp_path / "home", tmp_path / "file", RunDir(tmp_path / "run")
    home.mkdir()
    file.write_text("x")
    run.create(RunConfig())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    places = {
        "/": "the root folder",
        str(home): "the home folder",
        "~/runs": "is not expanded",
        ".": "neither empty nor",
        str(Path(__file__).parents[2]): "neither empty nor",
        str(file): "is a file",
        str(file / "below"): "cannot be written",
        str(run.data / "new"): "lies inside the run",
        "run/../run/again": "lies inside the run",
    }
    for place, reason in places.items():
        with pytest.raises(FolderError, match=reason):
            RunDir(Path(place)).create(RunConfig())
    assert list(home.iterdir()) == []


def test_a_run_is_no_sweep_and_a_sweep_is_no_run(tmp_path: Path, plan: Plan) -> None:
    RunDir(tmp_path / "run").create(RunConfig())
    SweepDir(tmp_path / "sweep").create(plan, "s", "s-1")
    with pytest.raises(FolderError, match="is the folder of a run"):
        SweepDir(tmp_path / "run").create(plan, "s", "s-1")
    with pytest.raises(FolderError, match="is the folder of a sweep"):
        RunDir(tmp_path / "sweep").create(RunConfig())
    RunDir(tmp_path / "sweep" / "runs" / "arm-000-seed-0").create(RunConfig())


@pytest.mark.parametrize("left", [[], [MARKER_FILE], [MARKER_FILE, "lock"]])
def test_a_start_that_was_killed_at_once_leaves_a_folder_that_can_be_taken(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("")
    RunDir(tmp_path / "run").create(RunConfig())
    assert json.loads((tmp_path / "run" / MARKER_FILE).read_text())["kind"] == "run"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": 5}', "\x00"])
def test_a_file_that_is_no_marker_marks_nothing(theirs: Path, text: str) -> None:
    copy = theirs.with_name("copy")
    shutil.copytree(theirs, copy)
    (copy / MARKER_FILE).write_text(text)
    with pytest.raises(FolderError, match="neither empty nor"):
        RunDir(copy).create(RunConfig())
    assert (copy / "data" / "corpus.txt").exists()


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER_FILE).write_text('{"kind": "run", "format": 2, "more": {}}')
    with pytest.raises(FolderError, match="update grpo-flow"):
        RunDir(tmp_path).require_ours()


def test_of_starts_at_the_same_moment_one_gets_the_folder(tmp_path: Path) -> None:
    ready, outcomes = threading.Barrier(6), []
    held = threading.Event()

    def start() -> None:
        ready.wait()
        try:
            with starting(RunDir(tmp_path / "run"), "run"):
                RunDir(tmp_path / "run").create(RunConfig())
                outcomes.append("started")
                held.wait(20)
        except FolderError as error:
            outcomes.append(str(error))
        if len(outcomes) == 6:
            held.set()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes.count("started") == 1
    assert sum("works on this run; wait for it, or end it first" in text for text in outcomes) == 5


def test_a_folder_that_another_start_marks_while_this_one_looks_is_ours(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()

    class Late(RunDir):
        """Sees no marker at its first look, after which another start takes the folder."""

        def marker(self) -> Marker | None:
            found = super().marker()
            if found is None:
                run_dir.create(RunConfig())
            return found

    Late(run_dir.path).mark("run")


def test_a_start_keeps_its_folder_until_the_run_holds_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    with starting(run_dir, "run"):
        run_dir.create(RunConfig())
    with pytest.raises(FolderError, match="works on this run"), starting(run_dir, "run"):
        pass
    with holding(run_dir):
        pass
    with holding(run_dir):  # it is free again
        pass


def older(folder: Path, *, journal: bool = True) -> RunDir:
    """Lay out a run as 905dc01 left it."""
    run_dir = RunDir(folder)
    run_dir.create(RunConfig(), Origin(preset="quickstart"))
    (folder / MARKER_FILE).unlink()
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("{}")
    if journal:
        with_records = Journal(run_dir.journal_file)
        with_records.append("start", 0, {})
        with_records.close()
    return run_dir


def test_a_run_of_an_older_version_is_accepted_and_marked(tmp_path: Path) -> None:
    run_dir = older(tmp_path / "run")
    with pytest.raises(JournalError, match="already holds a run"):
        run_dir.create(RunConfig())
    assert run_dir.marker() is None
    run_dir.require_ours()
    marker = run_dir.marker()
    assert marker is not None
    assert (marker.kind, marker.adopted) == ("run", 1)


def test_a_start_of_an_older_version_is_resumed_but_never_removed(tmp_path: Path) -> None:
    run_dir = older(tmp_path / "run", journal=False)
    with pytest.raises(FolderError, match="neither empty nor"):
        run_dir.create(RunConfig())
    run_dir.require_ours()
    with pytest.raises(FolderError, match="holds the start of a run by an older version"):
        run_dir.create(RunConfig())
    assert (run_dir.data / "train.jsonl").exists()


@pytest.mark.parametrize("damage", ["config.json", "origin.json", "journal.jsonl"])
def test_what_only_looks_like_an_older_run_is_refused(tmp_path: Path, damage: str) -> None:
    run_dir = older(tmp_path / "run")
    (run_dir.path / damage).write_text('{"a": 1}\n')
    with pytest.raises(FolderError, match=r"is not one of an older version \("):
        run_dir.require_ours()
    assert run_dir.marker() is None


def test_the_damaged_journal_of_an_older_run_can_be_repaired(tmp_path: Path) -> None:
    run_dir = older(tmp_path / "run")
    record = '{"seq":%d,"time":"2026-11-22T10:00:00+00:00","kind":"%s","step":%d,"data":{}}\n'
    lines = [record % (seq, "step" if seq else "start", seq) for seq in range(4)]
    run_dir.journal_file.write_text("".join(lines).replace('"step":2', '"step:2'))
    repair_run(run_dir.path)
    assert run_dir.marker() is not None
    assert [(found.kind, found.step) for found in check_run(run_dir).records] == [("start", 0), ("step", 1), ("alert", 1)]


def test_a_run_that_began_while_another_start_waited_for_its_lock_keeps_its_files(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.refuse_second_run()  # the start that waits has looked
    run_dir.create(RunConfig())
    run_dir.data.mkdir()
    Journal(run_dir.journal_file).close()
    with pytest.raises(JournalError, match="already holds a run"):
        run_dir.forget_start()
    assert run_dir.data.exists()


def test_an_older_sweep_is_accepted_and_marked(tmp_path: Path, plan: Plan) -> None:
    sweep_dir = SweepDir(tmp_path / "sweep")
    sweep_dir.create(plan, "s", "s-1")
    (sweep_dir.path / MARKER_FILE).unlink()
    sweep_dir.require_ours()
    assert sweep_dir.read().id == "s-1"
    marker = sweep_dir.marker()
    assert marker is not None
    assert marker.kind == "sweep"


def test_an_attempt_of_another_kind_that_never_began_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.mark("reproduction")
    run_dir.create(RunConfig())
    marker = run_dir.marker()
    assert marker is not None
    assert marker.kind == "run"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("runs/one", True),
        ("runs/sweep/runs/arm-000-seed-0", True),
        ("runs", False),
        ("runs/../models", False),
        ("runs/link/one", False),
        ("/etc", False),
        ("elsewhere/one", False),
        ("scratch/one", True),
    ],
)
def test_deployed_flows_write_below_the_allowed_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, allowed: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    roots = [Path("runs"), tmp_path / "scratch"]
    if allowed:
        refuse_foreign_root(Path(path), roots)
    else:
        with pytest.raises(GrpoError, match=r"run_dir .*: is not below .*runs or .*scratch.* GRPO_RUN_ROOTS"):
            refuse_foreign_root(Path(path), roots)


def test_reading_marks_nothing(tmp_path: Path, tiny_config: Callable[..., Any]) -> None:
    from grpo_core.run.summary import run_status

    run_dir = older(tmp_path / "run")
    before = contents(run_dir.path)
    assert run_status(run_dir).state == "died"
    assert FlowDir(run_dir.path).marker() is None
    assert contents(run_dir.path) == before
