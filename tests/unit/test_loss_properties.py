"""What must not change the loss or its gradient, over all of its options at once: order of rows, padding, micro-batches."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.loss import Denominators, grpo_loss
from grpo_core.algorithm.shaping import shape_advantages

AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
ESTIMATORS = ("k1", "k2", "k3", "full")
EACH = settings(max_examples=12)
"""Of each aggregation with each estimator: drawn as well, some would be tried once, on one empty row."""
every_objective = pytest.mark.parametrize(("aggregation", "estimator"), list(product(AGGREGATIONS, ESTIMATORS)))
ROUNDING = 1e-12
L_MAX = 9


@dataclass(frozen=True)
class Case:
    """Tensors of an optimizer step and the options of its objective."""

    tensors: dict[str, Tensor]
    mask: Tensor
    options: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn, aggregation: str, estimator: str) -> Case:
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)

    logps = noise(1.0) - 2
    per_token_advantages = draw(st.booleans())
    tensors = {
        "per_token_logps": logps,
        "old_per_token_logps": logps + noise(0.3),
        "ref_per_token_logps": logps + noise(0.5),
        "sampler_weights": noise(0.2).abs(),
        "full_kl": noise(1.0).abs(),
        "advantages": noise(1.0) if per_token_advantages else noise(1.0)[:, 0],
    }
    options = {
        "beta": draw(st.sampled_from([0.0, 0.3])),
        "kl_estimator": estimator,
        "kl_correction": "none" if estimator == "full" else draw(st.sampled_from(["none", "importance"])),
        "clip_eps": draw(st.sampled_from([None, 0.1])),
        "dual_clip": draw(st.sampled_from([None, 1.3])),
        "ratio": draw(st.sampled_from(["token", "sequence"])),
        "aggregation": aggregation,
    }
    return Case(tensors, torch.arange(width) < torch.tensor(lengths).unsqueeze(1), options)


def loss_and_gradient(case: Case, denominators: Denominators | None = None) -> tuple[Tensor, Tensor]:
    """Return the total and its gradient with respect to the policy's log-probabilities and the exact KL, at the mask."""
    leaves = {name: case.tensors[name].clone().requires_grad_() for name in ("per_token_logps", "full_kl")}
    terms = grpo_loss(
        **{**case.tensors, **leaves},
        loss_mask=case.mask,
        denominators=denominators or Denominators.of(case.mask, L_MAX),
        **case.options,
    )
    if terms.total.requires_grad:
        terms.total.backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves.values()]
    return terms.total.detach(), torch.stack(gradients)


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=ROUNDING, atol=ROUNDING)


@every_objective
@EACH
@given(data=st.data())
def test_the_order_of_the_rows_is_irrelevant(aggregation: str, estimator: str, data: st.DataObject) -> None:
    case = data.draw(cases(aggregation, estimator))
    order = torch.tensor(data.draw(st.permutations(range(len(case.mask)))))
    moved = Case({name: values[order] for name, values in case.tensors.items()}, case.mask[order], case.options)
    total, gradient = loss_and_gradient(case)
    same(loss_and_gradient(moved), (total, gradient[:, order]))


@every_objective
@pytest.mark.parametrize("garbage", [-7.0, float("inf"), float("-inf")])
@settings(max_examples=4)
@given(extra=st.integers(1, 3), data=st.data())
def test_padding_is_irrelevant_whatever_is_in_it(
    aggregation: str, estimator: str, extra: int, garbage: float, data: st.DataObject
) -> None:
    case = data.draw(cases(aggregation, estimator))

    def padded(name: str, values: Tensor) -> Tensor:
        if values.dim() == 1:
            return values
        fill = garbage if name.endswith("logps") else 1.0
        return torch.cat([values, values.new_full((len(values), extra), fill)], dim=1)

    wider = torch.cat([case.mask, case.mask.new_zeros(len(case.mask), extra)], dim=1)
    total, gradient = loss_and_gradient(case)
    padded_case = Case({name: padded(name, values) for name, values in case.tensors.items()}, wider, case.options)
    same(loss_and_gradient(padded_case), (total, torch.nn.functional.pad(gradient, (0, extra))))


@every_objective
@EACH
@given(data=st.data())
def test_any_micro_batches_add_up_to_the_whole(aggregation: str, estimator: str, data: st.DataObject) -> None:
    case = data.draw(cases(aggregation, estimator))
    piece_of_row = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(case.mask), max_size=len(case.mask))))
    whole = Denominators.of(case.mask, L_MAX)
    total, gradient = torch.zeros((), dtype=torch.float64), torch.zeros(2, *case.mask.shape, dtype=torch.float64)
    for piece in range(3):
        rows = piece_of_row == piece
        part = Case({name: values[rows] for name, values in case.tensors.items()}, case.mask[rows], case.options)
        share, share_gradient = loss_and_gradient(part, whole)
        total, gradient[:, rows] = total + share, share_gradient
    same((total, gradient), loss_and_gradient(case))


@every_objective
@EACH
@given(data=st.data())
def test_nothing_outside_the_mask_has_a_gradient(aggregation: str, estimator: str, data: st.DataObject) -> None:
    case = data.draw(cases(aggregation, estimator))
    assert loss_and_gradient(case)[1][:, ~case.mask].abs().sum() == 0


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@pytest.mark.parametrize(("rewards", "group_size"), [([3.0] * 4, 2), ([1.0, -2.0, 5.0], 1), ([0.0], 1)])
def test_equal_groups_and_single_completions_give_finite_zeros(rewards, group_size, baseline, scale):
    values = torch.tensor(rewards, dtype=torch.float64)
    assert group_relative_advantages(values, group_size, baseline, scale).tolist() == [0.0] * len(rewards)


@settings(max_examples=60)
@given(case=cases("token-mean", "k3"), whiten=st.booleans(), clip=st.sampled_from([None, 0.5]), data=st.data())
def test_shaping_does_not_see_order_or_padding(case: Case, whiten: bool, clip: float | None, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(case.mask)))))
    k1 = case.tensors["full_kl"]
    advantages = case.tensors["advantages"][:, 0] if case.tensors["advantages"].dim() == 2 else case.tensors["advantages"]

    def shaped(advantages: Tensor, k1: Tensor, mask: Tensor) -> Tensor:
        return shape_advantages(advantages, mask, beta=0.2, k1_per_token=k1, whiten=whiten, clip=clip)

    expected = shaped(advantages, k1, case.mask)
    moved = shaped(advantages[order], k1[order], case.mask[order])
    torch.testing.assert_close(moved[case.mask[order]], expected[order][case.mask[order]], rtol=ROUNDING, atol=ROUNDING)
    pad = (0, 2)
    wider = shaped(advantages, torch.nn.functional.pad(k1, pad, value=9.0), torch.nn.functional.pad(case.mask, pad))
    torch.testing.assert_close(wider[:, : case.mask.shape[1]][case.mask], expected[case.mask], rtol=ROUNDING, atol=ROUNDING)
