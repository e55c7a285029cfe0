"""A server that dies: another takes its place, the same step is sampled again, and no process is left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from grpo_core.errors import ServerGoneError
from grpo_core.generation.vllm.client import Completion, VllmClient
from grpo_core.generation.vllm.opening import VllmServer
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.policy import Policy
from tests.vllm.conftest import settings_of
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move

GONE_SECONDS = 20.0


@pytest.fixture
def server(model_folder: Path, tmp_path: Path) -> Iterator[VllmServer]:
    made = VllmServer(settings_of(model_folder, tmp_path / "vllm.log"), 16)
    yield made
    made.stop()


def sampler_of(server: VllmServer, policy: Policy, folder: Path) -> VllmSampler:
    def connect() -> VllmClient:
        client = server.start()
        client.open_model(64)
        return client

    probe = [prompt.token_ids for prompt in PROMPTS]
    return VllmSampler(connect, policy, probe, folder=folder, end=server.stop)


def group(server: VllmServer) -> int:
    assert server._process is not None
    return server._process.pid


def is_gone(process_group: int) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        found = subprocess.run(["ps", "-o", "stat=", "-g", str(process_group)], capture_output=True, text=True, check=False)
        if all(state.startswith("Z") for state in found.stdout.split()):
            return True
        time.sleep(0.2)
    return False


def in_the_middle(kill: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `kill` at the tenth completion that is asked for."""
    calls, complete = [0], VllmClient._complete

    def counted(self: VllmClient, *arguments: object) -> Completion:
        calls[0] += 1
        if calls[0] == 10:
            kill()
        return complete(self, *arguments)

    monkeypatch.setattr(VllmClient, "_complete", counted)


@pytest.mark.parametrize("phase", ["before", "transfer", "rollout", "engine in rollout"])
def test_a_server_that_is_killed_is_replaced_and_the_step_repeated(
    server: VllmServer, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    sampler = sampler_of(server, policy, tmp_path)
    wanted = sampler.sample(PROMPTS, SETTINGS, KEY)
    first = group(server)

    def kill() -> None:
        target = first
        if phase == "engine in rollout":
            found = subprocess.run(
                ["pgrep", "-g", str(first), "-f", "VLLM::|spawn_main"], capture_output=True, text=True, check=True
            )
            target = int(found.stdout.split()[0])
        os.kill(target, signal.SIGKILL)

    if phase == "before":
        kill()
    elif phase == "transfer":
        load = VllmClient.load_weights
        killed = []

        def load_and_kill(self: VllmClient, *arguments: object) -> None:
            load(self, *arguments)
            if not killed:
                killed.append(True)
                kill()

        monkeypatch.setattr(VllmClient, "load_weights", load_and_kill)
        move(policy)
    else:
        in_the_middle(kill, monkeypatch)
    again = sampler.sample(PROMPTS, SETTINGS, KEY)
    assert group(server) != first
    assert is_gone(first)
    assert again.figures["sampler/probe/difference"] < 1e-4
    if phase != "transfer":
        assert torch.equal(wanted.completion_ids, again.completion_ids)


def test_a_server_of_somebody_else_that_dies_ends_the_call_in_bounded_time(
    server: VllmServer, policy: Policy, tmp_path: Path
) -> None:
    client = server.start()
    client.open_model(64)
    sampler = VllmSampler(lambda: client, policy, [prompt.token_ids for prompt in PROMPTS], folder=tmp_path)
    sampler.sample(PROMPTS[:1], SETTINGS, KEY)
    os.kill(group(server), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ServerGoneError, match="no answer"):
        sampler.sample(PROMPTS[:1], SETTINGS, KEY)
    assert time.monotonic() - began < 60
