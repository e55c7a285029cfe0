"""Which of the faster ways a model is run, and why it is not run in the others.

A faster way is compared with transformers' own, on tokens of the model that has just been loaded: an architecture whose
log-probabilities would be others is run as it knows itself.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.generation.sampler import SampledCompletions
from grpo_core.machine.hardware import has_bfloat16_kernels
from grpo_core.policy.device import Dtype, attention_dtype, compute_in, is_out_of_memory
from grpo_core.policy.fast.decoding import LeanDecoder, LeanDecoding, PlainDecoder
from grpo_core.policy.fast.grouped import GroupedTokens, grouped_hidden
from grpo_core.policy.fast.products import LEAST_WEIGHTS, is_large, prepared_weights
from grpo_core.policy.forward import (
    EncodedPrefix,
    cut_rows,
    encode_prompts,
    has_full_attention,
    prompts_of,
    rows_hidden,
    some_image,
    some_tokens,
    vocabulary_head,
)
from grpo_core.policy.lora.delta import linear_layers
from grpo_core.policy.model_images import ModelImages
from grpo_core.policy.vision import decoder_of

Decoding = Callable[[EncodedPrefix, Tensor, int], PlainDecoder | LeanDecoder]
"""Returns what continues prompts by rows, a token at a time, by at most so many; both have the same methods."""
WEIGHTS, DECODING, COMPLETIONS = "weights", "decoding", "completions"
"""What there are two ways of, as the journal's `start` record names it."""
TOLERANCE: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.05}
"""In nats: the largest mean difference of log-probabilities, weighted by probability. Rounding alone makes 1e-5 and 0.03."""
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen2_5_vl_text", "qwen3_vl_text")
"""Whose layers are lean."""
ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles do not depend on how long a sequence is."""
ROWS = (0, 1, 3, 6, 7, 8)
"""Completions of the tokens below that are compared: two, one and three of the prompts."""


@dataclass(frozen=True, kw_only=True)
class SamplingPath:
    """How a policy's model is run; transformers' way unless something else is asked for.

    `packed`: completions are sampled with large matrices that are packed for it (`products.py`). `lean`: `LeanDecoding` runs
    the layers for each token that is sampled. `padded`: completions of different lengths are padded in a forward pass; else
    they are run by `grouped.py`. `reasons` say why transformers' way was taken, of `WEIGHTS`, `DECODING` or `COMPLETIONS`.
    """

    packed: bool = False
    lean: bool = False
    padded: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fastest(
        cls, model: PreTrainedModel, dtype: Dtype, *, may_pack: bool, images: ModelImages | None = None
    ) -> "SamplingPath":
        """Return the faster ways that give a model's own log-probabilities.

        Args:
            model: as it is loaded.
            dtype: what its matrix products are computed in.
            may_pack: `training.packed_weights`.
            images: what the model reads images with; None = it reads text alone.
        """
        images = None if images is None else images.of_other(some_image())
        plain = why_plain(model, dtype, images) if may_pack else "training.packed_weights is off"
        found = {
            WEIGHTS: plain,
            DECODING: why_not_lean(model, dtype, images, packed=plain is None),
            COMPLETIONS: why_padded(model, dtype, images),
        }
        reasons = {what: reason for what, reason in found.items() if reason is not None}
        return cls(packed=plain is None, lean=DECODING not in reasons, padded=COMPLETIONS in reasons, reasons=reasons)

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


def why_plain(model: PreTrainedModel, dtype: Dtype, images: ModelImages | None = None) -> str | None:
    """Return why the weights of a model, in fp32, are not packed here; None where they are.

    A product that is wrong on this processor is not used.
    """
    if model.device.type != "cpu":
        return "they are for a CPU"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "the processor has no AVX"
    if dtype == "bfloat16" and not has_bfloat16_kernels():
        return "the processor has no fast products in bfloat16"
    if not any(map(is_large, linear_layers(model))):
        return f"no matrix has {LEAST_WEIGHTS} weights"

    def logits(tokens: SampledCompletions) -> Float[Tensor, "N V"]:
        with prepared_weights(model, dtype):
            return vocabulary_head(model)(rows_hidden(model, tokens, ROWS, images))

    return _why_different(model, dtype, logits, images)


def why_not_lean(model: PreTrainedModel, dtype: Dtype, images: ModelImages | None = None, *, packed: bool) -> str | None:
    """Return why a model is decoded as transformers runs it; None where its layers are run by `LeanDecoding`.

    Args:
        model: as it is loaded.
        dtype: what its matrix products are computed in.
        images: as in `fastest`, opened for any digest.
        packed: whether its large matrices would be packed.
    """
    config = model.config.get_text_config()
    if config.model_type not in MODEL_TYPES:
        return f"the architecture {config.model_type} is none of {', '.join(MODEL_TYPES)}"
    if not has_full_attention(config):
        return "the model has other layers than full attention"
    rotation = getattr(getattr(decoder_of(model), "rotary_emb", None), "rope_type", None)
    if rotation not in ROTATIONS:
        return f"its rotary embedding, {rotation}, is none of {', '.join(ROTATIONS)}"

    @functools.cache
    def prepared() -> LeanDecoding:
        return LeanDecoding.of(model, attention_dtype(model, dtype), packed=packed)

    def logits(tokens: SampledCompletions, least_shared: float) -> Float[Tensor, "N V"]:
        ids, mask = cut_rows(tokens, ROWS)
        prompts, of_row = prompts_of(tokens, ROWS)
        encoded, of_row = encode_prompts(model, prompts, images), of_row.to(ids.device)
        decoder = LeanDecoder(prepared(), encoded, of_row, ids.shape[1], least_shared)
        states = [encoded.last_hidden[of_row], *(decoder.run(column) for column in ids[:, :-1].unbind(1))]
        return prepared().logits(torch.stack(states, dim=1)[mask])

    found = (_why_different(model, dtype, partial(logits, least_shared=least), images) for least in (0, math.inf))
    return next((reason for reason in found if reason is not None), None)


def why_padded(model: PreTrainedModel, dtype: Dtype, images: ModelImages | None = None) -> str | None:
    """Return why completions of a model are run with pad tokens; None where they are run without.

    An architecture whose tokens would see each other in any other manner is run as it knows itself.
    """
    if model.device.type != "cpu":
        return "attention without them is for a CPU"
    if not has_full_attention(model.config.get_text_config()):
        return "the model has other layers than full attention"

    def logits(tokens: SampledCompletions) -> Float[Tensor, "N V"]:
        return vocabulary_head(model)(grouped_hidden(model, GroupedTokens.of(tokens, ROWS), images))

    # In float32, too: what features lack in later layers (Qwen3-VL), or tokens do not see, may be less than bfloat16 allows.
    tried: tuple[Dtype, ...] = (dtype,) if images is None else ("float32", dtype)
    found = (_why_different(model, one, logits, images) for one in tried)
    return next((reason for reason in found if reason is not None), None)


@torch.no_grad()
def _why_different(
    model: PreTrainedModel,
    dtype: Dtype,
    logits: Callable[[SampledCompletions], Float[Tensor, "N V"]],
    images: ModelImages | None,
) -> str | None:
    """Return why another way to run a model cannot be used; None where its log-probabilities are those of padded passes.

    Args:
        model: as it is loaded.
        dtype: what its matrix products are computed in.
        logits: the other way to compute the logits that predict the completion tokens of `ROWS`, row by row.
        images: that one of the prompts has; None = the model reads text alone.
    """
    tokens = some_tokens(model.config.get_text_config().vocab_size, model.device, images)
    try:
        with compute_in(dtype, model.device):
            plain = torch.log_softmax(vocabulary_head(model)(rows_hidden(model, tokens, ROWS, images)).float(), dim=-1)
            found = torch.log_softmax(logits(tokens).float(), dim=-1)
        difference = float((plain.exp() * (found - plain).abs()).sum(dim=-1).mean())
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return f"this model cannot be computed so here ({type(error).__name__})"
    if difference <= TOLERANCE[dtype]:
        return None
    return f"its log-probabilities would differ by {difference:.3g} in the mean, more than {TOLERANCE[dtype]:g}"
