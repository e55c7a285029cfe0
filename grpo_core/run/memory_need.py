"""How much memory the phases of a step need, known before they run: from the configuration and the shape of the model.

    states   = 4 bytes x parameters x (policy, reference, initial policy once a sync made it another, two moments of AdamW)
               (`reference.offload` on a GPU: policy and moments; a pass under another policy has its weights beside them)
    rollout  = states + weights as they are multiplied + keys and values of `rollout_rows` completions + 3 logits of a token
    logps    = states + casts of weights + the logits of a micro-batch, twice, or one layer's activations and the cache
    update   = states + casts of weights + what all layers keep for the backward pass + 3 logits
               + gradients, where there are several micro-batches
               (gradient checkpointing: what one layer keeps and the inputs of all, beside the gradients)

What a layer keeps for each token, in numbers of its width H, its heads' width A, its key-value heads' width K, and of the MLP's
I: the input of each norm, the normalised input, and the products' inputs; query, key, value and output of attention; gate, its
activation, the other half and their product (4 I). Attention without pad tokens is computed in fp32 (`policy/fast/grouped.py`);
elsewhere keys and values of a prompt are repeated for each of its completions, and all for the heads that share them.

With `model.lora` the base is there once, and what is trained and copied is the adapter (`adapter_size.py`):

    states   = base, its adapted matrices in the compute type and the rest in fp32
               + 4 bytes x (adapter x (policy, initial policy, two moments of AdamW) + the reference once it has moved)

In fp32 the sampler multiplies with sums of base and adapter, in bfloat16 with both. What has no gradient keeps no input for the
backward pass: the products of the base, and the norms, keep none of their own.

Measured on a CPU against the peaks of allocated tensors: tests/integration/test_memory_need.py. What the allocator keeps
beyond tensors is no part of it, nor is what the process had before.
"""

from dataclasses import dataclass

from grpo_core.config import RunConfig
from grpo_core.config.derived import measures_full_kl, reference_moves, takes_full_kl
from grpo_core.policy.logits_memory import FULL_KL_COPIES, most_at_once
from grpo_core.run.adapter_size import AdapterSize, adapter_size
from grpo_core.run.disk_need import MOMENTS, shown_bytes
from grpo_core.run.model_shape import ModelShape

FLOAT, HALF = 4, 2
"""Bytes."""


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
    states = states_of(config, shape).bytes
    piece = Piece.largest(config)
    visiting = FLOAT * shape.parameters if config.reference.offload else 0
    return MemoryNeed(
        states=states,
        rollout=states + rollout_bytes(config, shape, packed=not padded),
        logps=states + visiting + logps_bytes(config, shape, piece, padded=padded),
        update=states + (visiting if takes_full_kl(config) else 0) + update_bytes(config, shape, piece, padded=padded),
    )


def acting_on(config: RunConfig, *, on_gpu: bool) -> RunConfig:
    """Return a configuration as it acts on a GPU or a CPU, where nothing is offloaded."""
    if on_gpu or not config.reference.offload:
        return config
    return config.model_copy(update={"reference": config.reference.model_copy(update={"offload": False})})


@dataclass(frozen=True, kw_only=True)
class States:
    """What stays for the whole run."""

    bytes: int
    formula: str
    """`4 bytes x 134,515,008 parameters x 4 (policy, reference, two moments of AdamW)`."""


def states_of(config: RunConfig, shape: ModelShape) -> States:
    """Return what stays for the whole run."""
    moves, adapter = reference_moves(config), adapter_size(config, shape.linear_layers)
    if adapter is None:
        held = ["reference", "initial policy"][: 0 if config.reference.offload else 1 + moves]
        models = 1 + len(held) + MOMENTS
        weights = f"{shape.parameters:,} parameters x {models} ({', '.join(['policy', *held, 'two moments of AdamW'])})"
        return States(bytes=FLOAT * shape.parameters * models, formula=f"{FLOAT} bytes x {weights}")
    base = FLOAT * shape.parameters - (FLOAT - half_of(config)) * adapter.adapted
    copies, reference = 2 + MOMENTS, FLOAT * adapter.reference * moves
    first = "initial policy" if moves else "reference"
    formula = f"base {shown_bytes(base)} + {FLOAT} bytes x {adapter.weights:,} weights of the adapter x {copies} "
    formula += f"(policy, {first}, two moments of AdamW)" + (f" + reference {shown_bytes(reference)}" if moves else "")
    return States(bytes=base + FLOAT * adapter.weights * copies + reference, formula=formula)


def half_of(config: RunConfig) -> int:
    """Return the bytes of a number in the compute type."""
    return HALF if config.model.dtype == "bfloat16" else FLOAT


def rollout_bytes(config: RunConfig, shape: ModelShape, *, packed: bool) -> int:
    """Return what sampling needs beside the states."""
    rollout, half = config.rollout, half_of(config)
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
    head = FLOAT * shape.vocabulary * shape.hidden if packed else 0
    logits = 3 * FLOAT * rows * shape.vocabulary
    return _multiplied(config, shape, packed=packed) + head + cache + logits


def _multiplied(config: RunConfig, shape: ModelShape, *, packed: bool) -> int:
    """Return the bytes of the layers' matrices as completions are sampled with them, beside the states."""
    half, adapter = half_of(config), adapter_size(config, shape.linear_layers)
    if half == HALF:  # autocast keeps the casts of the prompts' pass beside those that decoding multiplies with
        own = 0 if packed or adapter is None else adapter.adapted  # multiplied with where they are
        factors = 0 if adapter is None else 2 * adapter.weights  # with the zeros between B of matrices that are joined
        return HALF * (_matrices(shape) - own + factors) + _casts(shape, half, adapter)
    merged = 0 if adapter is None else adapter.adapted
    return FLOAT * (_matrices(shape) if packed else merged)


def logps_bytes(config: RunConfig, shape: ModelShape, piece: Piece, *, padded: bool) -> int:
    """Return what a pass without gradient needs beside the states: one layer of it at a time, then its logits.

    Of what a layer would keep for the backward pass, about half is there at a time. A padded pass hands keys and values of
    the prompts to each of their completions, in all layers.
    """
    logits = max(
        (1 + copies) * FLOAT * shape.vocabulary * most_at_once(piece.of_rows, copies * shape.vocabulary)
        for copies in ((1, FULL_KL_COPIES) if measures_full_kl(config) else (1,))
    )
    tokens = piece.rows * (piece.prompt_tokens + piece.completion_tokens) if padded else 0
    cache = FLOAT * tokens * shape.layers * 2 * shape.key_value
    half, adapter = half_of(config), adapter_size(config, shape.linear_layers)
    of_layer = layer_bytes(shape, piece, half, adapter, padded=padded) // 2
    return _casts(shape, half, adapter) + max(logits, cache + of_layer)


def update_bytes(config: RunConfig, shape: ModelShape, piece: Piece, *, padded: bool) -> int:
    """Return what the update needs beside the states.

    At the most, the activations of a micro-batch are there and no gradient yet, or those of the micro-batches before it.
    """
    copies = FULL_KL_COPIES if takes_full_kl(config) else 1
    logits = (2 + copies) * FLOAT * shape.vocabulary * most_at_once(piece.of_rows, copies * shape.vocabulary)
    half, adapter = half_of(config), adapter_size(config, shape.linear_layers)
    gradients = FLOAT * (shape.parameters if adapter is None else adapter.weights)
    casts = _casts(shape, half, adapter) + _casts_in_graph(shape, half, adapter, padded=padded)
    kept = kept_bytes(shape, piece, half, adapter, padded=padded)
    if config.training.gradient_checkpointing:  # layer by layer: its activations and casts, while gradients come
        kept, casts = inputs_bytes(shape, piece, padded=padded), casts // shape.layers
        gradients += layer_bytes(shape, piece, half, adapter, padded=padded)
    passes = kept + logits
    rows = config.rollout.num_prompts_per_step * config.rollout.group_size // config.loss.minibatches
    return casts + (passes + gradients if piece.rows < rows else max(passes, gradients))


def kept_bytes(shape: ModelShape, piece: Piece, half: int, adapter: AdapterSize | None = None, *, padded: bool) -> int:
    """Return what all layers keep of a piece for the backward pass."""
    return shape.layers * layer_bytes(shape, piece, half, adapter, padded=padded)


def layer_bytes(shape: ModelShape, piece: Piece, half: int, adapter: AdapterSize | None, *, padded: bool) -> int:
    """Return what one layer keeps of a piece for the backward pass."""
    of_prompt, of_completion = _of_attention(shape, piece, half, padded=padded)
    of_both = _of_products(shape, half) if adapter is None else _of_adapted_products(shape, half, adapter)
    return piece.of_prompts * (of_both + of_prompt) + piece.of_rows * (of_both + of_completion)


def inputs_bytes(shape: ModelShape, piece: Piece, *, padded: bool) -> int:
    """Return what all layers keep of a piece where they are computed again: their inputs, and the prompts' keys and values."""
    hidden = FLOAT * (piece.of_prompts + piece.of_rows) * shape.hidden
    cache = FLOAT * piece.of_prompts * 2 * shape.key_value if padded else 0
    return shape.layers * (hidden + cache)


def _of_products(shape: ModelShape, half: int) -> int:
    """Return the bytes that a layer's norms, products and activation keep for a token."""
    inputs = 2 if half == FLOAT else 5  # autocast casts the input of a product once for each of its matrices
    norms = shape.hidden * (2 * (FLOAT + FLOAT) + inputs * half)
    return norms + half * (4 * shape.intermediate + shape.attention)


def _of_adapted_products(shape: ModelShape, half: int, adapter: AdapterSize) -> int:
    """Return the same where an adapter is trained: its factors alone keep their inputs."""
    inputs = adapter.inputs if half == HALF else adapter.distinct_inputs
    of_adapter = half * (inputs + adapter.ranks) // shape.layers
    return 2 * FLOAT * shape.hidden + half * 3 * shape.intermediate + of_adapter


def _of_attention(shape: ModelShape, piece: Piece, half: int, *, padded: bool) -> tuple[int, int]:
    """Return the bytes that a layer's attention keeps for a token of a prompt and for one of a completion."""
    if not padded:
        of_prompt = FLOAT * 2 * (shape.attention + shape.key_value)
        of_completion = FLOAT * 4 * shape.attention
    else:
        of_prompt = half * 4 * shape.attention
        seen = (piece.prompt_tokens + piece.completion_tokens) / piece.completion_tokens
        of_completion = half * 2 * shape.attention + int(seen * half * 2 * shape.attention)
    return of_prompt, of_completion


def _casts(shape: ModelShape, half: int, adapter: AdapterSize | None) -> int:
    """Return the bytes of weights as autocast keeps them for a phase: of those that are trained."""
    return half * (_matrices(shape) if adapter is None else adapter.weights) if half == HALF else 0


def _casts_in_graph(shape: ModelShape, half: int, adapter: AdapterSize | None, *, padded: bool) -> int:
    """Return the bytes of further casts that a pass keeps for its backward pass.

    A frozen matrix without an adapter is in fp32, and cast anew by each product with it: of prompts and of completions, where
    these are padded.
    """
    if half != HALF or adapter is None:
        return 0
    return half * (1 + padded) * max(0, _matrices(shape) - adapter.adapted)


def _matrices(shape: ModelShape) -> int:
    """Return how many weights the layers' matrices have."""
    attention = shape.hidden * (2 * shape.attention + 2 * shape.key_value)
    return shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
