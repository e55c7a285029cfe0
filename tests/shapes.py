"""Checks shapes and types against the signatures at run time: `Float[Tensor, "B T"]` in the maths, policy and training."""

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

PACKAGES = (
    "grpo_core.algorithm",
    "grpo_core.policy.forward",
    "grpo_core.policy.policy",
    "grpo_core.policy.reference",
    "grpo_core.training",
)

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int may stand for a float, as for mypy


def check_shapes() -> None:
    """Check every call of functions in `PACKAGES`; call it before any of them is imported."""
    install_import_hook(PACKAGES, "tests.shapes.checked")
