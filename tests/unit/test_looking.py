"""`grpo status`, `grpo runs`, `--json`: what they print of runs that finished, died, are a stranger's, or are hostile."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import Origin
from grpo_core.run.folder import PROMPTS_MANIFEST, RunDir
from grpo_core.run.journal import Journal
from grpo_core.run.resuming import path_argument, resume_command
from tests.support.commands import grpo
from tests.support.sweeps import stored_sweep

ROOT = Path(__file__).parents[2]
Make = Callable[..., RunDir]


@pytest.fixture
def make(tmp_path: Path, tiny_config: Callable[..., Any]) -> Make:
    """Return a function that makes the folder of a run with a journal of `steps` steps and, if it has one, an end."""

    def run(name: str, steps: int = 2, end: str | None = None, **overrides: Any) -> RunDir:
        run_dir = RunDir(tmp_path / "runs" / name)
        run_dir.create(tiny_config(overrides), Origin(preset="tiny"))
        (run_dir.path / PROMPTS_MANIFEST).parent.mkdir()
        (run_dir.path / PROMPTS_MANIFEST).write_text("{}")
        run_dir.flow_run_file.write_text("\n")
        journal = Journal(run_dir.journal_file)
        journal.append("start", 0, {})
        journal.append("eval", 0, {"set": "heldout", "metrics": {"eval/heldout/greedy_accuracy": 0.9}})
        for step in range(1, steps + 1):
            journal.append("step", step, {"metrics": {"reward/mean": 0.25, "kl/ref/drift": float("nan")}})
        if end is not None:
            journal.append("eval", steps, {"set": "heldout", "metrics": {"eval/heldout/greedy_accuracy": 0.5}})
            journal.append("end", steps, {"status": end, "reason": None})
            run_dir.summary_file.write_text('{"status": "finished"}')
        journal.close()
        return run_dir

    return run


@pytest.mark.parametrize("end", [None, "stopped", "failed"])
def test_the_last_line_of_a_run_that_did_not_finish_resumes_it(make: Make, end: str | None) -> None:
    run_dir = make("one", end=end)
    assert grpo("status", str(run_dir.path)).stdout.splitlines()[-1] == f"resume with: grpo train --resume {run_dir.path}"


def test_a_finished_run_has_nothing_to_resume_unless_its_summary_is_missing(make: Make) -> None:
    run_dir = make("one", steps=4, end="finished")
    assert resume_command(run_dir) is None
    run_dir.summary_file.unlink()  # killed in the evaluation after the last step
    assert resume_command(run_dir) == f"grpo train --resume {run_dir.path}"
    run_dir.flow_run_file.unlink()  # a training that was started by hand has no report
    assert resume_command(run_dir) is None


def test_a_run_that_a_process_works_on_is_not_to_be_resumed(make: Make) -> None:
    run_dir = make("one")
    assert resume_command(run_dir) is not None
    holder = "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(run_dir.lock_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert resume_command(run_dir) is None
        (row,) = json.loads(grpo("runs", str(run_dir.path.parent), "--json").stdout)
        assert (row["state"], row["resume"]) == ("running", None)
        process.communicate(b"\n")
    assert resume_command(run_dir) is not None


@pytest.mark.parametrize("name", ["my runs", "it's $HOME", 'a"b`c', "-x", "β", "back\\slash"])
def test_a_path_is_one_word_that_a_shell_reads_back(name: str) -> None:
    word = path_argument(Path(name))
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert Path(done.stdout.decode()) == Path(name)


def test_what_cannot_be_resumed_so_is_told_how_it_goes_on(make: Make, tmp_path: Path) -> None:
    run_dir, stored = make("one"), stored_sweep(tmp_path)
    more = grpo("train", "--resume", str(run_dir.path), "training.steps=120")
    assert (more.returncode, f"`grpo train --continue {run_dir.path} training.steps=120`" in more.stderr) == (2, True)
    seeds = grpo("sweep", "--resume", str(stored.dir.path), "seeds=[0,1,2]")
    assert (seeds.returncode, f"`grpo sweep --extend {stored.dir.path} 'seeds=[0,1,2]'`" in seeds.stderr) == (2, True)
    both = grpo("train", "--resume", str(run_dir.path), "--continue", "other")
    assert (both.returncode, "leave out other" in both.stderr) == (2, True)


def test_runs_are_listed_newest_first_with_what_they_reached(make: Make, tmp_path: Path) -> None:
    for name, facts in {"old": {"steps": 4, "end": "finished"}, "new": {}}.items():
        make(name, **facts)
        time.sleep(1.1)  # a marker's time is in seconds
    (tmp_path / "runs" / "stranger").mkdir()
    (tmp_path / "runs" / "stranger" / "config.json").write_text("{}")
    done = grpo("runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    names = ["ID", "STATE", "SETTINGS", "DONE", "ACCURACY", "REWARD", "ALERTS", "SIZE", "STARTED", "FOLDER"]
    assert re.split("  +", head) == names
    assert [re.split("  +", line)[:6] for line in rows] == [
        ["2", "died", "β 0.04 · G 4 · sync 2 · s0", "2/4", "0.900 -> ...", "0.250"],
        ["1", "finished", "β 0.04 · G 4 · sync 2 · s0", "4/4", "0.900 -> 0.500", "0.250"],
    ]
    listed = json.loads(grpo("runs", "--json", cwd=tmp_path).stdout)
    assert [(row["path"], row["accuracy"]) for row in listed] == [("runs/new", None), ("runs/old", 0.5)]  # 0.9: at the start
    assert listed[1]["bytes"] == sum(file.stat().st_size for file in (tmp_path / "runs" / "old").rglob("*") if file.is_file())
    assert shlex.split(listed[0]["resume"]) == ["grpo", "train", "--resume", "runs/new"]
    assert grpo("status", "last", cwd=tmp_path).stdout.startswith("runs/new: died")
    assert grpo("clean", cwd=tmp_path).returncode == 0


def test_runs_are_filtered_by_settings_and_sorted(make: Make, tmp_path: Path) -> None:
    make("one", end="finished", **{"loss.beta": 0.1})
    make("two", steps=3, **{"loss.beta": 0.1, "reference.sync_steps": None})
    make("three", steps=4)

    def listed(*words: str) -> list[str]:
        done = grpo("runs", *words, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [Path(row["path"]).name for row in json.loads(done.stdout)]

    assert sorted(listed("beta=1e-1")) == sorted(listed("runs", "loss.beta=0.1")) == ["one", "two"]
    assert listed("β=0.1", "sync=never") == listed("beta=0.1", "state=died") == ["two"]
    assert listed("--sort", "done") == ["three", "two", "one"]
    assert listed("--sort", "accuracy")[0] == "one"  # the others have none yet
    unknown = grpo("runs", "bta=0.1", cwd=tmp_path)
    assert (unknown.returncode, "bta: is no setting of a run, nor state or preset" in unknown.stderr) == (2, True)


def test_a_damaged_run_and_one_of_a_newer_version_are_rows_too(make: Make, tmp_path: Path) -> None:
    make("damaged").config_file.write_text("{")
    newer = make("newer")
    (newer.path / ".grpo-folder").write_text('{"kind": "run", "format": 99}')
    done = grpo("runs", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("damaged")) == (0, 3)  # a name and two states
    assert "newer: " in done.stderr


def test_status_as_json_is_one_document_in_which_nothing_acts(make: Make) -> None:
    run_dir = make("one", end="stopped", **{"tracking.run_name": "x\x9b2J"})
    done = grpo("status", str(run_dir.path), "--json")
    document = json.loads(done.stdout)
    assert done.stdout.isascii()
    assert (document["state"], document["step"], document["steps"]) == ("stopped", 2, 4)
    assert document["last"]["metrics"] == {"reward/mean": 0.25, "kl/ref/drift": "nan"}
    assert document["resume"] == f"grpo train --resume {run_dir.path}"


def test_check_as_json_holds_the_configuration_and_every_warning(tmp_path: Path) -> None:
    values = {"rewards": [{"fn": "mine:short"}], "loss": {"beta": 0.1}, "rollout": {"top_k": 5}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**values, "training": {"microbatch_tokens": 1024}}))
    document = json.loads(grpo("check", str(tmp_path / "mine.yaml"), "--json").stdout)
    assert document["config"]["loss"]["beta"] == 0.1
    assert len(document["warnings"]) == 1
    assert "mine:short" in document["notes"][0]  # data.chat_template is on: it gets messages
    refused = grpo("check", str(tmp_path / "mine.yaml"), "loss.bta=1", "--json")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_shell_completes_verbs_presets_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.cli.experiment import complete_config, complete_override, complete_sweep

    assert "quickstart" in complete_config("quick")
    assert complete_sweep("beta_group_sync_t") == ["beta_group_sync_tiny"]
    assert complete_override("loss.beta_control.t") == ["loss.beta_control.target="]
    monkeypatch.setenv("_GRPO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "grpo tr")
    monkeypatch.setenv("COMP_CWORD", "1")
    command = "import sys; sys.argv = ['grpo']; from flows.cli.app import main; main()"
    assert subprocess.check_output([sys.executable, "-c", command], cwd=ROOT, text=True).split() == ["train", "try", "track"]
