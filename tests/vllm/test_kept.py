"""Servers that outlive a training: two runs share one, with the weights of each, and none outlives its keeper."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

from grpo_core.config import apply_overrides
from grpo_core.generation.vllm.kept import TrainingServer
from grpo_core.generation.vllm.records import KEEP_VARIABLE, group_of, keeper_in, keeping_servers, read_record, record_files
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.machine.process_id import ProcessId, is_running
from grpo_core.policy.policy import Policy
from tests.conftest import build_values
from tests.vllm.conftest import PYTHON, ROOT, settings_of
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move
from tests.vllm.test_deaths import same

GONE_SECONDS = 20.0


def sampler_of(server: TrainingServer, policy: Policy, folder: Path) -> VllmSampler:
    """Return the sampler of a training."""

    def connect() -> Any:
        client = server.start()
        client.open_model(64)
        return client

    probe = [prompt.token_ids for prompt in PROMPTS]
    return VllmSampler(connect, policy, probe, folder=folder, end=server.stop, leave=server.leave)


def training(model: Path, policy: Policy, folder: Path) -> VllmSampler:
    return sampler_of(TrainingServer(settings_of(model, folder / "vllm.log"), 16), policy, folder)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process keeps servers."""
    monkeypatch.delenv(KEEP_VARIABLE, raising=False)
    with keeping_servers(tmp_path / "kept") as variables:
        monkeypatch.setenv(KEEP_VARIABLE, variables[KEEP_VARIABLE])
        yield tmp_path / "kept"


def leader(folder: Path, number: int = 0) -> ProcessId:
    return read_record(folder / f"server-{number}.json").processes[0]


def are_gone(processes: tuple[ProcessId, ...]) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(is_running, processes))


def test_two_trainings_share_a_server_and_each_has_its_own_weights(
    kept: Path, model_folder: Path, policy: Policy, tmp_path: Path
) -> None:
    first = training(model_folder, policy, tmp_path)
    wanted = first.sample(PROMPTS, SETTINGS, KEY)
    move(policy)
    first.sample(PROMPTS, SETTINGS, KEY)
    first.close()
    server = leader(kept)
    assert len(read_record(kept / "server-0.json").processes) >= 2  # its engine, at least
    move(policy, size=-1e-3)  # back, to rounding
    began = time.monotonic()
    second = training(model_folder, policy, tmp_path)
    again = second.sample(PROMPTS, SETTINGS, KEY)
    assert time.monotonic() - began < 15, "a start takes longer"
    second.close()
    assert leader(kept) == server
    assert again.figures["sampler/probe/difference"] < 1e-4
    assert again.weights != first._version
    assert same(wanted, again)

    # Both at the same time: each has a server, and the weights of its own.
    third, fourth = (training(model_folder, policy, tmp_path) for _ in range(2))
    third.sample(PROMPTS, SETTINGS, KEY)
    move(policy)
    other = fourth.sample(PROMPTS, SETTINGS, KEY)
    assert other.figures["sampler/probe/difference"] < 1e-4
    processes = (*group_of(leader(kept, 0)), *group_of(leader(kept, 1)))
    assert leader(kept, 0) == server
    assert len(set(processes)) == len(processes) >= 4
    third.close()
    fourth.close()

    # The leader alone is killed between two runs.
    lost = read_record(kept / "server-0.json").processes
    os.kill(server.pid, signal.SIGKILL)
    fifth = training(model_folder, policy, tmp_path)
    assert fifth.sample(PROMPTS, SETTINGS, KEY).figures["sampler/probe/difference"] < 1e-4
    fifth.close()
    assert len(record_files(kept)) == 2
    assert not is_running(server)
    # It took the second one, which suits, and left the dead one to whoever needs another.
    sixth, seventh = (training(model_folder, policy, tmp_path) for _ in range(2))
    sixth.sample(PROMPTS[:1], SETTINGS, KEY)
    seventh.sample(PROMPTS[:1], SETTINGS, KEY)
    assert are_gone(lost)
    assert len(record_files(kept)) == 2
    sixth.close()
    seventh.close()


def test_servers_of_a_keeper_that_is_killed_are_gone(
    model_folder: Path, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    command = [sys.executable, "-m", "grpo_core.generation.vllm.keeper", str(folder)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as keeper:
        deadline = time.monotonic() + 30
        while keeper_in(folder) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        monkeypatch.setenv(KEEP_VARIABLE, str(folder))
        sampler = training(model_folder, policy, tmp_path)
        sampler.sample(PROMPTS[:1], SETTINGS, KEY)
        sampler.close()
        processes = group_of(leader(folder))
        assert len(processes) >= 2
        keeper.kill()
    assert are_gone(processes)


def test_a_sweep_of_four_runs_on_one_slot_starts_one_server(own_model: Path, tmp_path: Path) -> None:
    run = {
        **build_values(own_model),
        "rollout": {
            "engine": "vllm",
            "vllm": {"kv_cache_gib": 1},
            "num_prompts_per_step": 3,
            "group_size": 4,
            "max_completion_tokens": 8,
            "max_prompt_tokens": 128,
        },
    }
    options = {"model.dtype": "float32", "data.eval_fraction": 0.0, "tracking.log_policy": False, "training.steps": 2}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(apply_overrides(run, options)))
    sweep = {"base": "small.yaml", "axes": {"loss.beta": [0.01, 0.5]}, "seeds": [1, 2], "objective": {"metric": "reward/mean"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    environment = {
        **{name: value for name, value in os.environ.items() if name != KEEP_VARIABLE},
        "PYTHONPATH": str(ROOT),
        "GRPO_VLLM_PYTHON": str(PYTHON),
        "PREFECT_HOME": str(tmp_path / "prefect"),
    }
    command = [sys.executable, "-m", "flows.cli", "sweep", "sweep.yaml", "--sweep-dir", "runs/one"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 finished" in done.stdout
    folder = tmp_path / "runs" / "one"
    logs = [path.read_text() for path in sorted(folder.glob("runs/*/train.log"))]
    assert len(logs) == 4, sorted(path.name for path in folder.glob("runs/*/*"))
    assert sum(text.count("the vLLM server was started in") for text in logs) == 1
    assert sum("is used again" in text for text in logs) == 3
    steps = pandas.read_parquet(folder / "results" / "steps.parquet")
    assert steps["kl/sampler/k3"].max() < 1e-6
    assert steps.groupby(["arm", "seed"]).size().to_dict() == {(arm, seed): 2 for arm in (0, 1) for seed in (1, 2)}
    assert sorted(path.name for path in (folder / "vllm").iterdir()) == ["lock", "server-0.lock", "server-0.log"]
    found = subprocess.run(["pgrep", "-f", str(own_model)], capture_output=True, text=True, check=False).stdout
    assert found == "", "processes of servers are left"
