"""How far two next-token distributions are apart, in more than one measure: exact sums over the vocabulary, no gradient.

pi is the policy, pi_0 another one (the initial policy), both given the same prefix.

  full             sum_v pi (log pi - log pi_0)           (1)  reverse KL: what beta pulls on; blind to what pi has given up
  forward          sum_v pi_0 (log pi_0 - log pi)         (2)  forward KL: large where pi has lost what pi_0 could say
  total_variation  1/2 sum_v |pi - pi_0|                  (3)  in 0..1: the share of probability that has moved
  renyi_half       -2 log sum_v sqrt(pi pi_0)             (4)  Renyi divergence of order 1/2: symmetric, at most (1) and (2)
  top1_changed     argmax pi != argmax pi_0               (5)  0 or 1: whether the greedy token is another one

Sources: van Erven and Harremoes 2014, arXiv:1206.2459, for (4); RL's Razor, arXiv:2509.04259, for (2) as what predicts
forgetting: on prefixes that pi_0 has drawn, and summed over a completion, it is unbiased for the KL of whole completions.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.algorithm.kl import full_kl


class TokenDivergences(NamedTuple):
    """Equations (1) to (5) at each token; (1), (2) and (4) in nats."""

    full: Float[Tensor, "*shape"]
    forward: Float[Tensor, "*shape"]
    total_variation: Float[Tensor, "*shape"]
    renyi_half: Float[Tensor, "*shape"]
    top1_changed: Float[Tensor, "*shape"]


def divergences(all_logps: Float[Tensor, "*shape V"], other_all_logps: Float[Tensor, "*shape V"]) -> TokenDivergences:
    """Return eq. (1) to (5) over the last dimension of two [..., V] tensors of log-probabilities.

    >>> half, other = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.75, 0.25]).log()
    >>> [round(float(value), 4) for value in divergences(half, other)]
    [0.1438, 0.1308, 0.25, 0.0693, 0.0]
    """
    return TokenDivergences(
        full=full_kl(all_logps, other_all_logps),
        forward=full_kl(other_all_logps, all_logps),
        total_variation=(all_logps.exp() - other_all_logps.exp()).abs().sum(dim=-1) / 2,
        renyi_half=-2 * torch.logsumexp((all_logps + other_all_logps) / 2, dim=-1),
        top1_changed=(all_logps.argmax(dim=-1) != other_all_logps.argmax(dim=-1)).to(all_logps.dtype),
    )
