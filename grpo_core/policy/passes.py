"""How much a policy computes at once."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Passes:
    """Bounds of a pass, shared by a policy and its copies. They may change between two steps, results in their last digits."""

    rollout_rows: int = 256
    """Completions that are sampled together, which bounds the cache."""
    microbatch_tokens: int = 16384
    """Tokens of one forward pass, padding included, which bounds the activations."""

    def set(self, *, rollout_rows: int, microbatch_tokens: int) -> None:
        """Bound every pass from now on."""
        self.rollout_rows, self.microbatch_tokens = rollout_rows, microbatch_tokens
