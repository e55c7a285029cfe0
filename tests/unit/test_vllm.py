"""What needs no vLLM: the verdict on a probe, seeds, the weights' file, the client's answers to a server that misbehaves."""

import asyncio
import contextlib
import copy
import http.server
import itertools
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.config import load_config
from grpo_core.errors import ConfigError, SamplerError, ServerGoneError, StaleWeightsError, TrainingError
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.generation.vllm import environment
from grpo_core.generation.vllm.client import Completion, Request, VllmClient
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.launch import environment as server_environment
from grpo_core.generation.vllm.sampler import ProbeLogps, VllmSampler, judge, manifest_of, request_seed, weights_file
from grpo_core.types import ModelInput, Prompt
from tests.policies import policy_of

SETTINGS = SamplingSettings(group_size=1, max_completion_tokens=3)
REQUEST = Request(prompt=ModelInput((3, 4)), seed=7)


def logps(server: float, trainer: float, count: int = 64) -> ProbeLogps:
    return ProbeLogps(
        server=torch.full((count,), server, dtype=torch.float64), trainer=torch.full((count,), trainer, dtype=torch.float64)
    )


def test_in_float32_both_sides_agree_to_rounding() -> None:
    first = judge(logps(-1.00001, -1.0), None, "float32")
    assert first == {"difference": pytest.approx(1e-5), "moved": 0, "missed": 0, "conclusive": 1}
    moved = judge(logps(-1.20001, -1.2), logps(-1.00001, -1.0), "float32")
    assert moved["moved"] == pytest.approx(0.2)
    assert moved["missed"] == pytest.approx(0, abs=1e-7)
    assert moved["followed"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("now", "before", "dtype", "why"),
    [
        (logps(-1.0002, -1.0), None, "float32", r"differs by 0\.0002 nats.*at most 0\.0001 in float32"),
        (logps(-1.0, -1.00008), logps(-1.0, -1.0), "float32", "old weights: its log-probabilities moved 0.00 times as far"),
        (logps(math.nan, -1.0), None, "bfloat16", "not finite"),
        (logps(-1.05, -2.0), logps(-1.03, -1.0), "bfloat16", "old weights: its log-probabilities moved 0.02 times as far"),
    ],
)
def test_a_server_with_other_weights_is_refused(now: ProbeLogps, before: ProbeLogps | None, dtype: str, why: str) -> None:
    with pytest.raises(StaleWeightsError, match=why):
        judge(now, before, dtype)


def test_in_bfloat16_a_change_below_the_rounding_shows_nothing_and_adds_up_until_it_does() -> None:
    first = logps(-1.03, -1.0)
    assert judge(first, None, "bfloat16")["conclusive"] == 0  # nothing to compare with
    assert judge(logps(-1.03, -1.05), first, "bfloat16")["conclusive"] == 0
    assert judge(logps(-1.33, -1.3), first, "bfloat16")["conclusive"] == 1


def test_in_bfloat16_no_rounding_makes_new_weights_old_ones() -> None:
    """The worst that rounding of one size can do before and after a change: all of it against the change, at every token."""
    change = torch.linspace(0.1, 1.0, 64, dtype=torch.float64)
    rounding = change / 4.01
    start = torch.full_like(change, -1.0)
    worst = ProbeLogps(server=start + change - rounding, trainer=start + change)
    found = judge(worst, ProbeLogps(server=start + rounding, trainer=start), "bfloat16")
    assert found["conclusive"] == 1
    assert 0.5 < found["followed"] < 0.51


def test_the_seeds_of_neighbours_are_far_apart_and_none_is_there_twice() -> None:
    seeds = [
        request_seed(RandomKey(seed=seed, stream=stream, step=step), prompt, index)
        for seed, stream, step, prompt, index in itertools.product(range(3), Stream, range(5), range(20), range(16))
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert min(abs(one - other) for one, other in itertools.pairwise(sorted(seeds))) > 16


def test_the_file_holds_what_the_manifest_says_and_is_gone_afterwards(tiny_model: Any, tmp_path: Path) -> None:
    policy = policy_of(tiny_model)
    manifest = manifest_of(policy)
    with weights_file(policy, tmp_path) as path:
        tensors = load_file(path)
        assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
            name: entry["shape"] for name, entry in manifest.items()
        }
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()
    assert "lm_head.weight" not in manifest  # tied
    with torch.no_grad():
        tiny_model.model.norm.weight.add_(1e-3)
    changed = manifest_of(policy)
    assert [name for name in changed if changed[name] != manifest[name]] == ["model.norm.weight"]


def test_weights_that_are_not_finite_are_not_sent(tiny_model: Any) -> None:
    with torch.no_grad():
        tiny_model.model.norm.weight[0] = math.inf
    with pytest.raises(TrainingError, match=r"not sent to the server: model\.norm\.weight"):
        manifest_of(policy_of(tiny_model))


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers each path with its (status, body)."""

    script: dict[str, tuple[int, Any]]
    asked: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body = self.script.get(self.path, (200, {}))
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[tuple[VllmClient, type[Scripted]]]:
    """A client, and the handler of a server that follows a script."""
    handler = type("Handler", (Scripted,), {"script": {}, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield VllmClient(f"http://127.0.0.1:{listening.server_port}", None, 4), handler
        listening.shutdown()


def completion(**changed: Any) -> dict[str, Any]:
    tokens = {"token_ids": [5, 1], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}
    return {"choices": [{**tokens, **changed}]}


def test_a_completion_is_its_tokens_and_their_log_probabilities(server: Any) -> None:
    client, handler = server
    handler.script["/v1/completions"] = (200, completion())
    [found] = client.complete([REQUEST], SETTINGS, [1])
    assert (found.token_ids, found.logps) == ((5, 1), (-0.5, -0.25))


@pytest.mark.parametrize(
    ("status", "body", "error", "why"),
    [
        (500, b"boom", ServerGoneError, "refused with 500.*boom"),
        (400, {"error": "context"}, SamplerError, "refused with 400"),
        (200, completion(finish_reason="abort"), ServerGoneError, "cut off"),
    ],
)
def test_what_a_server_may_answer(server: Any, status: int, body: Any, error: type[SamplerError], why: str) -> None:
    client, handler = server
    handler.script["/v1/completions"] = (status, body)
    with pytest.raises(error, match=why) as caught:
        client.complete([REQUEST], SETTINGS, [1])
    assert caught.type is error


def test_weights_are_loaded_while_nothing_runs_and_the_cache_is_emptied(server: Any) -> None:
    client, handler = server
    handler.script["/reset_prefix_cache"] = (200, {"success": True})
    handler.script["/reset_encoder_cache"] = handler.script["/reset_mm_cache"] = (200, b"")
    client.load_weights("file", {}, "v1")
    assert handler.asked == [
        "/pause?mode=wait",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/resume",
    ]
    handler.script["/reset_prefix_cache"] = (200, {"success": False})
    with pytest.raises(SamplerError, match="prefix cache was not emptied"):
        client.load_weights("file", {}, "v2")


def test_the_servers_context_and_model_are_checked(server: Any) -> None:
    client, handler = server
    handler.script["/v1/models"] = (200, {"data": [{"id": "m", "max_model_len": 64}]})
    client.open_model(64)
    with pytest.raises(SamplerError, match="its context is 64 tokens"):
        client.open_model(65)
    answers: tuple[Any, ...] = ({"data": []}, [], b"<html>")
    for answer in answers:
        handler.script["/v1/models"] = (200, answer)
        with pytest.raises(SamplerError, match="with one model"):
            client.open_model(1)


class Engine:
    """A vLLM that has the weights of another policy, which it is given, and is lost at some calls."""

    def __init__(self, policy: Any) -> None:
        self.held, self.live, self.lost_at, self.calls, self.version = copy.deepcopy(policy), policy, set[int](), 0, "default"

    def awake(self) -> Any:
        return contextlib.nullcontext()

    def weight_version(self) -> str:
        return self.version

    def load_weights(self, path: str, manifest: Any, version: str) -> None:
        self.version = version
        if not self.keeps_old:
            self.held = copy.deepcopy(self.live)

    keeps_old = False

    def prompt_logps(self, prompts: Any) -> list[float]:
        with torch.no_grad():
            rows = [self.held.model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1) for row in prompts]
        return [float(row[at, token]) for row, ids in zip(rows, prompts, strict=True) for at, token in enumerate(ids[1:])]

    def complete(self, requests: Any, settings: Any, end_tokens: Any) -> list[Completion]:
        self.calls += 1
        if self.calls in self.lost_at:
            self.version = "default"
            raise ServerGoneError("no answer")
        return [Completion(token_ids=(5 + request.seed % 7, 1), logps=(-0.5, -0.25)) for request in requests]


@pytest.fixture
def sampling(tiny_model: Any, tmp_path: Path) -> tuple[Any, Engine, Callable[[], Any]]:
    """(policy, engine, what samples two completions of each of two prompts)."""
    policy = policy_of(tiny_model)
    engine = Engine(policy)
    prompts = [Prompt(id=one, content="", text="", token_ids=(5 + one, 7, 9), columns={}) for one in range(2)]
    sampler = VllmSampler(lambda: engine, policy, [one.token_ids for one in prompts], folder=tmp_path)  # type: ignore[arg-type,return-value]
    settings = SamplingSettings(group_size=2, max_completion_tokens=3)
    return policy, engine, lambda: sampler.sample(prompts, settings, RandomKey(seed=1, stream=Stream.TRAIN, step=1))


def test_a_lost_server_is_given_the_weights_again_and_asked_for_the_same(sampling: Any) -> None:
    _, engine, sample = sampling
    whole = sample()
    assert sample().figures.keys() == {"time/transfer_seconds"}  # it has the weights
    engine.lost_at = {3, 4}
    again = sample()
    assert torch.equal(again.completion_ids, whole.completion_ids)
    assert again.completion_mask.sum(dim=1).tolist() == [2, 2, 2, 2]
    assert again.figures["sampler/probe/difference"] < 1e-5
    engine.lost_at = set(range(100))
    with pytest.raises(ServerGoneError, match="no answer"):
        sample()


def test_a_server_that_does_not_use_what_it_is_given_is_found_out(sampling: Any) -> None:
    policy, engine, sample = sampling
    sample()
    engine.keeps_old = True
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(1.1)
    with pytest.raises(StaleWeightsError, match="old weights"):
        sample()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin's modules that need no vLLM."""
    monkeypatch.syspath_prepend(str(environment.PLUGIN))
    monkeypatch.setenv("GRPO_VLLM_KEY", "secret")
    yield __import__("grpo_vllm.guard", fromlist=["guard"])
    for name in [name for name in sys.modules if name.startswith("grpo_vllm")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("kind", "headers", "passes"),
    [
        ("http", [(b"authorization", b"Bearer secret")], True),
        ("http", [(b"authorization", b"Bearer secret ")], False),
        ("http", [(b"authorization", b"Bearer secret"), (b"authorization", b"Bearer other")], False),
        ("http", [], False),
        ("websocket", [], False),
        ("lifespan", None, True),
    ],
)
def test_only_who_has_the_key_gets_through(plugin: Any, kind: str, headers: Any, passes: bool) -> None:
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["type"])

    async def send(message: Any) -> None:
        sent.append(message.get("status", message.get("code")))

    scope = {"type": kind} if headers is None else {"type": kind, "headers": headers}
    asyncio.run(plugin.RequireKey(app)(scope, None, send))
    assert bool(reached) is passes
    assert passes or sent[0] in (401, 1008)


VLLM = {"rollout.engine": "vllm", "model.dtype": "float32"}
COLOCATED = {**VLLM, "rollout.vllm.mode": "colocate"}


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"rollout.vllm.in_flight": 8}, r"rollout\.vllm\.in_flight: has no effect with rollout\.engine embedded"),
        ({**VLLM, "rollout.vllm.url": "http://10.0.0.1:1"}, r"10\.0\.0\.1:1 is not an address of this machine"),
        ({**VLLM, "rollout.vllm.url": "http://gpu.example:1"}, r"gpu\.example:1 is not an address of this machine"),
        ({**VLLM, "rollout.vllm.url": "http://["}, "is not an address of this machine"),
        ({**VLLM, "rollout.vllm.url": "http://localhost:1", "rollout.vllm.python": "x"}, "python: has no effect with"),
        ({**COLOCATED, "rollout.vllm.url": "http://localhost:1"}, "url: has no effect with rollout.vllm.mode colocate"),
        ({**COLOCATED, "rollout.vllm.python": "x"}, "python: has no effect with rollout.vllm.mode colocate"),
        ({**VLLM, "rollout.vllm.sleep": True}, "sleep: has no effect with rollout.vllm.mode server"),
        ({**COLOCATED, "rollout.vllm.sleep": True, "training.device": "cpu"}, r"sleep: true needs a GPU"),
        ({**VLLM, "rollout.top_k": 5}, r"rollout\.top_k 5: with rollout\.engine vllm"),
        ({**VLLM, "training.engine": "trl"}, "vllm is not possible with training.engine trl"),
    ],
)
def test_settings_that_contradict_the_server_are_refused(overrides: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_config("quickstart", overrides)


def test_a_server_is_not_given_the_passwords_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI", "GRPO_SECRET", "PYTHONPATH"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("LANG", "C")
    settings = ServerSettings(
        python=tmp_path, model=tmp_path, dtype="float32", context=1, threads=1, kv_cache_gib=1, log_file=tmp_path / "log"
    )
    given = server_environment(settings, "the key")
    assert "hunter2" not in given.values()
    assert (given["GRPO_VLLM_KEY"], given["LANG"]) == ("the key", "C")
