"""Every way in which a server can keep old or broken weights is found at the first transfer."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_core.errors import SamplerError, StaleWeightsError
from grpo_core.generation.vllm import sampler as sampler_module
from grpo_core.generation.vllm.client import VllmClient
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.policy import Policy
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move

IN_THE_ENGINE = ("nothing", "head not packed", "one stale", "half")


@pytest.mark.parametrize("mistake", IN_THE_ENGINE)
def test_a_server_that_does_not_use_the_weights_is_found_out(
    sampler: VllmSampler, policy: Policy, fault: Path, mistake: str
) -> None:
    move(policy)
    fault.write_text(mistake)
    with pytest.raises(StaleWeightsError, match=r"vLLM computes with (old|other|broken) weights"):
        sampler.sample(PROMPTS[:2], SETTINGS, KEY)
    fault.write_text("")
    assert sampler.sample(PROMPTS[:2], SETTINGS, KEY).figures["sampler/probe/difference"] < 1e-4


def test_weights_that_are_no_numbers_in_the_engine_end_the_call(sampler: VllmSampler, policy: Policy, fault: Path) -> None:
    move(policy)
    fault.write_text("not a number")
    with pytest.raises(SamplerError, match=r"values are not JSON compliant|not finite"):
        sampler.sample(PROMPTS[:2], SETTINGS, KEY)


def spoil(path: Path, how: str) -> None:
    """Change a file of weights behind the back of its manifest."""
    tensors, name = load_file(path), "model.layers.0.mlp.up_proj.weight"
    kept = {key: value for key, value in tensors.items() if how != "missing" or key != name}
    other = {"stale": tensors[name] - 1e-3, "shape": tensors[name][:-1].contiguous()}
    save_file({**kept, **({name: other[how]} if how in other else {})}, path)


@pytest.mark.parametrize("how", ["missing", "stale", "shape"])
def test_a_file_that_is_not_what_was_announced_is_refused_and_the_next_one_taken(
    sampler: VllmSampler, policy: Policy, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    move(policy)
    save = sampler_module.save_file

    def save_badly(tensors: dict[str, torch.Tensor], path: Path) -> None:
        save(tensors, path)
        spoil(path, how)

    with monkeypatch.context() as patch:
        patch.setattr(sampler_module, "save_file", save_badly)
        with pytest.raises(SamplerError, match="update_weights"):
            sampler.sample(PROMPTS[:2], SETTINGS, KEY)
    assert sampler.sample(PROMPTS[:2], SETTINGS, KEY).figures["sampler/probe/difference"] < 1e-4


def test_weights_that_somebody_else_loads_are_noticed(sampler: VllmSampler, policy: Policy) -> None:
    client = sampler._engine
    assert isinstance(client, VllmClient)
    client._ask("POST", "/update_weight_version", {"new_version": "theirs"})
    drawn = sampler.sample(PROMPTS[:2], SETTINGS, KEY)  # given again, since the server's are others
    assert drawn.figures["sampler/probe/difference"] < 1e-4


def test_weights_that_did_not_change_are_not_sent_again(sampler: VllmSampler) -> None:
    drawn = sampler.sample(PROMPTS[:2], SETTINGS, KEY)
    assert "sampler/probe/difference" not in drawn.figures


def test_the_same_seeds_give_the_same_tokens_alone_and_together(sampler: VllmSampler) -> None:
    together, alone = (sampler.sample(prompts, SETTINGS, KEY) for prompts in (PROMPTS, PROMPTS[:1]))
    length = alone.completion_ids.shape[1]
    assert torch.equal(together.completion_ids[:4, :length], alone.completion_ids)
    assert len({tuple(row) for row in together.completion_ids.tolist()}) > 24
