"""What the gradient of each KL option is: the table of docs/algorithm.md, every row proved in tests/unit/test_gradients.py.

Summed over tokens, for samples o of a policy q, with the token ratio in the surrogate:

    T(q) = sum_t E_{prefix ~ q} grad KL_t(pi || ref)    prefixes held fixed
    S    = grad KL(pi || ref)                           of whole completions; not T beyond one token

On-policy q is pi itself; stale samples come from an older q. Not in the table, because it cannot be configured: the live ratio
times k2, whose gradient is neither T nor S even on-policy.
"""

from dataclasses import dataclass
from typing import Literal

from grpo_core.algorithm.kl import Correction, Estimator

Gradient = Literal["T", "S", "reverse T", "0", "T of the old prefixes", "S by sequence ratios", "biased"]
MEANING: dict[Gradient, str] = {
    "T": "T",
    "S": "S",
    "reverse T": "T with ∇KL(ref‖π): another divergence",
    "0": "0 under sum or constant aggregation; under 1/\\|o\\| a push to longer completions",
    "T of the old prefixes": "T on the old policy's prefixes",
    "S by sequence ratios": "S, if samples are weighted by the ratio of whole completions",
    "biased": "biased: neither",
}


@dataclass(frozen=True, kw_only=True)
class KlGradient:
    """One KL option and the expected gradient that it contributes, in units of beta."""

    estimator: Estimator
    placement: Literal["loss", "reward"]
    correction: Correction
    on_policy: Gradient
    stale: Gradient


TABLE: tuple[KlGradient, ...] = (
    KlGradient(estimator="k1", placement="reward", correction="none", on_policy="S", stale="S by sequence ratios"),
    KlGradient(estimator="k2", placement="loss", correction="none", on_policy="T", stale="biased"),
    KlGradient(estimator="k2", placement="loss", correction="importance", on_policy="T", stale="T of the old prefixes"),
    KlGradient(estimator="k3", placement="loss", correction="importance", on_policy="T", stale="T of the old prefixes"),
    KlGradient(estimator="k1", placement="loss", correction="importance", on_policy="T", stale="T of the old prefixes"),
    KlGradient(estimator="full", placement="loss", correction="none", on_policy="T", stale="T of the old prefixes"),
    KlGradient(estimator="k3", placement="loss", correction="none", on_policy="reverse T", stale="biased"),
    KlGradient(estimator="k1", placement="loss", correction="none", on_policy="0", stale="biased"),
)


def gradient_table() -> str:
    """Return the table for the documentation."""
    names = ("`kl_estimator`", "`kl_placement`", "`kl_correction`", "on-policy (one update a step)", "stale samples")
    head = [f"| {' | '.join(names)} |", "|---|---|---|---|---|"]
    rows = [
        f"| `{row.estimator}` | `{row.placement}` | `{row.correction}` | {MEANING[row.on_policy]} | {MEANING[row.stale]} |"
        for row in TABLE
    ]
    return "\n".join([*head, *rows])
