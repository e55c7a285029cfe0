"""Every verb that writes, in a folder that is not ours: refused, and not a byte of it is changed."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import GrpoError
from grpo_core.run.folder import RunDir
from tasks.process.context import FLOW_RUN_VARIABLE
from tasks.run.setup import hold_run, open_evaluation, open_reproduction, open_run, reopen_run
from tasks.sweep.stages import hold_sweep, open_sweep, report_again
from tasks.tracking.training import track_later

Verb = Callable[[Path, RunDir], object]

MODEL = {"model.safetensors": "w", "tokenizer.json": "{}"}
THEIRS = {
    "config.json": '{"architectures": ["LlamaForCausalLM"]}',
    "sweep.json": '{"parameters": {}}',
    "quickstart.yaml": "mine: true",
    "lock": "apt",
    "flow_run": "",
    "STOP": "no",
    "data/corpus.txt": "months of work",
    "report/thesis.md": "chapter 1",
    "eval/scores.csv": "1,2",
    "completions/notes.txt": "n",
    "original/first.txt": "o",
    "source/config.json": "{}",
    **MODEL,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "theirs"
    for name, text in THEIRS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = contents(folder)
    yield folder
    assert contents(folder) == before


STARTS: dict[str, Verb] = {
    "train": lambda path, _: open_run.fn("quickstart", {}, path),
    "evaluate": lambda path, run: open_evaluation.fn(str(run.read_config().model.source), "quickstart", {}, path),
    "reproduce": lambda path, run: open_reproduction.fn(str(run.path), {}, path),
    "sweep": lambda path, _: open_sweep.fn("beta_group_sync_tiny", {}, path),
}
RESUMES: dict[str, Verb] = {
    "resume": lambda path, _: reopen_run.fn(path),
    "resume a sweep": lambda path, _: hold_sweep(path).__enter__(),
}
OTHERS: dict[str, Verb] = {
    "hold": lambda path, _: hold_run(path).__enter__(),
    "report": lambda path, _: report_again(path),
    "track": lambda path, _: track_later(path),
}


@pytest.mark.parametrize("name", [*STARTS, *RESUMES, *OTHERS])
def test_a_folder_of_another_program_is_refused_and_left_as_it_is(name: str, theirs: Path, tiny_run: Any) -> None:
    with pytest.raises(GrpoError):
        (STARTS | RESUMES | OTHERS)[name](theirs, tiny_run())


@pytest.mark.parametrize("module", ["grpo_core.training", "grpo_core.evaluation"])
def test_the_bare_processes_write_nothing_there_either(module: str, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from grpo_core.evaluation.__main__ import main as evaluation
    from grpo_core.training.__main__ import main as training

    code = training([str(theirs)]) if module == "grpo_core.training" else evaluation([str(theirs), "--policy", "base"])
    assert code == 2
    assert "is no folder of grpo-flow" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*STARTS, *RESUMES])
def test_a_deployed_flow_stays_below_its_workers_roots(
    name: str, tmp_path: Path, tiny_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "out").symlink_to(tmp_path)
    monkeypatch.setenv(FLOW_RUN_VARIABLE, "00000000-0000-0000-0000-000000000000")
    run = tiny_run()
    for place in (tmp_path / "other", Path("runs/../other"), Path("runs/out/other"), Path("runs")):
        with pytest.raises(GrpoError, match=f"_dir {place}: is not below {tmp_path}/runs, where .* GRPO_RUN_ROOTS"):
            (STARTS | RESUMES)[name](place, run)
    with pytest.raises(GrpoError, match=f"run {run.path}: is not below"):
        open_run.fn("", {}, None, f"{run.path}@4")
    assert not (tmp_path / "other").exists()
    assert list((tmp_path / "runs").iterdir()) == [tmp_path / "runs" / "out"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_may_hold_a_secret_is_its_owners_alone(tmp_path: Path, tiny_run: Any) -> None:
    from grpo_core.run.provenance import note_inputs
    from tasks.process.child import run_child
    from tasks.tracking import open_tracking

    before = os.umask(0o022)
    try:
        run_dir = tiny_run({"tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
        open_tracking.fn(run_dir.path)
        note_inputs(run_dir, "d", Path(run_dir.read_config().model.source), print)
        run_child("platform", [], run_dir.log_file("train"))
    finally:
        os.umask(before)
    private = (run_dir.tracking_file, run_dir.provenance_file, run_dir.log_file("train"))
    assert [path.name for path in private if mode(path) != 0o600] == []
    assert mode(run_dir.config_file) == 0o644
