"""Prompts with images put to a server that speaks vLLM's protocol, whose model and processor are transformers' own."""

import base64
import copy
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops

from grpo_core.errors import SamplerError, StaleWeightsError
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.generation.vllm import client as client_module
from grpo_core.generation.vllm.client import Request, VllmClient
from grpo_core.generation.vllm.colocated import ColocatedVllm
from grpo_core.generation.vllm.opening import open_vllm_sampler
from grpo_core.generation.vllm.pictured import Pictured, require_ids
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.types import ModelInput
from tests.support.vision_models import picture, question
from tests.support.vllm_pictured import PicturedServer, serving
from tests.unit.test_vision_models import SEEN, TEXTS, Opened, digests, folder, opened_kind, processor_of

__all__ = ["digests", "folder"]
KEY = RandomKey(seed=3, stream=Stream.TRAIN, step=1)
SETTINGS = SamplingSettings(group_size=2, max_completion_tokens=3)


class Asked:
    """A policy, a server with a model of its own, and the sampler between them."""

    def __init__(self, opened: Opened, address: str, server: PicturedServer, place: Path) -> None:
        kind = opened.kind
        texts = [question(kind, len(images), text) for images, text in zip(SEEN, TEXTS, strict=True)]
        self.prompts = [replace(prompt, text=text) for prompt, text in zip(opened.prompts, texts, strict=True)]
        self.policy, self.server, client = opened.policy, server, VllmClient(address, None, 2)
        client.open_model(1000)
        of_text = [prompt.token_ids for prompt in self.prompts if not prompt.images]
        seen = [prompt for prompt in self.prompts if prompt.images]
        self.sampler = VllmSampler(lambda: client, self.policy, of_text, folder=place, pictured=seen, add_special_tokens=True)

    def sample(self) -> SampledCompletions:
        return self.sampler.sample(self.prompts, SETTINGS, KEY)

    def move(self) -> None:
        with torch.no_grad():
            for weights in self.policy.parameters():
                weights.mul_(1.1)


@pytest.fixture
def asked(folder: Path, digests: list[str], tmp_path: Path) -> Iterator[Asked]:
    opened = opened_kind(folder, digests, "llava")
    server = PicturedServer(copy.deepcopy(opened.policy.model).eval(), copy.deepcopy(processor_of(opened.policy)))
    with serving(server) as address:
        yield Asked(opened, address, server, tmp_path)


def test_what_a_server_draws_of_prompts_with_and_without_images_has_the_policys_log_probabilities(asked: Asked) -> None:
    for _ in range(2):
        asked.move()
        drawn = asked.sample()
        assert drawn.figures["sampler/probe/difference"] < 1e-4
        apart = (asked.policy.logps(drawn) - drawn.sampling_per_token_logps)[drawn.completion_mask]
        assert float(apart.abs().max()) < 1e-4


def test_a_request_holds_text_and_images_in_their_order_as_they_were_decoded(asked: Asked) -> None:
    asked.sample()
    body = next(body for body in asked.server.bodies if len(body["messages"][0]["content"]) > 3 and "seed" in body)
    parts = body["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "image_url", "text"]
    assert [part["text"] for part in parts if "text" in part] == [" ", f" {TEXTS[2]}"]
    files = [part["image_url"]["url"].removeprefix("data:image/png;base64,") for part in parts if "text" not in part]
    for file, number in zip(files, SEEN[2], strict=True):
        image = Image.open(io.BytesIO(base64.b64decode(file, validate=True)))
        assert ImageChops.difference(image, picture(number)).getbbox() is None
    wanted = {"add_generation_prompt": False, "return_token_ids": True, "logprobs": True, "temperature": 1.0, "model": "policy"}
    assert {name: body[name] for name in wanted} == wanted
    assert "prompt" not in body


@pytest.mark.parametrize("fault", ["blind", "stale tower", "caches not emptied", "other resize"])
def test_a_server_that_sees_something_else_is_found_out_before_anything_is_drawn(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    asked.sample()
    asked.server.bodies.clear()
    asked.move()
    if fault == "blind":
        asked.server.is_blind = True
    elif fault == "stale tower":
        asked.server.keeps_tower = True
    elif fault == "caches not emptied":
        monkeypatch.setattr(client_module, "INPUT_CACHES", ())
    else:
        asked.server.processor.image_processor.resample = Image.Resampling.NEAREST
    with pytest.raises(StaleWeightsError):
        asked.sample()
    assert not any("seed" in body for body in asked.server.bodies)


def test_other_tokens_than_the_frozen_ones_are_refused_with_the_first_that_differs(asked: Asked) -> None:
    asked.server.drops_a_token = True
    with pytest.raises(SamplerError, match=r"vLLM makes \d+ tokens of a prompt with images, and the frozen prompt has \d+"):
        asked.sample()
    require_ids([1, 2], (1, 2))
    for found, said in (([1, 3], "number 1, 3 instead of 2"), ([1], "number 1, the end instead of 2")):
        with pytest.raises(SamplerError, match=f"the first that differs is {said}"):
            require_ids(found, (1, 2))


def test_an_environment_that_cannot_read_images_is_refused_with_the_reason(
    folder: Path, digests: list[str], tmp_path: Path, tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, python = tiny_config({"rollout.engine": "vllm"}), tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho 'RuntimeError: operator torchvision::nms does not exist' >&2\ntest \"$2\" != 'import torchvision'\n"
    )
    python.chmod(0o700)
    monkeypatch.setenv("GRPO_VLLM_PYTHON", str(python))
    for kind, why in (("llava", r"cannot import torchvision.*nms does not exist.*CUDA"), ("paligemma", "in both directions")):
        opened = opened_kind(folder, digests, kind)
        with pytest.raises(SamplerError, match=why):
            open_vllm_sampler(config, opened.policy, tmp_path, opened.prompts, tmp_path)


class Inside:
    """What a vLLM in this process is asked with, and answers: one token for each prompt."""

    asked: list[dict[str, Any]]

    def get_tokenizer(self) -> Any:
        return lambda text, add_special_tokens: {"input_ids": [len(text), int(add_special_tokens)]}

    def generate(self, rows: list[dict[str, Any]], params: list[Any], **_: Any) -> list[Any]:
        self.asked = rows
        output = SimpleNamespace(token_ids=[1], logprobs=[{1: SimpleNamespace(logprob=-0.5)}], finish_reason="stop")
        places = [None, {4: SimpleNamespace(logprob=-1.0)}]
        return [SimpleNamespace(prompt_token_ids=[3, 4], prompt_logprobs=places, outputs=[output]) for _ in rows]


def test_in_the_process_it_is_asked_with_tokens_that_hold_one_for_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **given: given))
    engine = ColocatedVllm.__new__(ColocatedVllm)
    engine._llm = inside = Inside()
    seen = Pictured(text="<image>?", placeholder="<image>", images=(picture(0),), add_special_tokens=False)
    prompt = ModelInput((3, 4), ("digest",))
    requests = [Request(prompt=prompt, seed=1, pictured=seen), Request(prompt=ModelInput((3, 4)), seed=2)]
    assert [one.logps for one in engine.complete(requests, SETTINGS, [1])] == [(-0.5,), (-0.5,)]
    assert inside.asked == [
        {"prompt_token_ids": [8, 0], "multi_modal_data": {"image": [*seen.images]}},
        {"prompt_token_ids": [3, 4]},
    ]
    assert engine.pictured_logps(prompt, seen) == [-1.0]
    with pytest.raises(SamplerError, match="number 1, 4 instead of 5"):
        engine.pictured_logps(ModelInput((3, 5), ("digest",)), seen)
