"""A training on a file system that is really full: nothing that counted is lost, and it goes on once there is room."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.metrics import find_metric
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
FILLER = '''"""A reward function that fills a disk at a given step, if there is one."""

import os
import re
from pathlib import Path

calls = 0


def score(prompts, completions, disk, leave, at_call, **columns):
    global calls
    calls += 1
    if calls == at_call and Path(disk).is_mount():
        fill(disk, leave)
    return [float(len(completion[0]["content"]) < 5) for completion in completions]


def fill(disk, leave):
    facts = os.statvfs(disk)
    with open(f"{disk}/filler", "wb") as file:
        file.write(bytes(max(0, facts.f_bavail * facts.f_frsize - leave)))
'''
DRIVER = """
import contextlib, io, json, os, shutil, subprocess, sys
from pathlib import Path

prepared, disk, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)], check=True)
import filler
from grpo_core.training.__main__ import main

def attempt(run):
    said = io.StringIO()
    filler.calls = 0 if run.parent == disk and not (run / "journal.jsonl").exists() else 100
    with contextlib.redirect_stderr(said):
        code = main([str(run)])
    return {"code": code, "said": said.getvalue(), "free": os.statvfs(disk).f_bavail}

def look(run):
    checkpoints = [path.name for path in run.glob("checkpoints/*")] + [path.name for path in run.glob("checkpoints/.*")]
    return {"journal": (run / "journal.jsonl").read_text(), "checkpoints": sorted(checkpoints),
            "tables": sorted(path.name for path in run.glob("completions/*"))}

results = {}
for name in names:
    run = disk / name
    shutil.copytree(prepared / name, run)
    first = attempt(run) | look(run)
    (disk / "filler").unlink()
    results[name] = {"first": first, "second": attempt(run) | look(run)}
    shutil.rmtree(run)

results["whole"] = attempt(prepared / names[0]) | look(prepared / names[0])  # where nothing is full

# The child's log and state file lie on the full disk as well.
from tasks.process.child import run_child
from grpo_core.errors import TrainingError
run = disk / "flow"
run.mkdir()
(run / "child_module.py").write_text("import filler, os, sys, time\\n"
    f"filler.fill({str(disk)!r}, 0)\\ntime.sleep(0.5)\\nsys.exit(1)\\n")
os.environ["PYTHONPATH"] += f":{run}"
try:
    run_child("child_module", [], run / "log", state_file=run / "state.json")
except TrainingError as error:
    results["flow"] = [str(error), json.loads((run / "state.json").read_text())]
print("RESULTS" + json.dumps(results))
"""
STEPS = 6
OPTIONS: dict[str, dict[str, Any]] = {
    "checkpoint": {"training.checkpoint_every": 2},
    "table": {"training.checkpoint_every": 2},
    "journal": {"training.checkpoint_every": 6, "training.completions_every": 100},
}
LEFT = {"checkpoint": 100_000, "table": 0, "journal": 0}
"""Bytes that are left free from the fourth (journal: the second) step on."""


def can_mount() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "filler.py").write_text(FILLER)
    return folder


@pytest.fixture(scope="module")
def results(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, code: Path) -> dict[str, Any]:
    """What became of each run, by the thing that did not fit, and of one that was never disturbed ("whole")."""
    if not can_mount():
        pytest.skip("no file system of its own can be mounted here (unshare --user --mount)")
    from grpo_core.config import apply_overrides, validate_config
    from grpo_core.data.prepare import prepare

    folder = tmp_path_factory.mktemp("full")
    (folder / "disk").mkdir()
    for name, options in OPTIONS.items():
        arguments = {"disk": str(folder / "disk"), "leave": LEFT[name], "at_call": 2 if name == "journal" else 4}
        rewards = {"rewards": [{"fn": "filler:score", "args": arguments}], "training.steps": STEPS}
        config = validate_config(apply_overrides(tiny_values, {**options, **rewards}))
        run_dir = RunDir(folder / "prepared" / name)
        run_dir.create(config)
        prepare(config, run_dir.data)
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", DRIVER]
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}  # as `tasks/process/child.py` starts it
    environment = {**os.environ, **quiet, "PYTHONPATH": f"{ROOT}{os.pathsep}{code}"}
    paths = [str(folder / "prepared"), str(folder / "disk")]
    done = subprocess.run(
        [*command, *paths, *OPTIONS], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert "RESULTS" in done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.partition("RESULTS")[2])
    return found


def history(result: dict[str, Any], tmp_path: Path) -> list[Record]:
    (tmp_path / "journal.jsonl").write_text(result["journal"])
    return read_journal(tmp_path / "journal.jsonl")


def figures(records: list[Record]) -> list[dict[str, float]]:
    """The deterministic figures of each step."""
    steps = [record.metrics for record in records if record.kind == "step"]
    return [{key: value for key, value in step.items() if find_metric(key).deterministic} for step in steps]  # type: ignore[union-attr]


SAID = {
    "checkpoint": (r"checkpoint step_000004 could not be written to \S+/checkpoints/\.step_000004\.partial", "step_000002", 4),
    "table": (r"the completions of step 4 could not be written to \S+/completions/step_000004\.parquet", "step_000002", 3),
    "journal": (r"the record '\w+' of step \d could not be written to \S+/journal\.jsonl", None, None),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_run_ends_with_one_message_and_what_counted_is_whole(results: dict[str, Any], name: str, tmp_path: Path) -> None:
    first, (said, newest, last) = results[name]["first"], SAID[name]
    have = f"the newest whole checkpoint is {newest}" if newest else "there is no checkpoint yet"
    command = r"resume with `grpo train --resume \S+/disk/" + name
    message = rf"disk full: {said}; [\d.]+ MiB are free; {have}; free space, then {command}`"
    assert first["code"] == 1
    assert re.fullmatch(message + "\n", first["said"]), first["said"]
    assert "Traceback" not in first["said"]
    assert first["journal"].endswith("\n")
    records = history(first, tmp_path)
    steps = [record.step for record in records if record.kind == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert last is None or steps[-1] == last
    assert first["checkpoints"] == ["initial.safetensors", *([newest] if newest else [])]
    assert f"step_{len(steps) + 1:06d}.parquet" not in first["tables"]
    if name == "checkpoint":  # its half was removed, so that there is room for the last words
        assert first["free"] * os.sysconf("SC_PAGE_SIZE") > 50_000
        assert (records[-1].kind, records[-1].data["reason"]) == ("end", first["said"].strip())


@pytest.mark.parametrize("name", OPTIONS)
def test_once_there_is_room_the_run_goes_on_bitwise_as_if_nothing_had_been(
    results: dict[str, Any], name: str, tmp_path: Path
) -> None:
    second = results[name]["second"]
    assert second["code"] == 0, second["said"]
    found = figures(history(second, tmp_path))
    assert len(found) == STEPS
    assert found == figures(history(results["whole"], tmp_path))


def test_a_flow_learns_of_the_end_of_a_process_whose_state_file_is_on_a_full_disk(results: dict[str, Any]) -> None:
    message, state = results["flow"]
    assert "ended with exit code 1" in message
    assert (state["returncode"], state["left"]) == (1, False)
