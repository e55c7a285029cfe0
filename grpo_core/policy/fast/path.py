"""Which of the faster ways a model is run, and why it is not run in the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from grpo_core.policy.device import Dtype
from grpo_core.policy.fast.grouped import why_padded
from grpo_core.policy.fast.lean import LeanDecoding, why_not_lean
from grpo_core.policy.fast.packed import why_plain
from grpo_core.policy.fast.plain import PlainDecoding

Decoding = PlainDecoding | LeanDecoding
"""Ways to continue rows a token at a time: both have the same methods."""

WEIGHTS, DECODING, COMPLETIONS = "weights", "decoding", "completions"
"""What there are two ways of, as the journal's `start` record names it."""


@dataclass(frozen=True, kw_only=True)
class SamplingPath:
    """How a policy's model is run; transformers' way unless something else is asked for."""

    packed: bool = False
    """Whether completions are sampled with large matrices that are packed for it (`packed.py`)."""
    lean: bool = False
    """Whether `lean.py` runs the layers for each token that is sampled."""
    padded: bool = True
    """Whether completions of different lengths are padded in a forward pass; else they are run by `grouped.py`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why transformers' way was taken, by what it is of (`WEIGHTS`, `DECODING`, `COMPLETIONS`)."""

    @classmethod
    def fastest(cls, model: PreTrainedModel, dtype: Dtype, *, may_pack: bool) -> "SamplingPath":
        """Return the faster ways that give a model's own log-probabilities.

        Args:
            model: as it is loaded.
            dtype: what its matrix products are computed in.
            may_pack: `training.packed_weights`.
        """
        plain = why_plain(model, dtype) if may_pack else "training.packed_weights is off"
        not_lean = why_not_lean(model, dtype, packed=plain is None)
        padded = why_padded(model, dtype)
        found = {WEIGHTS: plain, DECODING: not_lean, COMPLETIONS: padded}
        return cls(
            packed=plain is None,
            lean=not_lean is None,
            padded=padded is not None,
            reasons={what: reason for what, reason in found.items() if reason is not None},
        )

    def as_json(self) -> dict[str, str]:
        """Return each way that was taken, with the reason where it is transformers'.

        >>> SamplingPath(packed=True, padded=False, reasons={"decoding": "its activation is relu"}).as_json()
        {'weights': 'packed', 'decoding': 'plain: its activation is relu', 'completions': 'without padding'}
        """
        ways = {
            WEIGHTS: "packed" if self.packed else "plain",
            DECODING: "lean" if self.lean else "plain",
            COMPLETIONS: "padded" if self.padded else "without padding",
        }
        return {what: f"{way}: {self.reasons[what]}" if what in self.reasons else way for what, way in ways.items()}
