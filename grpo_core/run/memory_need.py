"""How much memory the phases of a step need, known before they run: from the configuration and the shape of the model.

    states   = 4 bytes x parameters x (policy, reference, initial policy once a sync made it another, two moments of AdamW)
    rollout  = states + weights as they are multiplied + keys and values of `rollout_rows` completions + 3 logits of a token
    logps    = states + casts of weights + the logits of a micro-batch, twice, or one layer's activations and the cache
    update   = states + casts of weights + what all layers keep for the backward pass + 3 logits
               + gradients, where there are several micro-batches
               (gradient checkpointing: what one layer keeps and the inputs of all, beside the gradients)

What a layer keeps for each token, in numbers of its width H, its heads' width A, its key-value heads' width K, and of the MLP's
I: the input of each norm, the normalised input, and the products' inputs; query, key, value and output of attention; gate, its
activation, the other half and their product (4 I). Attention without pad tokens is computed in fp32 (`policy/grouped.py`);
elsewhere keys and values of a prompt are repeated for each of its completions, and all for the heads that share them.

Measured on a CPU against the peaks of allocated tensors: tests/integration/test_memory_need.py. What the allocator keeps
beyond tensors is no part of it, nor is what the process had before.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.policy.logits_memory import FULL_KL_COPIES, most_at_once
from grpo_core.run.disk_need import MOMENTS, count_parameters

FLOAT, HALF = 4, 2
"""Bytes."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of models whose matrices are not those of `intermediate_size` alone."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the memory of a model depends on."""

    parameters: int
    layers: int
    hidden: int
    """H."""
    intermediate: int
    """I."""
    attention: int
    """A: heads x size of a head."""
    key_value: int
    """K: key-value heads x size of a head."""
    vocabulary: int

    @classmethod
    def of(cls, config: dict[str, Any], parameters: int) -> "ModelShape":
        """Read a `config.json` of transformers.

        Raises:
            LookupError, TypeError: it names its sizes otherwise.
        """
        text = config.get("text_config", config)
        if experts := [key for key in text if key in EXPERTS]:
            raise LookupError(f"{experts[0]}: layers of experts are no product of these sizes")
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        size = text.get("head_dim") or hidden // heads
        return cls(
            parameters=parameters,
            layers=text["num_hidden_layers"],
            hidden=hidden,
            intermediate=text["intermediate_size"],
            attention=heads * size,
            key_value=(text.get("num_key_value_heads") or heads) * size,
            vocabulary=text["vocab_size"],
        )


KNOWN_SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": ModelShape(
        parameters=494_032_768,
        layers=24,
        hidden=896,
        intermediate=4864,
        attention=896,
        key_value=128,
        vocabulary=151_936,
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": ModelShape(
        parameters=1_543_714_304,
        layers=28,
        hidden=1536,
        intermediate=8960,
        attention=1536,
        key_value=256,
        vocabulary=151_936,
    ),
}
"""Of models that presets name, so that a preset can be checked before its model is downloaded."""


def shape_of(folder: Path) -> ModelShape | None:
    """Return the shape of the model in a folder; None where its files do not tell."""
    parameters = count_parameters(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
        return None if parameters is None else ModelShape.of(config, parameters)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Bytes of tensors at most, in each phase of a step; every phase has the states, too."""

    states: int
    rollout: int
    logps: int
    update: int

    @property
    def most(self) -> int:
        """Of the phase that needs most."""
        return max(self.rollout, self.logps, self.update)

    def phases(self) -> dict[str, int]:
        """Return them by phase."""
        return {"rollout": self.rollout, "logps": self.logps, "update": self.update}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows of one pass at their longest."""

    prompts: int
    rows: int
    prompt_tokens: int
    """S, of each prompt."""
    completion_tokens: int
    """T, of each row."""

    @classmethod
    def largest(cls, config: RunConfig) -> "Piece":
        """Return the largest micro-batch of an update."""
        rollout, limit = config.rollout, config.training.microbatch_tokens
        group, prompt, completion = rollout.group_size, rollout.max_prompt_tokens, rollout.max_completion_tokens
        all_rows = rollout.num_prompts_per_step * group // config.loss.minibatches
        most = min(all_rows, limit * group // (completion * group + prompt))  # where every row has its share of a prompt
        fitting = (rows for rows in range(most, 1, -1) if -(-rows // group) * prompt + rows * completion <= limit)
        rows = next(fitting, 1)
        return cls(prompts=-(-rows // group), rows=rows, prompt_tokens=prompt, completion_tokens=completion)

    @property
    def of_prompts(self) -> int:
        """Tokens of all prompts."""
        return self.prompts * self.prompt_tokens

    @property
    def of_rows(self) -> int:
        """Tokens of all completions."""
        return self.rows * self.completion_tokens


def memory_need(config: RunConfig, shape: ModelShape, *, padded: bool) -> MemoryNeed:
    """Return what a run needs at most.

    Args:
        config: of the run.
        shape: of its model.
        padded: whether completions are padded in a pass (`why_padded`): on a GPU, and on a CPU where the model asks for it.
    """
    states = states_bytes(config, shape)
    piece = Piece.largest(config)
    half = HALF if config.model.dtype == "bfloat16" else FLOAT
    return MemoryNeed(
        states=states,
        rollout=states + rollout_bytes(config, shape, half, packed=not padded),
        logps=states + logps_bytes(shape, piece, half, padded=padded),
        update=states + update_bytes(config, shape, piece, half, padded=padded),
    )


def states_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return what stays for the whole run."""
    models = 2 + reference_moves(config)
    return FLOAT * shape.parameters * (models + MOMENTS)


def rollout_bytes(config: RunConfig, shape: ModelShape, half: int, *, packed: bool) -> int:
    """Return what sampling needs beside the states."""
    rollout = config.rollout
    if rollout.engine != "embedded":
        return 0
    evaluation, probe = config.evaluation, config.probe
    wanted = max(
        rollout.num_prompts_per_step * rollout.group_size,
        (evaluation.num_prompts or config.training.rollout_rows) * max(1, evaluation.samples),
        0 if probe.every_steps is None else probe.num_prompts,
    )
    rows = min(max(config.training.rollout_rows, rollout.group_size), wanted)
    tokens = rows * (rollout.max_prompt_tokens + rollout.max_completion_tokens)
    cache = tokens * shape.layers * 2 * shape.key_value * half
    # In bfloat16 autocast keeps the casts of the prompts' pass beside those that decoding multiplies with.
    weights = _matrices(shape) * (2 * HALF if half == HALF else FLOAT * packed)
    head = FLOAT * shape.vocabulary * shape.hidden if packed else 0
    logits = 3 * FLOAT * rows * shape.vocabulary
    return weights + head + cache + logits


def logps_bytes(shape: ModelShape, piece: Piece, half: int, *, padded: bool) -> int:
    """Return what a pass without gradient needs beside the states: one layer of it at a time, then its logits.

    Of what a layer would keep for the backward pass, about half is there at a time. A padded pass hands keys and values of
    the prompts to each of their completions, in all layers.
    """
    logits = 2 * FLOAT * shape.vocabulary * most_at_once(piece.of_rows, shape.vocabulary)
    tokens = piece.rows * (piece.prompt_tokens + piece.completion_tokens) if padded else 0
    cache = FLOAT * tokens * shape.layers * 2 * shape.key_value
    of_layer = kept_bytes(replace(shape, layers=1), piece, half, padded=padded) // 2
    return _casts(shape, half) + max(logits, cache + of_layer)


def update_bytes(config: RunConfig, shape: ModelShape, piece: Piece, half: int, *, padded: bool) -> int:
    """Return what the update needs beside the states.

    At the most, the activations of a micro-batch are there and no gradient yet, or those of the micro-batches before it.
    """
    takes_full = config.loss.kl_estimator == "full" and config.loss.beta > 0
    copies = FULL_KL_COPIES if takes_full else 1
    logits = (2 + copies) * FLOAT * shape.vocabulary * most_at_once(piece.of_rows, copies * shape.vocabulary)
    gradients, kept, casts = FLOAT * shape.parameters, kept_bytes(shape, piece, half, padded=padded), _casts(shape, half)
    if config.training.gradient_checkpointing:  # layer by layer: its activations and casts, while gradients come
        kept, casts = inputs_bytes(shape, piece, padded=padded), casts // shape.layers
        gradients += kept_bytes(replace(shape, layers=1), piece, half, padded=padded)
    passes = kept + logits
    rows = config.rollout.num_prompts_per_step * config.rollout.group_size // config.loss.minibatches
    return casts + (passes + gradients if piece.rows < rows else max(passes, gradients))


def kept_bytes(shape: ModelShape, piece: Piece, half: int, *, padded: bool) -> int:
    """Return what all layers keep of a piece for the backward pass."""
    of_prompt, of_completion = _per_token(shape, piece, half, padded=padded)
    return shape.layers * (piece.of_prompts * of_prompt + piece.of_rows * of_completion)


def inputs_bytes(shape: ModelShape, piece: Piece, *, padded: bool) -> int:
    """Return what all layers keep of a piece where they are computed again: their inputs, and the prompts' keys and values."""
    hidden = FLOAT * (piece.of_prompts + piece.of_rows) * shape.hidden
    cache = FLOAT * piece.of_prompts * 2 * shape.key_value if padded else 0
    return shape.layers * (hidden + cache)


def _per_token(shape: ModelShape, piece: Piece, half: int, *, padded: bool) -> tuple[int, int]:
    """Return the bytes that a layer keeps for a token of a prompt and for one of a completion."""
    inputs = 2 if half == FLOAT else 5  # autocast casts the input of a product once for each of its matrices
    norms = shape.hidden * (2 * (FLOAT + FLOAT) + inputs * half)
    mlp = 4 * shape.intermediate * half
    out = half * shape.attention
    if not padded:
        of_prompt = FLOAT * 2 * (shape.attention + shape.key_value)
        of_completion = FLOAT * 4 * shape.attention
    else:
        of_prompt = half * 4 * shape.attention
        seen = (piece.prompt_tokens + piece.completion_tokens) / piece.completion_tokens
        of_completion = half * 2 * shape.attention + int(seen * half * 2 * shape.attention)
    return norms + mlp + out + of_prompt, norms + mlp + out + of_completion


def _casts(shape: ModelShape, half: int) -> int:
    """Return the bytes of weights as autocast keeps them for a phase."""
    return _matrices(shape) * half if half == HALF else 0


def _matrices(shape: ModelShape) -> int:
    """Return how many weights the layers' matrices have."""
    attention = shape.hidden * (2 * shape.attention + 2 * shape.key_value)
    return shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
