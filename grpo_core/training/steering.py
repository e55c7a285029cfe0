"""The weight of the KL term, which may follow the drift (`loss.beta_control`); verl and ROLL steer by one-step estimates alone.

It is a function of the figures of the steps so far, so a resume, which reads them in the journal, has the same.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from grpo_core.config import LossConfig

MOST_ERROR = 0.2
"""Relative; a drift further from its target counts as this far."""
ESTIMATES = 5
"""How many one-step estimates (k1) are averaged."""


def next_beta(beta: float, drift: float, *, target: float, gain: float, bounds: tuple[float, float]) -> float:
    """Return the beta of the next step: log beta += gain clip(drift / target - 1, -0.2, 0.2), within (least, largest).

    >>> round(next_beta(1.0, 0.3, target=0.2, gain=0.5, bounds=(0.1, 10.0)), 4)  # e^0.1
    1.1052
    """
    error = min(MOST_ERROR, max(-MOST_ERROR, drift / target - 1))
    return min(bounds[1], max(bounds[0], beta * math.exp(gain * error)))


@dataclass(kw_only=True)
class SteeredBeta:
    """The beta of the step under way, and what decides on that of the next one."""

    loss: LossConfig
    beta: float = field(init=False)
    _estimates: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=ESTIMATES))

    def __post_init__(self) -> None:
        self.beta = self.loss.beta

    def observe(self, figures: Mapping[str, float]) -> None:
        """Take the figures of a step, `loss/beta` among them; those of a step without it are of a loss that was not steered."""
        control = self.loss.beta_control
        if control is None or "loss/beta" not in figures:
            return
        self.beta, drift = figures["loss/beta"], self._drift(control.metric, figures)
        if not math.isnan(drift):
            self.beta = next_beta(
                self.beta, drift, target=control.target, gain=control.gain, bounds=control.bounds(self.loss.beta)
            )

    def _drift(self, metric: str, figures: Mapping[str, float]) -> float:
        """Return the drift in a step, NaN where it is not known; a mean is of estimates from one reference alone."""
        area, _, name = metric.rpartition("/")
        mean = math.nan
        if name in ("drift", "k1") and f"{area}/k1" in figures:
            self._estimates.append(figures[f"{area}/k1"])
            mean = fmean(self._estimates) if len(self._estimates) == ESTIMATES else mean
        if area == "kl/ref" and figures["ref/synced"]:
            self._estimates.clear()
        return mean if name == "k1" else figures.get(f"{area}/full" if name == "drift" else metric, mean)
