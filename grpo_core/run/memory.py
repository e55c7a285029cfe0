"""How much memory the phases of a step need in one process, known before they run; `fit.py` compares it with a device.

    states   = 4 bytes x parameters x (policy, reference, initial policy once a sync made it another, two moments of AdamW)
               (`reference.offload` on a GPU: policy and moments; a pass under another policy has its weights beside them)
    rollout  = states + weights as they are multiplied + keys and values of `rollout_rows` completions + 3 logits of a token
    logps    = states + casts of weights + the logits of a micro-batch, twice, or one layer's activations and the cache
    update   = states + casts of weights + what all layers keep for the backward pass + 3 logits
               + gradients, where there are several micro-batches
               (gradient checkpointing: what one layer keeps and the inputs of all, beside the gradients)

States, logits and the cache are exact; on a CPU the rows of a long prompt share its part of the cache (`caches.py`), and where
all are shorter each has a copy, which may be more. What a layer keeps is `layer_bytes`, right within a quarter. With
`model.lora` the base is there once, and what is trained and copied is the adapter:

    states   = base, its adapted matrices in the compute type and the rest in fp32
               + 4 bytes x (adapter x (policy, initial policy, two moments of AdamW) + the reference once it has moved)

With weights spread over several processes (`training.shards`), each has its rows of the states and of the gradients. A layer's
matrices are gathered in the compute type when its turn comes, beside those of the layer before; the rest, the root (embedding,
norms, vocabulary head), in fp32:

    states   / shards
    rollout  + all matrices and the root, instead of casts
    logps    + the matrices of two layers and the root, instead of casts
    update   + the matrices of two layers, instead of casts; gradients / shards
             + 3 times the root: its weights, its gradient, and that gradient on its way to the others

A tower for images has its states like all weights, once where it is frozen; it keeps activations of the patches of a pass,
which are at most those that its prompts' tokens can stand for; where it is not trained, one layer's are there at a time:

    update   + what all layers of the tower keep        logps, rollout   + one layer's

Sizes of passes are those of one process; of a step's prompts it completes its part. Several GPUs were not measured yet; one
process on a CPU was, by the peaks of allocated tensors: tests/integration/test_memory_need.py. What the allocator keeps beyond
tensors is no part of it, nor is what the process had before.
"""

from dataclasses import dataclass

from grpo_core.config import RunConfig
from grpo_core.config.derived import measures_full_kl, reference_moves, takes_full_kl, weight_shards
from grpo_core.policy.outline import FULL_KL_COPIES, LEAST_SHARED, most_at_once
from grpo_core.run.sizes import MOMENTS, ModelShape, adapter_size, shown_bytes

FLOAT, HALF = 4, 2
"""Bytes."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Bytes of tensors that a process has at most, in each phase of a step; every phase has the states, too."""

    states: int
    rollout: int
    logps: int
    update: int

    def phases(self) -> dict[str, int]:
        """Return them by phase."""
        return {"rollout": self.rollout, "logps": self.logps, "update": self.update}


def memory_need(config: RunConfig, shape: ModelShape, *, padded: bool) -> MemoryNeed:
    """Return what each process of a run needs at most.

    Args:
        config: of the run.
        shape: of its model.
        padded: whether completions are padded in a pass (`why_padded`): on a GPU, and on a CPU where the model asks for it.
    """
    states, _ = states_of(config, shape)
    visiting = FLOAT * shape.parameters if config.reference.offload else 0
    return MemoryNeed(
        states=states,
        rollout=states + rollout_bytes(config, shape, packed=not padded, shared=not padded),
        logps=states + visiting + logps_bytes(config, shape, padded=padded),
        update=states + (visiting if takes_full_kl(config) else 0) + update_bytes(config, shape, padded=padded),
    )


def acting_on(config: RunConfig, *, on_gpu: bool) -> RunConfig:
    """Return a configuration as it acts on a GPU or a CPU, where nothing is offloaded."""
    if on_gpu or not config.reference.offload:
        return config
    return changed(config, "reference", offload=False)


def states_of(config: RunConfig, shape: ModelShape) -> tuple[int, str]:
    """Return (bytes, formula with its numbers) of what stays in a process for the whole run."""
    moves, adapter, shards = reference_moves(config), adapter_size(config, shape.linear_layers), weight_shards(config)
    if adapter is None:
        held = ["reference", "initial policy"][: 0 if config.reference.offload else 1 + moves]
        models, frozen = 1 + len(held) + MOMENTS, frozen_weights(config, shape)
        trained, each = shape.parameters - frozen, f" / {shards} (training.shards)" if shards > 1 else ""
        weights = f"{trained:,} parameters x {models} ({', '.join(['policy', *held, 'two moments of AdamW'])})"
        weights += f" + {FLOAT} bytes x {frozen:,} of the frozen tower" if frozen else ""
        return -(-FLOAT * (trained * models + frozen) // shards), f"{FLOAT} bytes x {weights}{each}"
    base = FLOAT * shape.parameters - (FLOAT - compute_bytes(config)) * adapter.adapted
    copies, reference = 2 + MOMENTS, FLOAT * adapter.reference * moves
    first = "initial policy" if moves else "reference"
    formula = f"base {shown_bytes(base)} + {FLOAT} bytes x {adapter.weights:,} weights of the adapter x {copies} "
    formula += f"(policy, {first}, two moments of AdamW)" + (f" + reference {shown_bytes(reference)}" if moves else "")
    return base + FLOAT * adapter.weights * copies + reference, formula


def frozen_weights(config: RunConfig, shape: ModelShape) -> int:
    """Return how many weights of a model stay as they are because of `model.freeze`."""
    return shape.tower.weights if config.model.freeze and shape.tower is not None else 0


def compute_bytes(config: RunConfig) -> int:
    """Return the bytes of a number in the compute type."""
    return HALF if config.model.dtype == "bfloat16" else FLOAT


def rollout_bytes(config: RunConfig, shape: ModelShape, *, packed: bool, shared: bool) -> int:
    """Return what sampling needs beside the states.

    Args:
        config: of the run.
        shape: of its model.
        packed: whether large matrices are packed for it.
        shared: whether completions of a long prompt share its keys and values.
    """
    if config.rollout.engine != "embedded":
        return 0
    half, adapter, batches = compute_bytes(config), adapter_size(config, shape.linear_layers), _sampled_batches(config)
    rows = max(prompts * completions for prompts, completions in batches)
    seen = max(_cached_tokens(config, *batch, shared=shared) for batch in batches)
    adapted = 0 if adapter is None else adapter.adapted
    if packed:
        multiplied = half * shape.matrices + FLOAT * shape.vocabulary * shape.hidden
    else:
        multiplied = FLOAT * adapted if half == FLOAT else half * (shape.matrices - adapted) * (weight_shards(config) == 1)
    if half == HALF and adapter is not None:
        multiplied += 2 * half * adapter.weights  # with the zeros between B of matrices that are joined
    read = max(prompts for prompts, _ in batches) * config.rollout.max_prompt_tokens
    images = tower_bytes(config, shape, read, layers=1) // 2
    cache = seen * shape.layers * 2 * shape.key_value * half
    return multiplied + _weights(config, shape, shape.layers) + cache + max(images, 3 * FLOAT * rows * shape.vocabulary)


def _sampled_batches(config: RunConfig) -> tuple[tuple[int, int], ...]:
    """Return (prompts, completions of each) of the most that a process samples at a time: in a step, evaluation, the probe."""
    rollout, evaluation, probe, processes = config.rollout, config.evaluation, config.probe, config.training.processes
    most = config.training.rollout_rows
    held_out = evaluation.num_prompts or most * processes
    wanted = (
        (rollout.num_prompts_per_step, rollout.group_size),
        (held_out, 1),
        (held_out, max(1, evaluation.samples)),
        (0 if probe.every_steps is None else probe.num_prompts, 1),
    )
    return tuple((min(-(-prompts // processes), max(1, most // each)), each) for prompts, each in wanted)


def _cached_tokens(config: RunConfig, prompts: int, completions: int, *, shared: bool) -> int:
    """Return the tokens whose keys and values are there at most while so many completions of each prompt are sampled."""
    longest, rows = config.rollout.max_prompt_tokens, prompts * completions
    copied = rows * (min(longest, LEAST_SHARED - 1) if shared and completions > 1 else longest)
    return max(copied, prompts * longest) + rows * config.rollout.max_completion_tokens


def logps_bytes(config: RunConfig, shape: ModelShape, *, padded: bool) -> int:
    """Return what a pass without gradient needs beside the states: one layer of it at a time, then its logits.

    Of what a layer would keep for the backward pass, about half is there at a time. A padded pass hands keys and values of
    the prompts to each of their completions, in all layers.
    """
    rollout, (tokens, completion_tokens) = config.rollout, pass_tokens(config)
    images = tower_bytes(config, shape, tokens - completion_tokens, layers=1) // 2
    logits = max(
        (1 + copies) * FLOAT * shape.vocabulary * most_at_once(completion_tokens, copies * shape.vocabulary)
        for copies in ((1, FULL_KL_COPIES) if measures_full_kl(config) else (1,))
    )
    seen = completion_tokens + completion_tokens * rollout.max_prompt_tokens // rollout.max_completion_tokens
    cache = FLOAT * seen * shape.layers * 2 * shape.key_value if padded else 0
    return _weights(config, shape, 2) + max(images, logits, cache + layer_bytes(config, shape, padded=padded) // 2)


def update_bytes(config: RunConfig, shape: ModelShape, *, padded: bool) -> int:
    """Return what the update of a process needs beside the states.

    At the most, the activations of a micro-batch are there and no gradient yet, or those of the micro-batches before it.
    """
    tokens, completion_tokens = pass_tokens(config)
    copies = FULL_KL_COPIES if takes_full_kl(config) else 1
    logits = (2 + copies) * FLOAT * shape.vocabulary * most_at_once(completion_tokens, copies * shape.vocabulary)
    half, adapter = compute_bytes(config), adapter_size(config, shape.linear_layers)
    shards = weight_shards(config)
    trained = shape.parameters - frozen_weights(config, shape) if adapter is None else adapter.weights
    gradients = FLOAT * trained // shards
    of_layer, weights = layer_bytes(config, shape, padded=padded), _weights(config, shape, 2, roots=3)
    if half == HALF and adapter is not None:  # a frozen matrix in fp32 is cast by each pass, of prompts and of completions
        weights += half * (1 + padded) * max(0, shape.matrices - adapter.adapted)
    if config.training.gradient_checkpointing:  # layer by layer: its activations and casts, while gradients come
        passes = logits + shape.layers * FLOAT * tokens * shape.hidden
        gradients, weights = gradients + of_layer, weights // shape.layers if shards == 1 else weights
    else:
        passes = logits + shape.layers * of_layer
    is_kept = adapter is None and not config.model.freeze
    kept_layers = (
        0 if shape.tower is None or not is_kept else 1 if config.training.gradient_checkpointing else shape.tower.layers
    )
    passes += tower_bytes(config, shape, tokens - completion_tokens, layers=kept_layers)
    rows = config.rollout.num_prompts_per_step * config.rollout.group_size // config.loss.minibatches
    is_cut = completion_tokens < rows * config.rollout.max_completion_tokens
    return weights + (passes + gradients if is_cut else max(passes, gradients))


def pass_tokens(config: RunConfig) -> tuple[int, int]:
    """Return the tokens of the largest micro-batch of an update, and how many of them are of completions."""
    rollout = config.rollout
    group, prompt, completion = rollout.group_size, rollout.max_prompt_tokens, rollout.max_completion_tokens
    all_rows = rollout.num_prompts_per_step * group // config.loss.minibatches
    whole = -(-all_rows // group) * prompt + all_rows * completion
    tokens = min(max(config.training.microbatch_tokens, prompt + completion), whole)
    return tokens, min(tokens * group * completion // (prompt + group * completion), all_rows * completion)


def layer_bytes(config: RunConfig, shape: ModelShape, *, padded: bool) -> int:
    """Return what one layer keeps of the largest micro-batch for the backward pass.

    Norms keep their inputs in fp32, attention about four tensors (in fp32 where nothing is padded), products their inputs in
    the compute type (with an adapter: those of its factors alone), and the MLP its gate, activation, other half and product.
    """
    half, (tokens, completion_tokens) = compute_bytes(config), pass_tokens(config)
    adapter, attention = adapter_size(config, shape.linear_layers), 4 * (half if padded else FLOAT) * shape.attention
    if adapter is None:
        of_token = 24 * shape.hidden + attention + half * (shape.attention + 4 * shape.intermediate)
    else:
        of_token = 8 * shape.hidden + attention + half * (3 * shape.intermediate + adapter.inputs // shape.layers)
    repeated = completion_tokens * config.rollout.max_prompt_tokens // config.rollout.max_completion_tokens
    # Where it is padded: keys and values of each completion's prompt, for all heads.
    return tokens * of_token + repeated * 2 * half * shape.attention * padded


def tower_bytes(config: RunConfig, shape: ModelShape, prompt_tokens: int, *, layers: int) -> int:
    """Return what some layers of the tower keep for the backward pass, where every token of the prompts is of an image."""
    if shape.tower is None:
        return 0
    tower, half = shape.tower, compute_bytes(config)
    of_patch = 24 * tower.hidden + 4 * half * tower.hidden + half * (tower.hidden + 3 * tower.intermediate)
    return prompt_tokens * tower.patches * of_patch * layers


def _weights(config: RunConfig, shape: ModelShape, layers: int, roots: int = 1) -> int:
    """Return the bytes of weights that a pass needs beside the states.

    Args:
        config: of the run.
        shape: of its model.
        layers: how many have their matrices gathered at a time, where the weights are spread over processes.
        roots: how often what is in no layer is there then. Otherwise autocast keeps casts of what is trained for a phase.
    """
    half, adapter = compute_bytes(config), adapter_size(config, shape.linear_layers)
    if weight_shards(config) > 1:
        return half * shape.matrices * layers // shape.layers + roots * FLOAT * (shape.parameters - shape.matrices)
    tower = 0 if shape.tower is None else shape.tower.weights
    return half * (tower + (shape.matrices if adapter is None else adapter.weights)) if half == HALF else 0


def changed(config: RunConfig, section: str, **values: object) -> RunConfig:
    """Return a configuration with other values in a section, unchecked."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
