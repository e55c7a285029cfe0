"""Wrongly shaped calls fail here, where signatures are checked at run time, and the product runs without the checker."""

import ast
import re
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.kl import full_kl
from grpo_core.algorithm.loss import Denominators, grpo_loss
from grpo_core.algorithm.masking import completion_mask
from grpo_core.policy.forward import scatter
from grpo_core.training.batch import Rollouts, TrainingBatch
from grpo_core.training.update import clipped_tokens

ROOT = Path(__file__).parents[2]
MASK = torch.ones(4, 3, dtype=torch.bool)
LOGPS = torch.zeros(4, 3)


def loss(**changed):
    tensors = {
        "per_token_logps": LOGPS,
        "old_per_token_logps": LOGPS,
        "ref_per_token_logps": LOGPS,
        "advantages": torch.zeros(4),
        "loss_mask": MASK,
    }
    return grpo_loss(**(tensors | changed), denominators=Denominators.of(MASK, 8), beta=0.1)


@pytest.mark.parametrize(
    "changed",
    [
        {"old_per_token_logps": torch.zeros(4, 1)},  # would broadcast
        {"ref_per_token_logps": torch.zeros(3)},  # would broadcast
        {"advantages": torch.zeros(3)},  # one a token instead of one a completion
        {"advantages": torch.zeros(1, 3)},  # would broadcast
        {"loss_mask": MASK.float()},  # would multiply instead of select
        {"loss_mask": MASK[:1]},  # would broadcast
    ],
    ids=lambda changed: f"{next(iter(changed))} {tuple(next(iter(changed.values())).shape)}",
)
def test_a_loss_of_other_shapes_is_refused(changed):
    with pytest.raises(TypeCheckError, match=next(iter(changed))):
        loss(**changed)


def test_every_package_with_shapes_is_checked(tiny_model):
    with pytest.raises(TypeCheckError, match="rewards"):
        group_relative_advantages(torch.zeros(2, 2), 2)
    with pytest.raises(TypeCheckError, match="ref_all_logps"):
        full_kl(torch.zeros(2, 5), torch.zeros(2, 1))
    with pytest.raises(TypeCheckError, match="completion_ids"):
        completion_mask(torch.zeros(2, 3), [1])
    with pytest.raises(TypeCheckError, match="mask"):
        scatter(torch.zeros(4), MASK[0], 3)
    with pytest.raises(TypeCheckError, match="advantages"):
        clipped_tokens(LOGPS, torch.zeros(3), MASK, object())


def test_a_record_of_other_shapes_is_refused():
    fields = {
        "prompts": (),
        "group_size": 2,
        "completion_ids": MASK.long(),
        "completion_mask": MASK,
        "sampling_per_token_logps": LOGPS,
        "texts": ("",) * 4,
        "truncated": MASK[:, 0],
        "rewards": torch.zeros(4),
        "rewards_by_function": {},
        "group_advantages": torch.zeros(4),
        "loss_mask": MASK,
    }
    rollouts = Rollouts(**fields)
    with pytest.raises(TypeCheckError, match="group_advantages"):
        Rollouts(**(fields | {"group_advantages": LOGPS}))  # those per token belong to a TrainingBatch
    assert TrainingBatch(rollouts=rollouts, advantages=LOGPS, ref_logps=LOGPS, old_logps=None).advantages is LOGPS
    with pytest.raises(TypeCheckError, match="ref_logps"):
        TrainingBatch(rollouts=rollouts, advantages=LOGPS, ref_logps=LOGPS[0], old_logps=None)


def public_functions(path):
    """Yield the functions of a module and the methods of its classes; not the functions within them."""
    for node in ast.parse(path.read_text()).body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
                yield function


def annotations(function):
    """Return the annotations of a function's parameters and of what it returns, as text."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    nodes = [argument.annotation for argument in arguments] + [function.returns]
    return [ast.unparse(node) for node in nodes if node is not None]


@pytest.mark.parametrize("package", ["algorithm", "policy", "training"])
def test_public_functions_give_the_shape_of_every_tensor(package):
    shapeless = [
        f"{path.name}: {function.name}"
        for path in sorted((ROOT / "grpo_core" / package).rglob("*.py"))
        for function in public_functions(path)
        for text in annotations(function)
        # A head takes any number of tokens; what a tower is given by name has a processor's shapes.
        if "Tensor" in re.sub(r"Callable\[\[Tensor\], Tensor\]|\[Tensor, |\bTensors\b", "", text)
    ]
    # The first ones' modules load torch when it is used; the others give tensors of any shape.
    loads_torch_late = {"scratch.py: supervised_batch", "shapes.py: supervised_batch", "shapes.py: pixel_values_of"}
    assert set(shapeless) <= loads_torch_late | {"pickled.py: unpickled", "weight_files.py: tensors_in", "vision.py: joined"}
