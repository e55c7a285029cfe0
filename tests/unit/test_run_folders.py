"""A folder is ours by a marker that we wrote; nothing is removed or overwritten in any other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import FolderError
from grpo_core.run.flow_folder import MARKER_FILE
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import Plan, make_plan

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


def test_places_that_are_never_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file = tmp_path / "home", tmp_path / "file"
    home.mkdir()
    file.write_text("x")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    places = {
        "/": "the root or home folder",
        str(home): "the root or home folder",
        "~/runs": "is not expanded",
        ".": "neither empty nor",
        str(Path(__file__).parents[2]): "neither empty nor",
        str(file): "is a file",
        str(file / "below"): "cannot be written",
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


@pytest.mark.parametrize("number", [1, 3])
def test_a_folder_of_another_version_is_refused(tmp_path: Path, number: int) -> None:
    (tmp_path / MARKER_FILE).write_text(f'{{"kind": "run", "format": {number}, "more": {{}}}}')
    with pytest.raises(FolderError, match="another version of grpo-flow"):
        RunDir(tmp_path).require_ours()


def test_two_flows_never_work_in_one_folder(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(RunConfig())
    with run_dir.locked(), pytest.raises(FolderError, match=f"process {os.getpid()} works on this run"):
        run_dir.locked()
    run_dir.locked().close()  # it is free again
