"""Weights are written byte for byte as safetensors writes them, and transformers loads them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from grpo_core.machine.disk import sha256_of
from grpo_core.policy.weights import first_names
from grpo_core.policy.weights_file import NAMES, save_weights


def tensor(dtype, shape):
    """Numbers of any type: bits, so that no type rounds them."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return numbers % 2 == 0 if dtype == torch.bool else numbers.to(dtype)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable()),
        st.tuples(st.sampled_from(list(NAMES)), st.lists(st.integers(0, 5), max_size=3)),
        max_size=8,
    )
)
def test_the_bytes_are_those_of_the_library(tmp_path_factory, kinds):
    folder = tmp_path_factory.mktemp("weights")
    weights = {name: tensor(*kind) for name, kind in kinds.items()}
    digest = save_weights(weights, folder / "ours")
    save_file(weights, folder / "theirs", metadata={"format": "pt"})
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()
    assert digest == sha256_of(folder / "ours")


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


def test_a_type_that_the_format_has_not_is_refused(tmp_path):
    with pytest.raises(KeyError, match="complex64"):
        save_weights({"a": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "file")


def test_tied_weights_are_stored_under_their_first_name():
    one, other = torch.ones(2, 3), torch.zeros(2, 3)
    assert list(first_names({"embed": one, "other": other, "head": one})) == ["embed", "other"]
    assert list(first_names({"embed": one, "first row": one[0]})) == ["embed", "first row"]
