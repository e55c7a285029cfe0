"""What the drift steers: the weight of the KL term, and when the reference is synchronised."""

from typing import Literal

from pydantic import Field

from grpo_core.config.section import Section, Steps

REFERENCE_DRIFT = Literal["kl/ref/drift", "kl/ref/full", "kl/ref/k1", "kl/probe/full"]
DRIFT = Literal[REFERENCE_DRIFT, "kl/init/drift", "kl/init/full", "kl/init/k1", "kl/probe/full_init"]
MOST_RATIO = 30.0
"""How many times as large as `loss.beta`, or as small, a steered beta is at most, unless bounds are given."""


class BetaControl(Section):
    """Steer beta by the drift: after each step log beta += gain clip(drift / target - 1, -0.2, 0.2)."""

    metric: DRIFT = "kl/init/drift"
    """Which drift: exact where a step measures it, in `drift` and `k1` else the mean of k1 over the last five steps. Where a
    step has neither, beta stays as it is."""
    target: float = Field(gt=0, le=1e6)
    """The drift that is wanted, in nats per token."""
    gain: float = Field(default=0.05, gt=0, le=100)
    """How fast beta follows: a step changes it by at most a factor of exp(gain / 5); a drift that answers within n steps swings
    where it is far above 1 / n."""
    min: float | None = Field(default=None, gt=0, le=1e6)
    """Beta is never below; null = `loss.beta` / 30."""
    max: float | None = Field(default=None, gt=0, le=1e9)
    """Beta is never above; null = 30 `loss.beta`."""

    def bounds(self, beta: float) -> tuple[float, float]:
        """Return (least, largest) of a beta that begins as `beta`."""
        return self.min or beta / MOST_RATIO, self.max or beta * MOST_RATIO


class SyncWhen(Section):
    """Synchronise the reference after each step that has measured a drift above a bound."""

    metric: REFERENCE_DRIFT = "kl/ref/drift"
    """Which drift from the reference; where a step does not measure it, it asks for nothing."""
    above: float = Field(gt=0, le=1e6)
    """The bound, in nats per token."""
    at_least_steps: Steps = 1
    """Steps from one sync, of the schedule as well, to the next that the drift asks for."""
