"""Weights come back as they were written; tied ones are stored once."""

import torch
from safetensors.torch import load_file

from grpo_core.policy.weights import first_names, save_weights


def test_many_megabytes_come_back(tmp_path):
    weights = {
        "large": torch.randn(3000, 1001),
        "turned": torch.randn(700, 300).T,
        "gradient": torch.randn(5, requires_grad=True),
    }
    save_weights(weights, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name].detach()) for name in weights)


def test_tied_weights_are_stored_under_their_first_name():
    one, other = torch.ones(2, 3), torch.zeros(2, 3)
    assert list(first_names({"embed": one, "other": other, "head": one})) == ["embed", "other"]
    assert list(first_names({"embed": one, "first row": one[0]})) == ["embed", "first row"]
