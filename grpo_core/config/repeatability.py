"""How far a run repeats: when it is resumed, replays a step, or is reproduced. It depends on the sampler alone."""

from dataclasses import dataclass

from grpo_core.config.derived import sampler_treatment
from grpo_core.config.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Repeatability:
    """What a repetition of a run has in common with it."""

    what: str
    """In words, for `grpo check`, a resume and a reproduction."""
    is_exact: bool = True
    """Whether the same tokens are drawn, so that the same weights result."""
    unlike: frozenset[str] = frozenset()
    """Figures that differ all the same."""


BITWISE = Repeatability(what="bit for bit, on the same kind of machine with as many threads")
SAME_TOKENS = Repeatability(
    what="the same tokens, and with them the same weights, on the same version of vLLM; a draw that lies within the server's "
    "rounding (1e-5) of another token can differ",
    unlike=frozenset({"kl/sampler/k3"}),
)
STATISTICS = Repeatability(
    what="in its statistics alone: the seed does not decide vLLM's tokens in bfloat16, and weights between sampler and trainer "
    "carry the server's rounding into the loss",
    is_exact=False,
)


def repeatability(config: RunConfig) -> Repeatability:
    """Return how far a run with this configuration repeats."""
    if config.rollout.engine == "embedded":
        return BITWISE
    is_exact = config.model.dtype == "float32" and sampler_treatment(config) == "none"
    return SAME_TOKENS if is_exact else STATISTICS
