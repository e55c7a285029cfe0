"""A journal that was cut, edited or replaced before a resume is refused; repaired, the run becomes what it would have been."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError, JournalError, ModelError
from grpo_core.evaluation.plan import find_subject
from grpo_core.policy.saved import list_checkpoints, read_mark
from grpo_core.run.comparison import compare_journals
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run, cut, find_intact
from grpo_core.run.journal import Journal, read_journal, read_records
from grpo_core.run.summary import run_status
from grpo_core.training.__main__ import main

STEPS = 8
OPTIONS = {
    "training.steps": STEPS,
    "training.checkpoint_every": 2,
    "training.keep_checkpoints": 9,
    "evaluation.every_steps": 4,
    "evaluation.every_num_prompts": 4,
}


@pytest.fixture(scope="module")
def finished(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of eight steps with checkpoints after 2, 4, 6 and 8, and a sync every two steps."""
    from grpo_core.config import apply_overrides, validate_config
    from grpo_core.data.prepare import prepare

    made = RunDir(tmp_path_factory.mktemp("finished") / "run")
    config = validate_config(apply_overrides(tiny_values, OPTIONS))
    made.create(config)
    prepare(config, made.data)
    assert main([str(made.path)]) == 0
    return made


@pytest.fixture
def run_dir(finished: RunDir, tmp_path: Path) -> RunDir:
    """A copy of it to damage."""
    return RunDir(Path(shutil.copytree(finished.path, tmp_path / "run")))


def lines_of(run_dir: RunDir) -> list[bytes]:
    return run_dir.journal_file.read_bytes().splitlines(keepends=True)


def cut_after(run_dir: RunDir, step: int) -> None:
    """Leave the records up to a step."""
    kept = [line for line in lines_of(run_dir) if json.loads(line)["step"] <= step]
    run_dir.journal_file.write_bytes(b"".join(kept))


def change_a_digit(run_dir: RunDir, step: int) -> int:
    """Change the reward of a step; return the number of its line."""
    lines = lines_of(run_dir)
    number = next(i for i, line in enumerate(lines) if b'"kind":"step","step":%d,' % step in line)
    at = lines[number].index(b'"reward/mean":') + len(b'"reward/mean":')
    lines[number] = lines[number][:at] + (b"1" if lines[number][at : at + 1] != b"1" else b"2") + lines[number][at + 1 :]
    run_dir.journal_file.write_bytes(b"".join(lines))
    return number + 1


def same_history(one: RunDir, other: RunDir) -> None:
    compared = compare_journals(read_journal(one.journal_file), read_journal(other.journal_file))
    assert compared.is_identical, (compared.differences[:3], compared.missing[:3])
    assert compared.steps == STEPS


# Refused


DAMAGES = {
    "cut to half": (lambda run: cut_after(run, 3), "step_000004 was saved after it"),
    "gone": (lambda run: run.journal_file.unlink(), "step_000002 was saved after it"),
    "one digit": (lambda run: change_a_digit(run, 5), "not as they were when step_000006 was saved"),
    "written again": (
        lambda run: run.journal_file.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in lines_of(run))),
        "not as they were when step_000002 was saved",
    ),
    "a line less": (
        lambda run: run.journal_file.write_bytes(b"".join(lines_of(run)[:4] + lines_of(run)[5:])),
        "a line is missing, doubled or out of order",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_refused_everywhere_and_not_touched(
    run_dir: RunDir, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tasks.run.setup import open_reproduction, reopen_run
    from tasks.tracking.training import track_later

    make, words = DAMAGES[damage]
    make(run_dir)  # type: ignore[no-untyped-call]
    before = run_dir.journal_file.read_bytes() if run_dir.journal_file.exists() else b""
    readers: list[Callable[[], Any]] = [
        lambda: run_status(run_dir),
        lambda: reopen_run.fn(run_dir.path),
        lambda: open_reproduction.fn(str(run_dir.path), {}, run_dir.path.with_name("again")),
    ]
    if damage != "gone":  # nothing to track; a policy without its journal can be evaluated
        readers += [lambda: track_later(run_dir.path), lambda: find_subject(str(run_dir.path))]
    for read in readers:
        with pytest.raises(JournalError) as refused:
            read()
        assert words in str(refused.value)
        assert f"{run_dir.journal_file}" in str(refused.value)
        assert f"grpo train --resume {run_dir.path} --repair cut" in str(refused.value)
    capsys.readouterr()
    assert main([str(run_dir.path)]) == 2
    assert words in capsys.readouterr().err
    assert (run_dir.journal_file.read_bytes() if run_dir.journal_file.exists() else b"") == before


def test_a_checkpoint_whose_mark_was_damaged_says_nothing_of_the_journal(run_dir: RunDir) -> None:
    *_, before, newest = list_checkpoints(run_dir.checkpoints)
    mark = newest / "journal.json"
    mark.write_text(mark.read_text().translate(str.maketrans("0123456789", "1234567890")))
    assert check_run(run_dir).reached[-1] == before
    with pytest.raises(ModelError, match=r"journal\.json"):
        read_mark(newest)


def test_the_message_names_the_line_and_the_checkpoint_to_which_a_cut_goes_back(run_dir: RunDir) -> None:
    number = change_a_digit(run_dir, 8)
    with pytest.raises(JournalError, match=r"drops line (\d+) and what follows, and resumes from step_000006") as refused:
        run_status(run_dir)
    dropped = int(str(refused.value).partition("drops line ")[2].split()[0])
    assert json.loads(lines_of(run_dir)[dropped - 1])["step"] in (6, 7)
    assert dropped <= number


def test_a_cut_drops_evaluations_whose_record_is_lost(run_dir: RunDir) -> None:
    run_dir.eval.mkdir(exist_ok=True)
    facts = {"policy": "final", "set": "heldout", "step": STEPS, "num_prompts": 1, "estimates": {}}
    (run_dir.eval / "final.json").write_text(json.dumps(facts))
    cut_after(run_dir, 3)
    damage = find_intact(run_dir)
    cut(run_dir, damage)
    assert not (run_dir.eval / "final.json").exists()


def test_a_configuration_that_was_edited_is_refused_by_its_keys(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(run_dir.config_file.read_text())
    config["training"]["steps"], config["loss"]["beta"] = STEPS + 1, 0.125
    run_dir.config_file.write_text(json.dumps(config))
    with pytest.raises(ConfigError) as refused:
        run_status(run_dir)
    assert f"training.steps is {STEPS + 1}, was {STEPS}" in str(refused.value)
    assert "loss.beta is 0.125, was 0.04" in str(refused.value)
    before = run_dir.journal_file.read_bytes()
    assert main([str(run_dir.path)]) == 2
    assert "training.steps is" in capsys.readouterr().err
    assert run_dir.journal_file.read_bytes() == before
    config["training"]["steps"], config["loss"]["beta"] = STEPS, 0.04
    config["tracking"]["uri"] = "http://127.0.0.1:5005"  # where the run is tracked may move
    run_dir.config_file.write_text(json.dumps(config))
    assert run_status(run_dir).state == "finished"


# Legal states


@pytest.mark.parametrize("after", ["step", "checkpoint"])
def test_a_run_that_was_killed_between_checkpoint_and_record_resumes(run_dir: RunDir, finished: RunDir, after: str) -> None:
    """The checkpoint is renamed before its record is written."""
    lines = lines_of(run_dir)
    last = max(i for i, line in enumerate(lines) if b'"kind":"checkpoint","step":6,' in line)
    run_dir.journal_file.write_bytes(b"".join(lines[: last + (after == "checkpoint")]) + b'{"seq":')
    shutil.rmtree(run_dir.checkpoints / "step_000008")
    assert run_status(run_dir).step == 6
    assert main([str(run_dir.path)]) == 0
    same_history(finished, run_dir)


# Repaired by a cut


@pytest.mark.parametrize(
    ("damage", "left", "aside"),
    [
        ("cut to half", 2, ["step_000004", "step_000006", "step_000008"]),
        ("one digit", 4, ["step_000006", "step_000008"]),
        ("a line less", 2, ["step_000004", "step_000006", "step_000008"]),
        ("written again", 0, ["step_000002", "step_000004", "step_000006", "step_000008"]),
        ("gone", 0, ["step_000002", "step_000004", "step_000006", "step_000008"]),
    ],
)
def test_a_cut_goes_back_to_the_last_checkpoint_that_the_whole_part_reaches(
    run_dir: RunDir, finished: RunDir, damage: str, left: int, aside: list[str]
) -> None:
    DAMAGES[damage][0](run_dir)  # type: ignore[no-untyped-call]
    before = run_dir.journal_file.read_bytes() if run_dir.journal_file.exists() else b""
    found = find_intact(run_dir)
    text = cut(run_dir, found)
    assert f"goes back to step_{left:06d}" in text if left else "begins again at step 0" in text
    assert [path.name for path in sorted(run_dir.checkpoints.glob("damaged_*"))] == [f"damaged_{name}" for name in aside]
    (kept,) = run_dir.path.glob("journal.damaged-*.jsonl")
    assert kept.read_bytes() == before
    assert find_intact(run_dir).fault is None
    assert run_status(run_dir).notes == (text,)
    assert main([str(run_dir.path)]) == 0
    same_history(finished, run_dir)
    assert find_intact(run_dir).fault is None
    resumed = [record.step for record in read_records(run_dir.journal_file) if record.kind == "resume"]
    assert resumed == ([left] if left else [])


def test_a_cut_that_was_killed_half_way_is_done_again(run_dir: RunDir, finished: RunDir) -> None:
    change_a_digit(run_dir, 5)
    (run_dir.checkpoints / "step_000006").rename(run_dir.checkpoints / "damaged_step_000006")
    found = find_intact(run_dir)
    assert "goes back to step_000004; moved aside: step_000008" in cut(run_dir, found)
    assert main([str(run_dir.path)]) == 0
    same_history(finished, run_dir)


# In MLflow


def test_a_run_under_way_is_not_repaired(run_dir: RunDir) -> None:
    from tasks.run.setup import repair_run

    journal = Journal(run_dir.journal_file)
    try:
        with pytest.raises(JournalError, match="is writing its journal"):
            repair_run(run_dir.path)
    finally:
        journal.close()
