"""Servers of runs and of sweeps, with real processes in the place of vLLM's: which one a run gets, and that none is left."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.opening import PYTHON_VARIABLE, SlotServers, VllmServer, lent_client
from grpo_core.run.folder import RunDir
from grpo_core.sweep.campaign import Ended, Job
from tasks.sweep import local

ROOT = Path(__file__).parents[2]
GONE_SECONDS = 15.0


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The stand-in of an interpreter with vLLM."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("stand_in_server.py")} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture
def settings(python: Path, tmp_path: Path) -> ServerSettings:
    """What a server of these tests is started with."""
    log_file = tmp_path / "vllm.log"
    return ServerSettings(
        python=python, model=tmp_path, dtype="float32", context=64, threads=1, kv_cache_gib=1, log_file=log_file
    )


@pytest.fixture
def servers() -> Iterator[SlotServers]:
    servers = SlotServers()
    yield servers
    servers.close()


def group(server: VllmServer) -> int:
    assert server._process is not None
    return server._process.pid


def is_gone(process_group: int) -> bool:
    """Return whether no process of a group is left, zombies aside, within a bounded time."""
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        found = subprocess.run(["ps", "-o", "stat=", "-g", str(process_group)], capture_output=True, text=True, check=False)
        if all(state.startswith("Z") for state in found.stdout.split()):
            return True
        time.sleep(0.1)
    return False


def test_a_run_alone_starts_a_server_and_ends_it(settings: ServerSettings) -> None:
    server = VllmServer(settings, 2)
    assert server.start().weight_version() == "abc"
    first = group(server)
    assert server.start().is_ready()  # a lost one is replaced
    assert is_gone(first)
    second = group(server)
    server.stop()
    assert is_gone(second)
    assert settings.log_file.stat().st_mode & 0o777 == 0o600


def test_a_server_that_does_not_start_shows_the_end_of_its_log(settings: ServerSettings, tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match=r"ended while it started; its log, .*vllm\.log, ends with: no such model"):
        VllmServer(replace(settings, model=tmp_path / "--no-such-model"), 2).start()


@pytest.mark.parametrize(
    ("change", "variables", "is_shared"),
    [
        ({"context": 63}, {}, True),
        ({"log_file": Path("other")}, {}, True),
        ({"context": 65}, {}, False),
        ({"dtype": "bfloat16"}, {}, False),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, False),
    ],
)
def test_the_next_run_gets_the_server_of_the_last_one_if_it_suits(
    servers: SlotServers, settings: ServerSettings, change: dict[str, Any], variables: dict[str, str], is_shared: bool
) -> None:
    first = servers.lend(settings, {})
    process = group(first)
    servers.give_back(first, is_sound=True)
    second = servers.lend(replace(settings, **change), variables)
    assert (second is first) is is_shared
    assert is_shared or is_gone(process)


def test_the_server_of_a_run_that_failed_is_ended(servers: SlotServers, settings: ServerSettings) -> None:
    server = servers.lend(settings, {})
    process = group(server)
    servers.give_back(server, is_sound=False)
    assert is_gone(process)
    assert servers.lend(settings, {}) is not server


def test_a_run_waits_for_the_server_that_is_lent_to_it(
    servers: SlotServers, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.lend(settings, {})
    for name, value in server.lent().items():
        monkeypatch.setenv(name, value)
    assert lent_client(2).weight_version() == "abc"
    servers.give_back(server, is_sound=False)
    with pytest.raises(SamplerError, match="ended while it started"):
        lent_client(2)


OWNER = """
import sys, time
from pathlib import Path
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.opening import SlotServers
python, log = map(Path, sys.argv[1:])
settings = ServerSettings(python=python, model=log, dtype="float32", context=64, threads=1, kv_cache_gib=1, log_file=log)
server = SlotServers().lend(settings, {})
print(server._process.pid, flush=True)
time.sleep(600)
"""


def test_no_server_is_left_after_a_kill_of_the_command(settings: ServerSettings) -> None:
    command = [sys.executable, "-c", OWNER, str(settings.python), str(settings.log_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) as owner:
        assert owner.stdout is not None
        process = int(owner.stdout.readline())
        time.sleep(0.5)  # the engine is there, too
        owner.kill()
    assert is_gone(process)


def ended(launcher: local.LocalLauncher) -> Ended:
    """Wait for the one run of a launcher."""
    deadline = time.monotonic() + 60
    while not (found := launcher.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found[0]


def test_the_runs_of_a_sweep_use_one_server_and_it_ends_with_the_sweep(
    python: Path, tiny_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "COMMAND", "tests.integration.stand_in_run")
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    values = apply_overrides(tiny_values, {"rollout.engine": "vllm", "model.dtype": "float32"})
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(values))
    launcher = local.LocalLauncher(1, server_logs=tmp_path / "vllm")
    used = []
    for seed in range(3):
        job = Job(
            arm=0,
            seed=seed,
            name="",
            base=tmp_path / "base.yaml",
            overrides={"training.seed": seed},
            run_dir=RunDir(tmp_path / f"run-{seed}"),
            log_file=tmp_path / f"run-{seed}.log",
        )
        launcher.start(job)
        result = ended(launcher)
        assert (result.failure is None) is (seed < 2), job.log_file.read_text()
        used.append(int(job.log_file.read_text().split()[0]))
    assert result.crashed  # its server was killed: it is worth another try
    assert len(set(used)) == 1
    launcher.close()
    assert is_gone(used[0])
