"""Images on a real vLLM: its log-probabilities are the policy's, and what it may see instead is found at the first transfer.

Skipped where vLLM's interpreter cannot import torchvision, with what it says.
"""

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from grpo_core.config import apply_overrides, validate_config
from grpo_core.errors import StaleWeightsError
from grpo_core.generation.vllm import client as client_module
from grpo_core.generation.vllm import sampler as sampler_module
from grpo_core.generation.vllm.client import Request, VllmClient
from grpo_core.generation.vllm.opening import VllmServer
from grpo_core.generation.vllm.pictured import Pictured
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.machine.images import ImageFolder
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.types import ModelInput, Prompt
from tests.conftest import build_values
from tests.support.vision_models import SIDE, picture, question, write_vision_model
from tests.vllm.conftest import PYTHON, settings_of
from tests.vllm.inputs import KEY, SETTINGS, move


def why_no_images() -> str:
    if not PYTHON.exists():
        return f"no environment with vLLM ({PYTHON})"
    found = subprocess.run([PYTHON, "-c", "import torchvision"], check=False, capture_output=True, text=True)
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


pytestmark = pytest.mark.skipif(bool(why := why_no_images()), reason=f"vLLM reads no images here: {why}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaVA of two layers with 64 numbers a head, whose tower has the names of published ones."""
    model = write_vision_model(tmp_path_factory.mktemp("pictured") / "llava", "llava", times=8)
    weights = {
        name.replace("vision_tower.", "vision_tower.vision_model."): one
        for name, one in load_file(model / "model.safetensors").items()
    }
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture(scope="module")
def servers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, VllmClient]]:
    """A server, and one whose processor resizes otherwise."""
    other = shutil.copytree(folder, folder.with_name("other"))
    for file in (other / "processor_config.json", other / "preprocessor_config.json"):
        if file.is_file():
            values = json.loads(file.read_text())
            values.get("image_processor", values)["resample"] = int(Image.Resampling.NEAREST)
            file.write_text(json.dumps(values))
    log = tmp_path_factory.mktemp("log")
    started = {name: VllmServer(settings_of(model, log / name), 4) for name, model in (("same", folder), ("other", other))}
    try:
        clients = {name: server.start() for name, server in started.items()}
        for client in clients.values():
            client.open_model(128)
        yield clients
    finally:
        for server in started.values():
            server.stop()


@pytest.fixture
def policy(folder: Path) -> Policy:
    config = validate_config(apply_overrides(build_values(folder), {"model.dtype": "float32"}))
    return open_policy(folder, config, images=folder.with_name("images"))


def prompts_of(policy: Policy, *images: Image.Image) -> list[Prompt]:
    """Return a prompt of an image each, as a run has frozen it."""
    assert policy.images is not None
    kept, found = ImageFolder(Path(policy.model.config._name_or_path).with_name("images"), 10**6), []
    for number, image in enumerate(images):
        image.save(file := io.BytesIO(), "PNG")
        text = question("llava", 1)
        ids = policy.images.processor.encode(text, [image], add_special_tokens=False).token_ids
        digests = (kept.add(file.getvalue()),)
        found.append(Prompt(id=number, content=text, text=text, token_ids=ids, columns={}, images=digests))
    return found


def sampler_of(client: VllmClient, policy: Policy, prompts: list[Prompt], place: Path) -> VllmSampler:
    return VllmSampler(lambda: client, policy, [], folder=place, pictured=prompts)


def of_the_towers_size(*numbers: int) -> list[Image.Image]:
    return [picture(number).resize((SIDE, SIDE)) for number in numbers]


def test_log_probabilities_are_the_policys_through_transfers(
    servers: dict[str, VllmClient], policy: Policy, tmp_path: Path
) -> None:
    prompts = prompts_of(policy, *of_the_towers_size(0, 1))
    sampler = sampler_of(servers["same"], policy, prompts, tmp_path)
    for seed in (1, 2):
        move(policy, seed=seed)
        drawn = sampler.sample(prompts, SETTINGS, KEY)
        apart = (policy.logps(drawn) - drawn.sampling_per_token_logps)[drawn.completion_mask]
        assert float(apart.abs().max()) < 1e-4


def by_ids_alone(self: VllmClient, prompt: ModelInput, pictured: Pictured) -> list[float]:
    return self.prompt_logps([prompt.token_ids])


@pytest.mark.parametrize("fault", ["ids without images", "tower left stale", "pause without clearing", "other resize"])
def test_what_it_sees_instead_is_found_at_the_first_transfer(
    servers: dict[str, VllmClient], policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    is_resized = fault == "other resize"
    prompts = prompts_of(policy, *([picture(1)] if is_resized else of_the_towers_size(0, 1)))
    sampler = sampler_of(servers["other" if is_resized else "same"], policy, prompts, tmp_path)
    if not is_resized:
        sampler.sample(prompts, SETTINGS, KEY)
    before = sampler_module._tensors(policy)
    move(policy, size=1e-2)
    if fault == "ids without images":
        monkeypatch.setattr(VllmClient, "pictured_logps", by_ids_alone)
    elif fault == "tower left stale":
        now = {name: before[name] if "vision_tower" in name else one for name, one in sampler_module._tensors(policy).items()}
        monkeypatch.setattr(sampler_module, "_tensors", lambda _: now)
    elif fault == "pause without clearing":
        ask = VllmClient._ask

        def kept(self: VllmClient, method: str, path: str, *rest: Any) -> Any:
            return ask(self, method, path.replace("mode=wait", "mode=wait&clear_cache=false"), *rest)

        monkeypatch.setattr(VllmClient, "_ask", kept)
        monkeypatch.setattr(client_module, "INPUT_CACHES", ())
    with pytest.raises(StaleWeightsError):
        sampler.sample(prompts, SETTINGS, KEY)


def test_a_request_with_another_image_has_other_log_probabilities(
    servers: dict[str, VllmClient], policy: Policy, tmp_path: Path
) -> None:
    one, other = prompts_of(policy, *of_the_towers_size(0, 1))
    sampler = sampler_of(servers["same"], policy, [one], tmp_path)
    sampler.sample([one], SETTINGS, KEY)
    asked = [sampler._pictured(prompt) for prompt in (one, other)]
    requests = [Request(prompt=one.model_input, seed=1, pictured=seen) for seen in asked if seen is not None]
    found = servers["same"].complete(requests, replace(SETTINGS, temperature=1.0), policy.eos_token_ids)
    assert abs(found[0].logps[0] - found[1].logps[0]) > 1e-3 or found[0].token_ids != found[1].token_ids
