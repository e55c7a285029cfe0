"""In bfloat16 the sampler uses an adapter as the trainer does: a sum of matrix and adapter would round much of it away."""

from dataclasses import replace

import pytest
import torch

from grpo_core.policy.device import compute_in
from grpo_core.policy.fast.decoding import LeanDecoding
from grpo_core.policy.fast.products import prepared_weights
from grpo_core.policy.loading import open_policy
from grpo_core.policy.lora.delta import adapted_layers, base_layer, delta_of, set_delta
from tests.support.processor import PACKED


@pytest.fixture
def opened(tiny_config, tiny_model_dir):
    """A function that opens the tiny model in bfloat16 with an adapter that adds about a tenth of a weight's last place."""

    def make(overrides=None):
        values = {"model.dtype": "bfloat16", "model.lora.rank": 4, **(overrides or {})}
        policy = open_policy(tiny_model_dir, tiny_config(values))
        generator = torch.Generator().manual_seed(0)
        for _, layer in adapted_layers(policy.model):
            weight, delta = base_layer(layer).weight.float(), delta_of(layer)
            b = torch.randn(delta.b.shape, generator=generator)
            added = delta.scale * b @ delta.a
            b *= 0.1 * 2**-8 * weight.abs().mean() / added.abs().mean()
            set_delta(layer, replace(delta, b=b))
        return policy

    return make


def layer_of(policy, name):
    return next(layer for found, layer in adapted_layers(policy.model) if found.endswith(f"layers.0.{name}"))


def kept(products, layer):
    """Return how much of what an adapter changes in the trainer's product another product changes, by regression."""
    rows = torch.randn(20_000, base_layer(layer).in_features, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with torch.no_grad(), compute_in("bfloat16", rows.device):
        without = base_layer(layer)(rows).double()
        expected, found = (product(rows).double() - without for product in (layer, products))
    assert expected.any()
    return float((found * expected).sum() / expected.square().sum())


MODULES = {
    "self_attn.o_proj": lambda layer, rows: layer.out(rows)[0],
    "mlp.gate_proj": lambda layer, rows: layer.gate_and_up(rows)[0],
    "mlp.up_proj": lambda layer, rows: layer.gate_and_up(rows)[1],
    "mlp.down_proj": lambda layer, rows: layer.down(rows)[0],
    "self_attn.v_proj": lambda layer, rows: layer.qk_and_v(rows)[1],
    "self_attn.q_proj": lambda layer, rows: layer.qk_and_v(rows)[0][:, :Q_WIDTH],
    "self_attn.k_proj": lambda layer, rows: layer.qk_and_v(rows)[0][:, Q_WIDTH:],
}
Q_WIDTH = 32


@pytest.mark.parametrize("least", [100_000, 1000], ids=["joined", "apart"])
@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("targets", [None, ["q_proj", "up_proj"]], ids=["all", "some"])
def test_products_of_layers_run_here_use_adapters_as_the_trainer_does(opened, monkeypatch, least, packed, targets):
    monkeypatch.setattr("grpo_core.policy.fast.products.LEAST_WEIGHTS", least)
    policy = opened({"model.lora.target_modules": targets})
    layer = LeanDecoding.of(policy.model, torch.bfloat16, packed=packed).layers[0]
    for name, product in MODULES.items():
        if targets is None or name.rpartition(".")[2] in targets:
            found = kept(lambda rows, product=product: product(layer, rows), layer_of(policy, name))
            assert found == pytest.approx(1, abs=0.1), name


@pytest.mark.parametrize("packed", PACKED)
def test_products_of_transformers_layers_use_adapters_as_the_trainer_does(opened, monkeypatch, packed):
    monkeypatch.setattr("grpo_core.policy.fast.products.LEAST_WEIGHTS", 1000)
    policy = opened()
    layer = layer_of(policy, "mlp.up_proj")
    with prepared_weights(policy.model, "bfloat16", packed=packed):
        prepared = vars(layer)["forward"]
    assert kept(prepared, layer) == pytest.approx(1, abs=0.1)


def test_a_copy_whose_average_is_a_matrix_is_used_as_it_is_measured(opened, monkeypatch):
    monkeypatch.setattr("grpo_core.policy.lora.delta.is_larger_than_matrix", lambda _: True)
    policy = opened()
    average = policy.frozen_copy()
    average.follow(policy, 0.5)
    layer = LeanDecoding.of(average.model, torch.bfloat16, packed=False).layers[0]
    assert kept(lambda rows: layer.out(rows)[0], layer_of(average, "self_attn.o_proj")) == pytest.approx(1, abs=0.1)
