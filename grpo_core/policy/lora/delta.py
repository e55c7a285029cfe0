"""What an adapter adds to a matrix, and averages of it.

    W_policy = W + s B A            A: r x in, B: out x r, s = alpha / rank (Hu et al., arXiv:2106.09685, section 4.1)
    D_ref <- m s B A + (1 - m) D_ref

The average of two products is no product of averages: averaged factors would give m^2 BA + m (1 - m) (B A_ref + B_ref A) + ...
But a sum of low-rank terms is low-rank again, with the factors side by side:

    m s B A + (1 - m) B_ref A_ref = [m s B, (1 - m) B_ref] [A; A_ref]

That is exact, and its rank grows with every sync. Where it takes as much memory as the matrix itself, the matrix is kept.
Where it exceeds a bound, the smallest singular values are dropped: the nearest matrix of that rank (Eckart and Young, 1936).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from grpo_core.policy.weights import squared_difference


@dataclass(frozen=True, kw_only=True, eq=False)
class LowRank:
    """scale x b a."""

    a: Float[Tensor, "r in"]
    b: Float[Tensor, "out r"]
    scale: float = 1.0

    @property
    def dtype(self) -> torch.dtype:
        """Of both factors."""
        return self.a.dtype

    def applied(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Return what it adds for inputs `x`, by the operations of PEFT's layer in their order."""
        return functional.linear(functional.linear(x.to(self.a.dtype), self.a), self.b) * self.scale

    def dense(self) -> Float[Tensor, "out in"]:
        """Return the matrix."""
        return (self.b @ self.a) * self.scale

    def factors(self) -> tuple[Float[Tensor, "r in"], Float[Tensor, "out r"]]:
        """Return two factors without a scale."""
        return self.a, self.b * self.scale

    def copy(self, device: torch.device) -> "LowRank":
        """Return the same in memory of its own, without gradient."""
        a, b = (factor.detach().to(device, copy=True) for factor in (self.a, self.b))
        return LowRank(a=a, b=b, scale=self.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Full:
    """A matrix as it is."""

    matrix: Float[Tensor, "out in"]

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrix."""
        return self.matrix.dtype

    def applied(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Return what it adds for inputs `x`."""
        return functional.linear(x.to(self.matrix.dtype), self.matrix)

    def dense(self) -> Float[Tensor, "out in"]:
        """Return the matrix."""
        return self.matrix

    def factors(self) -> tuple[Float[Tensor, "in in"], Float[Tensor, "out in"]]:
        """Return two factors: the matrix and an identity."""
        return torch.eye(self.matrix.shape[1]).to(self.matrix), self.matrix

    def copy(self, device: torch.device) -> "Full":
        """Return the same in memory of its own, without gradient."""
        return Full(matrix=self.matrix.detach().to(device, copy=True))


Delta = LowRank | Full


@dataclass(frozen=True, kw_only=True, eq=False)
class Averaged:
    """An average, and what was left out of it."""

    delta: Delta
    dropped: float = 0.0
    """Frobenius norm of the difference to the exact average; rounding not included."""


@torch.no_grad()
def average(reference: Delta, policy: LowRank, share: float, most_rank: int) -> Averaged:
    """Return share x policy + (1 - share) x reference, for 0 < share < 1.

    Args:
        reference: low-rank, or a matrix: then the average is one, too.
        policy: an adapter.
        share: weight of the policy.
        most_rank: of the result, if it is low-rank.
    """
    if isinstance(reference, Full):
        # In the same precision as a reference of all weights: fp32.
        matrix = torch.addmm(reference.matrix, policy.b, policy.a, beta=1 - share, alpha=share * policy.scale)
        return Averaged(delta=Full(matrix=matrix))
    terms = [(policy, share), (reference, 1 - share)]
    terms = [(term, weight) for term, weight in terms if bool(term.b.any()) and bool(term.a.any())] or terms[:1]
    exact = LowRank(
        a=torch.cat([term.a for term, _ in terms]),
        b=torch.cat([term.b * (weight * term.scale) for term, weight in terms], dim=1),
    )
    if is_larger_than_matrix(exact):
        return Averaged(delta=Full(matrix=exact.dense()))
    return Averaged(delta=exact) if len(exact.a) <= most_rank else compressed(exact, most_rank)


def is_larger_than_matrix(delta: LowRank) -> bool:
    """Return whether the factors take as much memory as their product."""
    return delta.a.numel() + delta.b.numel() >= delta.a.shape[1] * delta.b.shape[0]


def compressed(delta: LowRank, rank: int) -> Averaged:
    """Return the nearest matrix of a lower rank, and how far it is: the norm of the dropped singular values.

    QR of both factors leaves an r x r matrix to decompose. In double: in single, small singular values would be noise.
    """
    q_out, r_out = torch.linalg.qr(delta.b.double() * delta.scale)
    q_in, r_in = torch.linalg.qr(delta.a.double().T)
    u, singular, vh = torch.linalg.svd(r_out @ r_in.T)
    root = singular[:rank].sqrt()
    kept = LowRank(a=((q_in @ vh[:rank].T) * root).T.contiguous().to(delta.a), b=((q_out @ u[:, :rank]) * root).to(delta.b))
    return Averaged(delta=kept, dropped=math.sqrt(float(singular[rank:].square().sum())))


@torch.no_grad()
def squared_distance(one: Delta, other: Delta) -> float:
    """Return the squared Frobenius norm of the difference."""
    return squared_difference(one.dense(), other.dense())
