"""What the gradient of each KL option is: the table of docs/algorithm.md, every row proved in tests/unit/test_gradients.py.

For samples o of a policy q, with the token ratio in the surrogate:

    T(q) = sum_t E_{prefix ~ q} grad KL_t(pi || ref)    prefixes held fixed; each weighted as the aggregation weights its token
    S    = grad KL(pi || ref)                           of whole completions; not T beyond one token

On-policy q is pi itself; stale samples come from an older q, and KL in the reward is then that of q. Both columns are of sums
over tokens. Under 1/|o| (`seq-mean-token-mean`) the weight of a token depends on how its completion goes on: what estimates the
KL from the tokens that were drawn then moves the length as well, which the exact sum does not. Not in the table, because it
cannot be configured: the live ratio times k2, whose gradient is neither T nor S even on-policy.
"""

from dataclasses import dataclass
from typing import Literal

from grpo_core.algorithm.kl import Correction, Estimator

Gradient = Literal["T", "S", "reverse T", "0", "T of the old prefixes", "biased", "and length", "length alone"]
MEANING: dict[Gradient, str] = {
    "T": "T",
    "S": "S",
    "reverse T": "T with ∇KL(ref‖π): another divergence",
    "0": "0",
    "T of the old prefixes": "T on the old policy's prefixes",
    "biased": "biased: neither",
    "and length": "biased: a push on the length as well",
    "length alone": "a push to longer completions, and nothing else",
}


@dataclass(frozen=True, kw_only=True)
class KlGradient:
    """One KL option and the expected gradient that it contributes, in units of beta."""

    estimator: Estimator
    placement: Literal["loss", "reward"]
    correction: Correction
    on_policy: Gradient
    stale: Gradient
    over_length: Gradient = "and length"
    """On-policy, under 1/|o|."""


TABLE: tuple[KlGradient, ...] = (
    KlGradient(estimator="k1", placement="reward", correction="none", on_policy="S", stale="biased"),
    KlGradient(estimator="k2", placement="loss", correction="none", on_policy="T", stale="biased"),
    KlGradient(estimator="k2", placement="loss", correction="importance", on_policy="T", stale="T of the old prefixes"),
    KlGradient(estimator="k3", placement="loss", correction="importance", on_policy="T", stale="T of the old prefixes"),
    KlGradient(estimator="k1", placement="loss", correction="importance", on_policy="T", stale="T of the old prefixes"),
    KlGradient(
        estimator="full",
        placement="loss",
        correction="none",
        on_policy="T",
        stale="T of the old prefixes",
        over_length="T",
    ),
    KlGradient(estimator="k3", placement="loss", correction="none", on_policy="reverse T", stale="biased"),
    KlGradient(estimator="k1", placement="loss", correction="none", on_policy="0", stale="biased", over_length="length alone"),
)


def gradient_table() -> str:
    """Return the table for the documentation."""
    options = ("`kl_estimator`", "`kl_placement`", "`kl_correction`")
    head = [*options, "on-policy (one update a step)", "stale samples", r"on-policy, under 1/\|o\|"]
    rows = [
        [
            *(f"`{choice}`" for choice in (row.estimator, row.placement, row.correction)),
            *(MEANING[gradient] for gradient in (row.on_policy, row.stale, row.over_length)),
        ]
        for row in TABLE
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
