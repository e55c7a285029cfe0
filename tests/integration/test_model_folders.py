"""What the checks say of a model folder is what a training meets: families that can be trained or not, and broken folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.errors import GrpoError
from grpo_core.policy.loading import check_folder, open_policy
from grpo_core.policy.lora.facts import layer_faults
from grpo_core.policy.outline import Outline
from grpo_core.policy.policy import Policy
from grpo_core.policy.sources.find import require_model, resolve_model
from tests.model_folders import BROKEN, SIZES, SOUND, SUPPORTED, UNSUPPORTED, write_family
from tests.policies import sampled

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]
Configure = Callable[..., RunConfig]


@pytest.fixture
def configure(tiny_values: dict[str, Any]) -> Configure:
    """Return a function that makes a configuration of a folder."""

    def make(folder: Path, **overrides: Any) -> RunConfig:
        short = {"rollout.max_prompt_tokens": 16, "rollout.max_completion_tokens": 12, "data.chat_template": False}
        return validate_config(apply_overrides(tiny_values, {"model.source": str(folder), **short, **overrides}))

    return make


def checked(config: RunConfig) -> Outline:
    """Return what the checks find of a model, in this process.

    Raises:
        ModelError: they refuse it.
    """
    require_model(config.model.source)
    return check_folder(Path(config.model.source))


def loaded(config: RunConfig) -> Policy:
    """Return the policy that a training would begin with."""
    return open_policy(resolve_model(config.model.source), config)


def refusal(act: Callable[[RunConfig], Any], config: RunConfig) -> str | None:
    """Return how something is refused; None where it is not."""
    try:
        act(config)
    except GrpoError as error:
        return str(error)
    return None


def difference_from_transformers(policy: Policy, folder: Path) -> float:
    """Return how far log-probabilities are at most from those of plain transformers, one row without padding at a time."""
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    drawn = sampled(policy, lengths=(5, 13, 9), group_size=3, tokens=12)
    expected = torch.zeros_like(drawn.sampling_per_token_logps)
    for row, mask in enumerate(drawn.completion_mask):
        prompt, completion = list(drawn.prompts[row // 3].token_ids), drawn.completion_ids[row][mask].tolist()
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([prompt + completion]), use_cache=False).logits[0].log_softmax(-1)
        places = torch.arange(len(completion))
        expected[row, : len(completion)] = logits[len(prompt) - 1 + places, torch.tensor(completion)]
    found = (drawn.sampling_per_token_logps, policy.logps(drawn))
    return max(float((logps - expected)[drawn.completion_mask].abs().max()) for logps in found)


@pytest.mark.parametrize("family", SUPPORTED)
def test_a_family_that_the_checks_accept_has_the_log_probabilities_of_transformers_and_can_be_adapted(
    family: str, configure: Configure, tmp_path: Path
) -> None:
    config = configure(write_family(tmp_path / "model", family, SUPPORTED[family]))
    outline, policy = checked(config), loaded(config)
    assert outline.parameters == policy.model.num_parameters()
    assert difference_from_transformers(policy, tmp_path / "model") < 1e-5
    with_adapter = configure(tmp_path / "model", **{"model.lora.rank": 2})
    assert with_adapter.model.lora is not None
    if faults := list(layer_faults(with_adapter.model.lora, outline.linear_layers)):
        assert refusal(loaded, with_adapter) == faults[0]
        return
    wanted = 2 * sum(sum(sides) for sides in outline.linear_layers.values())
    assert sum(parameter.numel() for parameter in loaded(with_adapter).parameters()) == wanted


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_a_family_that_cannot_be_trained_is_refused_at_the_load(family: str, configure: Configure, tmp_path: Path) -> None:
    said = refusal(loaded, configure(write_family(tmp_path / "model", family, UNSUPPORTED[family])))
    assert said is not None
    assert said.startswith("model.source: ")


@pytest.mark.parametrize("name", SOUND)
def test_what_leaves_a_model_is_accepted_and_loaded_with_its_values(name: str, configure: Configure, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen2", {**SIZES, "tie_word_embeddings": True})
    stored = {key: value.clone() for key, value in load_file(folder / "model.safetensors").items()}  # they are mapped
    SOUND[name](folder)
    config = configure(folder)
    assert refusal(checked, config) is None
    weights, half = dict(loaded(config).model.named_parameters()), name == "half precision"
    assert weights.keys() == stored.keys()
    assert all(torch.equal(weights[key], value.bfloat16().float() if half else value) for key, value in stored.items())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_before_and_at_the_load(name: str, configure: Configure, tmp_path: Path) -> None:
    change, part = BROKEN[name]
    folder = write_family(tmp_path / "model", "qwen2", {**SIZES, "tie_word_embeddings": True})
    change(folder)
    config = configure(folder)
    for act in (checked, loaded):
        said = refusal(act, config)
        assert said is not None
        assert part in said
        assert "\n" not in said
