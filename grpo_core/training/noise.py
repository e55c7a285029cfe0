"""The gradient noise scale: at how many prompts a step the gradient's noise is as large as the gradient.

McCandlish et al. 2018, arXiv:1812.06162, appendix A.1, with small batches of one prompt. For P prompts with gradients g_p,
whose mean is g,

    |G|^2 = (P |g|^2 - mean_p |g_p|^2) / (P - 1)          unbiased for the square of the expected gradient
    S     = (mean_p |g_p|^2 - |g|^2) / (1 - 1/P)          unbiased for the variance of one prompt's gradient, tr Sigma
    B     = S / |G|^2                                     prompts; a ratio of the two, and so noisy: average them apart

Fewer prompts a step than B: a step with twice as many is nearly twice as good. More: it is little better.
"""

import math
from collections.abc import Sequence

from grpo_core.types import Measured

VARIANCE, SIGNAL, SCALE = "optim/grad_variance", "optim/grad_signal", "optim/noise_scale"


def noise_figures(prompt_squares: Sequence[float], whole_square: float) -> Measured:
    """Return the figures of one step; without a noise scale where |G|^2 is not above 0, without any where it is not finite.

    Args:
        prompt_squares: |g_p|^2 of each prompt; empty where the step does not measure them.
        whole_square: |g|^2, of all of them.
    """
    count = len(prompt_squares)
    if count < 2:
        return {}
    one = sum(prompt_squares) / count
    signal, variance = (count * whole_square - one) / (count - 1), (one - whole_square) / (1 - 1 / count)
    if not math.isfinite(signal + variance):
        return {}
    return {VARIANCE: variance, SIGNAL: signal, **({SCALE: variance / signal} if signal > 0 else {})}
