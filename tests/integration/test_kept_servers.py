"""Servers that stay: which one a training takes, leaves, ends or starts, with real processes in the place of vLLM's."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.kept import TrainingServer
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.load import describe_kept_server
from grpo_core.generation.vllm.records import (
    KEEP_VARIABLE,
    ServerRecord,
    end_servers,
    group_of,
    keeper_in,
    keeping_servers,
    read_record,
    record_files,
    write_record,
)
from grpo_core.machine.process_id import ProcessId, identify, is_running

ROOT = Path(__file__).parents[2]
GONE_SECONDS = 15.0


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    """What a server of these tests is started with."""
    python, model = tmp_path / "python", tmp_path / "model"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("stand_in_server.py")} "$@"\n')
    python.chmod(0o755)
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 8}')
    log_file = tmp_path / "vllm.log"
    return ServerSettings(python=python, model=model, dtype="float32", context=64, threads=1, kv_cache_gib=1, log_file=log_file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process keeps servers."""
    folder = tmp_path / "vllm"
    monkeypatch.delenv(KEEP_VARIABLE, raising=False)
    with keeping_servers(folder) as variables:
        monkeypatch.setenv(KEEP_VARIABLE, variables[KEEP_VARIABLE])
        yield folder


def records(folder: Path) -> list[ServerRecord]:
    return [read_record(path) for path in record_files(folder)]


def use(settings: ServerSettings) -> TrainingServer:
    """Return the server of a training that has begun."""
    server = TrainingServer(settings, 2)
    server.start()
    return server


def leader(folder: Path, number: int = 0) -> ProcessId:
    return read_record(folder / f"server-{number}.json").processes[0]


def are_gone(*processes: ProcessId) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, processes))


def test_trainings_one_after_the_other_share_a_server(folder: Path, settings: ServerSettings) -> None:
    first = use(settings)
    kept = leader(folder)
    assert read_record(folder / "server-0.json").used_by == identify(os.getpid())
    first.leave()
    (free,) = records(folder)
    assert (free.used_by, len(free.processes), free.keeper) == (None, 2, identify(os.getpid()))
    began = time.monotonic()
    second = use(settings)
    assert time.monotonic() - began < 0.4, "a start looks every 0.5 s whether it answers"
    assert leader(folder) == kept
    second.leave()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


@pytest.mark.proof
def test_at_the_same_time_they_have_servers_of_their_own_and_no_more_are_started(
    folder: Path, settings: ServerSettings
) -> None:
    first, second = use(settings), use(settings)
    assert len(records(folder)) == 2
    assert leader(folder, 0) != leader(folder, 1)
    second.leave()
    third = use(replace(settings, context=32))
    assert len(records(folder)) == 2
    first.leave()
    third.leave()


@pytest.mark.parametrize(
    ("change", "is_shared"),
    [
        ({"context": 63}, True),
        ({"context": 65}, False),
        ({"dtype": "bfloat16"}, False),
        ({"threads": 2}, False),
        ({"kv_cache_gib": 2}, False),
    ],
)
def test_a_server_that_does_not_suit_is_ended_for_one_that_does(
    folder: Path, settings: ServerSettings, change: dict[str, object], is_shared: bool
) -> None:
    use(settings).leave()
    kept = read_record(folder / "server-0.json").processes
    other = use(replace(settings, **change))
    assert len(records(folder)) == 1
    assert (leader(folder) == kept[0]) is is_shared
    assert is_shared or are_gone(*kept)
    other.leave()


def test_the_model_is_its_description_not_its_weights_or_place(folder: Path, settings: ServerSettings, tmp_path: Path) -> None:
    use(settings).leave()
    kept = leader(folder)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_bytes((settings.model / "config.json").read_bytes())
    (copy / "model.safetensors").write_text("others")
    use(replace(settings, model=copy)).leave()
    assert leader(folder) == kept
    (copy / "config.json").write_text('{"hidden_size": 16}')
    use(replace(settings, model=copy)).leave()
    assert leader(folder) != kept


@pytest.mark.proof
def test_other_devices_are_another_server(folder: Path, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    use(settings).leave()
    kept = leader(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    use(settings).leave()
    assert leader(folder) != kept


@pytest.mark.proof
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_has_died_or_hangs_is_replaced_and_nothing_of_it_is_left(
    folder: Path, settings: ServerSettings, fate: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_core.generation.vllm.client.CONNECT_SECONDS", 0.5)
    use(settings).leave()
    kept = read_record(folder / "server-0.json").processes
    os.kill(kept[0].pid, fate)  # the engine goes on without its leader
    server = use(settings)
    assert leader(folder) != kept[0]
    assert are_gone(*kept)
    assert len(records(folder)) == 1
    server.leave()


@pytest.mark.proof
def test_a_server_that_is_lost_in_a_run_is_replaced_in_its_place(folder: Path, settings: ServerSettings) -> None:
    server = use(settings)
    lost = read_record(folder / "server-0.json").processes
    assert server.start().is_ready()
    assert are_gone(*lost)
    assert len(records(folder)) == 1
    server.leave()


@pytest.mark.proof
def test_a_server_that_failed_a_check_is_left_to_nobody(folder: Path, settings: ServerSettings) -> None:
    server = use(settings)
    processes = group_of(leader(folder))
    server.stop()
    assert are_gone(*processes)
    assert records(folder) == []


def test_a_server_that_does_not_start_leaves_nothing(folder: Path, settings: ServerSettings, tmp_path: Path) -> None:
    with pytest.raises(
        SamplerError, match=r"ended with 1 while it started; its log, .*server-0\.log, ends with: no such model"
    ):
        use(replace(settings, model=tmp_path / "--no-such-model"))
    assert records(folder) == []
    use(settings).leave()
    assert len(records(folder)) == 1


TRAINING = """
import sys, time
from pathlib import Path
from grpo_core.generation.vllm.kept import TrainingServer
from grpo_core.generation.vllm.launch import ServerSettings
python, model, log, times = sys.argv[1:]
settings = ServerSettings(
    python=Path(python), model=Path(model), dtype="float32", context=64, threads=1, kv_cache_gib=1, log_file=Path(log)
)
for _ in range(int(times) or 1):
    server = TrainingServer(settings, 2)
    server.start()
    print("has one", flush=True)
    time.sleep(600 if times == "0" else 0.02)
    server.leave()
"""


def training(settings: ServerSettings, times: int = 0) -> subprocess.Popen[str]:
    """Start a process that uses a server `times` times; 0 = once and for ever."""
    arguments = [str(settings.python), str(settings.model), str(settings.log_file), str(times)]
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.proof
def test_what_a_killed_training_used_is_ended_by_the_next(folder: Path, settings: ServerSettings) -> None:
    with training(settings) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "has one\n"
        used = read_record(folder / "server-0.json")
        assert used.used_by == identify(killed.pid)
        killed.kill()
    assert f"left by process {killed.pid}, which was killed" in describe_kept_server(folder / "server-0.json")
    server = use(settings)
    assert are_gone(*used.processes)
    assert len(records(folder)) == 1
    server.leave()


@pytest.mark.proof
def test_there_are_never_more_servers_than_trainings_at_a_time(folder: Path, settings: ServerSettings) -> None:
    several = [training(settings, times=8) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in several]
    assert outputs == ["has one\n" * 8] * 3
    assert 1 <= len(records(folder)) <= 3
    assert len(list(folder.glob("server-*.lock"))) <= 3


def test_a_number_that_is_another_process_by_now_is_left_alone(folder: Path, settings: ServerSettings) -> None:
    use(settings).leave()
    record = read_record(folder / "server-0.json")
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        stranger = replace(identify(sleeper.pid), started=identify(sleeper.pid).started + 1)
        write_record(folder / "server-1.json", replace(record, processes=(stranger,)))
        end_servers(folder)
        assert sleeper.poll() is None
        sleeper.kill()
    assert records(folder) == []
    assert are_gone(*record.processes)


def test_without_a_keeper_a_training_has_a_server_of_its_own(settings: ServerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEEP_VARIABLE, raising=False)
    server = TrainingServer(settings, 2)
    assert server.start().is_ready()
    assert settings.log_file.exists()
    assert server._started is not None
    assert server._started._launched is not None
    processes = group_of(server._started._launched.process)
    assert len(processes) == 2
    server.leave()
    assert are_gone(*processes)


KEEPER = [sys.executable, "-m", "grpo_core.generation.vllm.keeper"]


@pytest.mark.proof
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_their_keeper_however_it_ends(
    tmp_path: Path, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    folder = tmp_path / "vllm"
    with subprocess.Popen([*KEEPER, str(folder)], env={**os.environ, "PYTHONPATH": str(ROOT)}) as keeper:
        deadline = time.monotonic() + 30
        while keeper_in(folder) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        monkeypatch.setenv(KEEP_VARIABLE, str(folder))
        use(settings).leave()
        used = use(settings)
        processes = group_of(leader(folder))
        assert len(processes) == 2
        keeper.send_signal(end)
        keeper.wait(30)
    assert are_gone(*processes)
    assert keeper_in(folder) is None
    assert used.start().is_ready()  # the run goes on with a server of its own
    assert settings.log_file.exists()
    used.leave()
    with keeping_servers(folder):  # the next one begins with an empty folder
        assert records(folder) == []


def test_a_keeper_within_a_keeper_leaves_it_to_the_outer_one(folder: Path, tmp_path: Path) -> None:
    with keeping_servers(tmp_path / "inner") as variables:
        assert dict(variables) == {}
    assert not (tmp_path / "inner").exists()


def test_the_status_of_a_server_is_a_line_without_its_key(folder: Path, settings: ServerSettings) -> None:
    server = use(settings)
    record = read_record(folder / "server-0.json")
    line = describe_kept_server(folder / "server-0.json")
    assert line.startswith(f"ready      process {record.processes[0].pid}")
    assert "model float32, 64 tokens" in line
    assert f"used by process {os.getpid()}; weights abc; 3 request(s) running, 1 waiting, cache 25%" in line
    assert record.key not in line
    assert record.key not in repr(record)
    server.leave()
    assert "; free; weights abc" in describe_kept_server(folder / "server-0.json")
    os.kill(record.processes[0].pid, signal.SIGSTOP)
    began = time.monotonic()
    assert "free; does not answer" in describe_kept_server(folder / "server-0.json")
    assert time.monotonic() - began < 10
    os.kill(record.processes[0].pid, signal.SIGKILL)
    assert are_gone(record.processes[0])
    assert describe_kept_server(folder / "server-0.json").startswith("ended")


SECRET = "S" * 43


def hostile(fields: dict[str, object]) -> list[str]:
    """Return what somebody may have made of a record."""
    whole = json.dumps(fields)
    changes: list[dict[str, object]] = [
        {"key": SECRET + "\r\nX: y"},
        {"key": [SECRET]},
        {SECRET: SECRET},
        {"port": 0},
        {"port": "8000"},
        {"processes": []},
        {"processes": [{"pid": -1, "started": 1}]},
        {"processes": [{"pid": 0, "started": 1}]},
        {"fit": SECRET},
        {"context": -1},
        {"keeper": None},
    ]
    return [
        whole[: len(whole) // 2],
        "",
        "[]",
        "null",
        "[" * 9000,
        "\x00" * 70000,
        *(json.dumps({**fields, **one}) for one in changes),
    ]


def test_a_hostile_record_is_a_line_and_no_server(folder: Path, settings: ServerSettings) -> None:
    use(settings).leave()
    record = replace(read_record(folder / "server-0.json"), key=SECRET)
    for number, text in enumerate(hostile(asdict(record)), start=1):
        path = folder / f"server-{number}.json"
        path.write_text(text)
        path.chmod(0o600)
        line = describe_kept_server(path)
        assert f"server-{number}.json: is no record of a vLLM server (" in line, text[:200]
        assert SECRET not in line
        assert "\n" not in line
    end_servers(folder)
    assert record_files(folder) == []


def test_records_that_are_links_pipes_folders_or_open_to_others_are_refused(folder: Path, settings: ServerSettings) -> None:
    use(settings).leave()
    whole = (folder / "server-0.json").read_bytes()
    (folder / "elsewhere").write_bytes(whole)
    (folder / "elsewhere").chmod(0o600)
    (folder / "server-1.json").symlink_to(folder / "elsewhere")
    os.mkfifo(folder / "server-2.json")
    (folder / "server-3.json").mkdir()
    (folder / "server-4.json").write_bytes(whole)
    (folder / "server-4.json").chmod(0o644)
    for number in range(1, 5):
        assert "is no record of a vLLM server" in describe_kept_server(folder / f"server-{number}.json")
    end_servers(folder)
    assert record_files(folder) == []
    assert (folder / "elsewhere").exists()
