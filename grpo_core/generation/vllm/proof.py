"""Whether a server computes with the weights that it was given, found out from outside: fixed tokens, two log-probabilities.

Digests show what was loaded. A server may still compute with something else: a packed copy of the old weights, a cache, a
layer that took a part. So after each transfer the server and the trainer give the log-probabilities of the same fixed tokens.

In float32 the two agree to rounding, so their difference is bounded. In bfloat16 they differ by more than a step of training
changes. Then it is the *change* since the last confirmed weights that must be the same on both sides, judged once the
trainer's change stands out of the rounding; until then the transfer rests on the digests alone, and the result says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from grpo_core.errors import StaleWeightsError

MOST_DIFFERENCE = 1e-4
"""In float32, of any token, in nats."""
MOST_RMS = 5e-5
"""In float32, of the change since the last weights, root mean square over tokens."""
NOISE_FACTOR = 4.0
"""In bfloat16 the trainer's change is judged where it is so many times the rounding between two unrelated kernels."""
MOST_SHARE = 0.5
"""In bfloat16, of the trainer's change, that the server's may differ from it."""


@dataclass(frozen=True, kw_only=True)
class ProbeLogps:
    """Log-probabilities of the same fixed tokens on both sides, under one version of the weights."""

    server: Float[Tensor, " N"]
    trainer: Float[Tensor, " N"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a probe has shown."""

    difference: float
    """Largest difference of a token between server and trainer, in nats."""
    moved: float
    """Root mean square of the trainer's change since the last confirmed weights; 0 at the first."""
    missed: float
    """Root mean square of what the server's change differs from it."""
    is_conclusive: bool
    """False where the change does not stand out of the rounding: the digests alone speak for the transfer."""

    def figures(self) -> dict[str, float]:
        """Return the `sampler/probe/*` figures."""
        figures = {"difference": self.difference, "moved": self.moved, "missed": self.missed}
        return {f"sampler/probe/{name}": value for name, value in {**figures, "conclusive": float(self.is_conclusive)}.items()}


def judge(now: ProbeLogps, confirmed: ProbeLogps | None, dtype: str) -> Verdict:
    """Compare both sides of a probe, and their changes since the weights that were `confirmed` last.

    Raises:
        StaleWeightsError: the server computes with other weights than the trainer's.
    """
    difference = float((now.server - now.trainer).abs().max())
    if not bool(now.server.isfinite().all()):
        raise StaleWeightsError("the server's log-probabilities are not finite")
    moved, missed = 0.0, 0.0
    if confirmed is not None:
        change = now.trainer - confirmed.trainer
        moved = _rms(change)
        missed = _rms(now.server - confirmed.server - change)
    if dtype == "float32":
        _refuse(
            difference > MOST_DIFFERENCE, f"a token's log-probability differs by {difference:.2g} (at most {MOST_DIFFERENCE:g})"
        )
        _refuse(missed > MOST_RMS, f"its change since the last weights differs by {missed:.2g} (at most {MOST_RMS:g})")
        return Verdict(difference=difference, moved=moved, missed=missed, is_conclusive=True)
    noise = _rms(now.server - now.trainer) if confirmed is None else _rms(confirmed.server - confirmed.trainer)
    is_conclusive = confirmed is None or moved > NOISE_FACTOR * noise
    _refuse(
        confirmed is not None and is_conclusive and missed > MOST_SHARE * moved,
        f"the trainer's log-probabilities have changed by {moved:.2g}, the server's differ from that by {missed:.2g}",
    )
    return Verdict(difference=difference, moved=moved, missed=missed, is_conclusive=is_conclusive)


def _refuse(is_stale: bool, why: str) -> None:
    if is_stale:
        raise StaleWeightsError(f"the vLLM server does not compute with the trainer's weights: {why} nats")


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def probe_tokens(prompts: Sequence[Sequence[int]], most: int = 256) -> tuple[tuple[int, ...], ...]:
    """Return the first prompts, of at most `most` tokens together: the fixed tokens of a run."""
    chosen: list[tuple[int, ...]] = []
    for prompt in prompts:
        left = most - sum(map(len, chosen))
        if left > 1 and len(prompt) > 1:
            chosen.append(tuple(prompt[:left]))
    return tuple(chosen)
