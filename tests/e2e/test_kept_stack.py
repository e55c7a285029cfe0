"""`grpo up --vllm` with a stand-in for vLLM: workers know where servers stay, status shows them, down ends them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from grpo_core.generation.vllm.kept import TrainingServer
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.records import KEEP_VARIABLE, group_of, keeper_in, read_record
from grpo_core.generation.vllm.server import PYTHON_VARIABLE
from grpo_core.machine.process_id import is_running
from tests.e2e.project import Project

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
STAND_IN = Path(__file__).parents[1] / "integration" / "stand_in_server.py"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that has vLLM, as far as can be seen from outside."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def project(tmp_path: Path, python: Path) -> Iterator[Project]:
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", **{PYTHON_VARIABLE: str(python)})
    done = project.grpo("up", "--vllm")
    try:
        assert done.returncode == 0, done.stderr + done.stdout
        assert f"servers of {python} stay from run to run" in done.stdout
        yield project
    finally:
        assert project.grpo("down", "--patience", "20").returncode == 0


def test_servers_of_a_stack_stay_are_shown_and_end_with_it(
    project: Project, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = project.stack
    keeper = stack.processes["vllm"]
    assert keeper_in(stack.vllm_folder) == keeper
    worker = psutil.Process(stack.processes["worker"].pid).environ()
    assert (worker[KEEP_VARIABLE], worker[PYTHON_VARIABLE]) == (str(stack.vllm_folder), str(python))

    monkeypatch.setenv(KEEP_VARIABLE, worker[KEEP_VARIABLE])  # a run of this worker
    (tmp_path / "model").mkdir()
    settings = ServerSettings(
        python=python,
        model=tmp_path / "model",
        dtype="float32",
        context=64,
        threads=1,
        kv_cache_gib=1,
        log_file=tmp_path / "vllm.log",
    )
    server = TrainingServer(settings, 2)
    server.start()
    record = read_record(stack.vllm_folder / "server-0.json")
    status = project.grpo("status")
    assert status.returncode == 0, status.stdout
    assert f"vllm     ready      process {keeper.pid}" in status.stdout
    assert f"server-0 ready      process {record.processes[0].pid}" in status.stdout
    assert f"model float32, 64 tokens; used by process {os.getpid()}; weights abc; 3 request(s) running" in status.stdout
    server.leave()
    assert record.key not in status.stdout

    (stack.vllm_folder / "server-7.json").write_text('{"key": "\x1b[2J')
    status = project.grpo("status")
    assert status.returncode == 0
    assert "server-7.json: is no record of a vLLM server (it is not its owner's alone)" in status.stdout
    assert "\x1b" not in status.stdout
    assert "Traceback" not in status.stderr

    other = project.with_variables(**{PYTHON_VARIABLE: sys.executable}).grpo("up", "--vllm")
    assert other.returncode == 2
    assert "error: --vllm: rollout.vllm.python:" in other.stderr
    assert "has no vllm and no grpo_vllm" in other.stderr

    processes = group_of(record.processes[0])
    assert len(processes) == 2
    assert project.grpo("down").returncode == 0
    assert not any(map(is_running, (*processes, keeper)))


def test_a_stack_without_it_keeps_none_and_says_how_to_change_that(tmp_path: Path, python: Path) -> None:
    project = Project(tmp_path, **{PYTHON_VARIABLE: str(python)})
    assert project.grpo("up").returncode == 0
    try:
        worker = psutil.Process(project.stack.processes["worker"].pid).environ()
        assert KEEP_VARIABLE not in worker
        again = project.grpo("up", "--vllm")
        assert again.returncode == 2
        assert f"--vllm {python}: the stack of " in again.stderr
        assert "is up with none; run `grpo down` first" in again.stderr
        assert "server-" not in project.grpo("status").stdout
    finally:
        assert project.grpo("down").returncode == 0
