"""Whether a server computes with the weights that it was given, found out from outside: fixed tokens, two log-probabilities.

Digests show what was loaded. A server may still compute with something else: a packed copy of the old weights, a cache, a
layer that took a part. So after each transfer the server and the trainer give the log-probabilities of the same fixed tokens.

In float32 the two agree to rounding, so their difference is bounded. In bfloat16 they differ by more than a step of training
changes. Then it is the *change* since the last confirmed weights that the server must have followed: the slope of its change
over the trainer's, token by token, is 1 with the same weights and 0 with the old ones. It is judged once its standard error is
small enough to tell these apart; until then the transfer rests on the digests alone, and the result says so. The trainer's
log-probabilities are in float32, of the weights as they were sent: its own rounding would flatten the slope, and weights that
were not rounded do not move as those that were. A part that stays old shows in what the slope leaves over, once that exceeds
the rounding by far.

A standard error takes its observations for independent. Prompts of one template begin alike, and the rounding of their common
tokens is one number, not one a prompt; so each token counts once for each context that it follows (`probe`). And the rounding
of some tokens is ten times that of others; so the slope is the one of least absolute deviations.
"""

from dataclasses import dataclass
from math import inf, nan

from jaxtyping import Float
from torch import Tensor

from grpo_core.errors import StaleWeightsError

MOST_DIFFERENCE = 1e-4
"""In float32, of any token, in nats."""
MOST_RMS = 5e-5
"""In float32, of the change since the last weights, root mean square over tokens."""
MOST_SLOPE_ERROR = 0.1
"""In bfloat16 the slope is judged where its standard error is at most this: 1 and 0 are then 10 of them apart."""
LEAST_FOLLOWED = 0.5
"""In bfloat16, of a slope that is judged. Old weights make it smaller than 1, never larger."""
INTERVAL = 4.0
"""Standard errors from the slope to either end of its interval."""
MOST_OVER_ROUNDING = 4.0
"""In bfloat16, of what the server's change differs from the trainer's: it is 1.4 times the rounding where nothing is old."""


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
    followed: float
    """Slope of the server's change over the trainer's; NaN where there is none."""
    is_conclusive: bool
    """False where the change does not stand out of the rounding: the digests alone speak for the transfer."""

    def figures(self) -> dict[str, float]:
        """Return the `sampler/probe/*` figures."""
        figures = {"difference": self.difference, "moved": self.moved, "missed": self.missed, "followed": self.followed}
        known = {name: value for name, value in figures.items() if value == value}  # noqa: PLR0124  (NaN)
        return {f"sampler/probe/{name}": value for name, value in {**known, "conclusive": float(self.is_conclusive)}.items()}


def judge(now: ProbeLogps, confirmed: ProbeLogps | None, dtype: str) -> Verdict:
    """Compare both sides of a probe, and their changes since the weights that were `confirmed` last.

    Raises:
        StaleWeightsError: the server computes with other weights than the trainer's.
    """
    difference = float((now.server - now.trainer).abs().max())
    if not bool(now.server.isfinite().all()):
        raise StaleWeightsError("the server's log-probabilities are not finite")
    moved, missed, followed, error, rounding = 0.0, 0.0, nan, inf, inf
    if confirmed is not None:
        rounding = _rms(confirmed.server - confirmed.trainer)
        of_trainer, of_server = now.trainer - confirmed.trainer, now.server - confirmed.server
        moved, missed = _rms(of_trainer), _rms(of_server - of_trainer)
        typical = float((confirmed.server - confirmed.trainer).abs().median())
        followed, error = _slope(of_server, of_trainer, 1.5 * typical)
    if dtype == "float32":
        _refuse(
            difference > MOST_DIFFERENCE, f"a token's log-probability differs by {difference:.2g} (at most {MOST_DIFFERENCE:g})"
        )
        _refuse(missed > MOST_RMS, f"its change since the last weights differs by {missed:.2g} (at most {MOST_RMS:g})")
        return Verdict(difference=difference, moved=moved, missed=missed, followed=followed, is_conclusive=True)
    is_conclusive = error <= MOST_SLOPE_ERROR
    _refuse(
        is_conclusive and followed < LEAST_FOLLOWED,
        f"of a change of the trainer's log-probabilities by {moved:.2g} the server's have followed {followed:.2f}, not 1,",
    )
    _refuse(
        is_conclusive and missed > MOST_OVER_ROUNDING * rounding,
        f"the server's change differs from the trainer's by {missed:.2g}, more than {MOST_OVER_ROUNDING:g} times the rounding "
        f"of {rounding:.2g}",
    )
    return Verdict(difference=difference, moved=moved, missed=missed, followed=followed, is_conclusive=is_conclusive)


def _slope(of_server: Tensor, of_trainer: Tensor, rounding: float) -> tuple[float, float]:
    """Return the slope of a line through the origin, least absolute deviations, and its standard error; NaN, inf without one.

    The slope is the median of the tokens' ratios, weighted by |x|. The signs of its residuals, weighted by x, have a sum whose
    variance is that of x squared, however unequal the residuals are: the slopes at which that sum is within 4 standard
    deviations of 0 are an interval, a quarter of whose half is the error. A server with old weights lies exactly on its line,
    so the error is at least what the rounding between two kernels would make it.
    """
    weights, moved = of_trainer.abs(), of_trainer != 0
    total, norm = float(weights.sum()), float(weights.norm())
    if total == 0:
        return nan, inf
    ratios, order = (of_server[moved] / of_trainer[moved]).sort()
    shares = weights[moved][order].cumsum(0) / total

    def quantile(share: float) -> float:
        return float(ratios[min(int((shares < share).sum()), len(ratios) - 1)]) + 0.0  # -0 would be printed as such

    reach = INTERVAL * norm / total
    if reach >= 1:
        return quantile(0.5), inf
    half = (quantile((1 + reach) / 2) - quantile((1 - reach) / 2)) / 2
    return quantile(0.5), max(half / INTERVAL, rounding / norm)


def _refuse(is_stale: bool, why: str) -> None:
    if is_stale:
        raise StaleWeightsError(f"the vLLM server does not compute with the trainer's weights: {why} nats")


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
