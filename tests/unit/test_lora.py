"""A policy that is a base and an adapter: what its copies share, what it stores, how it acts merged, what is refused."""

import copy
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from grpo_core.errors import ModelError
from grpo_core.generation.vllm.sampler import manifest_of
from grpo_core.policy.loading import open_policy
from grpo_core.policy.lora.delta import Full, adapted_layers, delta_of, set_delta
from grpo_core.policy.reference import Reference
from tests.policies import sampled

ADAPTER = "adapter_model.safetensors"


@pytest.fixture
def opened(tiny_config, tiny_model_dir):
    """A function that opens the tiny model with an adapter."""

    def make(overrides=None, folder=tiny_model_dir):
        return open_policy(folder, tiny_config({"model.lora.rank": 4, **(overrides or {})}))

    return make


def move(policy, seed=0, amount=0.2):
    """Give the adapter other weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(amount * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def merged_model(folder, policy):
    """Return a plain model with the merged weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(dict(policy.merged_weights()), strict=False)
    assert unexpected == []
    assert set(missing) <= {"lm_head.weight"}  # tied
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 7, 9, 11, 13]])).logits


def test_at_the_start_it_is_the_base_bit_for_bit(opened, tiny_model_dir):
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    policy = opened()
    assert torch.equal(logits(policy.model), logits(plain))
    assert sum(parameter.numel() for parameter in policy.parameters()) > 0
    assert {name.rpartition(".")[2] for name, _ in adapted_layers(policy.model)} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }


def test_the_adapter_depends_on_the_seed_alone(opened):
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    first = opened().weights()
    assert torch.equal(torch.random.get_rng_state(), state), "the program's own generator was moved"
    again, other = opened().weights(), opened({"training.seed": 1}).weights()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_copies_share_the_base_and_not_the_adapter(opened):
    policy = opened()
    copied = policy.frozen_copy()
    places = {parameter.data_ptr() for parameter in policy.model.parameters() if not parameter.requires_grad}
    assert {parameter.data_ptr() for parameter in copied.model.parameters()} <= places
    assert list(copied.parameters()) == []
    before = logits(copied.model)
    move(policy)
    assert torch.equal(logits(copied.model), before)
    assert not torch.equal(logits(policy.model), before)
    twice = copied.frozen_copy()
    twice.follow(policy, 1.0)
    assert torch.equal(logits(copied.model), before)


def test_the_distance_is_that_of_merged_weights(opened):
    policy = opened()
    reference = Reference(policy)
    move(policy, 1)
    reference.sync(policy, 0.5, 1)
    move(policy, 2)
    full = [dict(one.merged_weights()) for one in (policy, reference.current)]
    expected = sum(float((full[0][name].double() - full[1][name].double()).square().sum()) for name in full[0]) ** 0.5
    assert reference.distance(policy) == pytest.approx(expected, rel=1e-5)


def test_in_bfloat16_logps_are_those_of_a_base_that_is_rounded_for_each_product(opened):
    kept = opened({"model.dtype": "bfloat16"})
    move(kept)
    whole = replace(kept, model=copy.deepcopy(kept.model).float())
    exact = opened()
    for (_, layer), (_, plain) in zip(adapted_layers(whole.model), adapted_layers(exact.model), strict=True):
        layer.base_layer.weight.data.copy_(plain.base_layer.weight)
    rollouts = sampled(kept)
    assert torch.equal(kept.logps(rollouts), whole.logps(rollouts))


THEIR_OWN_CALL = "ignore:.*is_gradient_checkpointing.*:FutureWarning"
"""PEFT's, of transformers."""


@pytest.mark.filterwarnings(THEIR_OWN_CALL)
def test_a_folder_of_it_is_one_of_peft(opened, tiny_model_dir, tmp_path):
    policy = opened({"model.lora.alpha": 12})
    move(policy)
    policy.save(tmp_path / "policy", policy.weights())
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path / "policy").eval()
    assert theirs.peft_config["default"].lora_alpha == 12
    torch.testing.assert_close(logits(theirs), logits(policy.model), rtol=0, atol=1e-6)
    merged = theirs.merge_and_unload()
    torch.testing.assert_close(logits(merged), logits(merged_model(tiny_model_dir, policy)), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings(THEIR_OWN_CALL)
def test_a_training_can_begin_with_an_adapter_of_peft(opened, tiny_model_dir, tmp_path):
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    config = PeftConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    theirs = get_peft_model(base, config).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    policy = opened({"model.lora.init_from": str(tmp_path / "adapter")})
    torch.testing.assert_close(logits(policy.model), logits(theirs), rtol=0, atol=1e-6)
    reference = Reference(policy)
    assert torch.equal(reference.current.logps(rollouts := sampled(policy)), policy.logps(rollouts))


def test_what_it_stores_is_what_it_loads(opened, tmp_path):
    policy, other = opened(), opened({"training.seed": 5})
    move(policy)
    policy.save(tmp_path / "policy", policy.weights())
    other.load(other.stored(tmp_path / "policy"))
    assert torch.equal(logits(other.model), logits(policy.model))
    reference, restored = policy.frozen_copy(), other.frozen_copy()
    move(policy, 2)
    reference.follow(policy, 0.3)
    first, *_ = (layer for _, layer in adapted_layers(reference.model))
    set_delta(first, Full(matrix=delta_of(first).dense()))
    weights = reference.weights()
    restored.load(weights)
    assert torch.equal(logits(restored.model), logits(reference.model))


@pytest.mark.parametrize(
    ("stored", "wanted", "said"),
    [
        ({"rank": 2}, {}, r"q_proj.lora_A.weight has the shape \[2, 32\], here it is \[4, 32\]"),
        ({"target_modules": ["q_proj"]}, {}, r"k_proj.lora_A.weight has the shape None"),
        ({}, {"target_modules": ["q_proj", "v_proj"]}, r"\w+_proj.lora_A.weight is no weight of this model"),
        ({"alpha": 4}, {}, r"model\.lora\.alpha: the scale is 2 here, and 1 in"),
    ],
)
def test_another_adapter_than_the_configurations_is_refused(opened, tmp_path, stored, wanted, said):
    policy = opened({f"model.lora.{key}": value for key, value in stored.items()})
    policy.save(tmp_path / "adapter", policy.weights())
    own = {f"model.lora.{key}": value for key, value in wanted.items()}
    with pytest.raises(ModelError, match=said):
        opened({"model.lora.init_from": str(tmp_path / "adapter"), **own})


def test_a_server_gets_the_merged_weights_by_the_names_of_the_base(opened, tiny_model_dir):
    policy = opened({"model.dtype": "bfloat16"})
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    before = manifest_of(policy)
    assert before.keys() == dict(plain.named_parameters()).keys()
    move(policy)
    after = manifest_of(policy)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {name for name in after if name.endswith("_proj.weight")}


def test_the_stated_bound_is_what_is_left_of_all_errors_and_holds(opened):
    policy = opened({"model.lora.reference_rank": 4})
    reference, exact, bound = Reference(policy), None, 0.0
    for step in range(4):
        move(policy, step)
        reference.sync(policy, 0.4, step)
        own = {name: delta_of(layer).dense().double() for name, layer in adapted_layers(policy.model)}
        exact = {name: 0.4 * delta + (0.0 if exact is None else 0.6 * exact[name]) for name, delta in own.items()}
        bound = 0.6 * bound + reference.dropped
        assert reference.error_bound == pytest.approx(bound, rel=1e-12)
    kept = {name: delta_of(layer).dense().double() for name, layer in adapted_layers(reference.current.model)}
    actual = sum(float((kept[name] - exact[name]).square().sum()) for name in kept) ** 0.5
    assert 0.5 * bound < actual <= bound * (1 + 1e-5)


def gradients(policy, rollouts, weights):
    for parameter in policy.parameters():
        parameter.grad = None
    figures = policy.forward(rollouts, range(rollouts.num_rows))
    (figures.logps * weights).sum().backward()
    return {name: value.grad.clone() for name, value in policy.model.named_parameters() if value.requires_grad}


@pytest.mark.filterwarnings(THEIR_OWN_CALL)
def test_gradients_are_those_of_peft_and_autograd_row_by_row(opened, tiny_model_dir, tmp_path):
    policy = opened()
    move(policy)
    policy.save(tmp_path / "policy", policy.weights())
    rollouts = sampled(policy)
    weights = torch.randn(rollouts.completion_mask.shape, generator=torch.Generator().manual_seed(2)) * rollouts.completion_mask
    found = gradients(policy, rollouts, weights)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path / "policy", is_trainable=True).eval()
    for row, (ids, mask) in enumerate(zip(rollouts.completion_ids, rollouts.completion_mask, strict=True)):
        prompt = torch.tensor(rollouts.prompts[row // rollouts.group_size].token_ids)
        kept = ids[mask]
        row_logits = theirs(input_ids=torch.cat([prompt, kept]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(row_logits, dim=-1).gather(1, kept.unsqueeze(1)).squeeze(1)
        (logps * weights[row, : len(kept)]).sum().backward()
    expected = {name.removeprefix("base_model.model."): value.grad for name, value in theirs.named_parameters()}
    assert found.keys() == {name for name, gradient in expected.items() if gradient is not None}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_gives_the_same_gradients(opened):
    kept, again = opened(), opened({"training.gradient_checkpointing": True})
    for policy in (kept, again):
        move(policy)
    rollouts = sampled(kept)
    weights = torch.ones(rollouts.completion_mask.shape)
    one, other = gradients(kept, rollouts, weights), gradients(again, rollouts, weights)
    assert all(torch.equal(one[name], other[name]) for name in one)
