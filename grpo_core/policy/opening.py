"""Load a policy from a folder, to be used as a configuration says."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.errors import ModelError, raised_as
from grpo_core.policy.device import pick_device
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.forward import refuse_other_layers
from grpo_core.policy.loading import eos_token_ids, load_model, outline_of, require_vocabulary
from grpo_core.policy.lora.facts import not_finite, read_adapter
from grpo_core.policy.outline import beyond_positions
from grpo_core.policy.policy import BatchLimits, Policy
from grpo_core.policy.sources.find import model_here, resolve_adapter, resolve_model
from grpo_core.policy.tokenizer import load_tokenizer
from grpo_core.policy.weights import Weights

if TYPE_CHECKING:
    from grpo_core.policy.lora.adapted import AdaptedPolicy


def open_policy(folder: Path, config: RunConfig, stored_initial: Path | None = None) -> Policy:
    """Return the policy in a folder: a model of transformers, or an adapter of `model.source` in PEFT's format.

    With `model.lora`, a model gets the adapter with which a training begins.

    Args:
        folder: of the policy.
        config: how it is used.
        stored_initial: initial policy of a run, as it has stored it: for where `model.lora.init_from` is gone, or the folder
            is one of the run's own checkpoints because `model.source` is.

    Raises:
        ModelError: it cannot be loaded or used.
    """
    is_adapter = config.model.lora is not None and not (folder / "config.json").exists()
    base = resolve_model(config.model.source, config.model.trust_remote_code) if is_adapter else folder
    model = load_model(base, pick_device(config.training.device), config.model.trust_remote_code)
    tokenizer = load_tokenizer(base, config.model.trust_remote_code)
    require_vocabulary(model, tokenizer, base)
    if config.training.gradient_checkpointing:
        refuse_other_layers(model)
    if config.model.lora is None:
        plain = _policy(model, tokenizer, config)
        if stored_initial is not None and folder.is_relative_to(stored_initial.parent):
            _take_stored(plain, stored_initial)
        return plain
    policy = _adapted(model, tokenizer, config, config.model.lora)
    start = config.model.lora.init_from
    if is_adapter:
        _load(policy, folder, config.model.lora)
    elif start is not None and stored_initial is not None and model_here(start) is None:
        _take_stored(policy, stored_initial)
    elif start is not None:
        own = resolve_adapter(start)
        _load(policy, own, config.model.lora)
        if (fault := not_finite(own)) is not None:
            raise ModelError(f"model.lora.init_from {start}: {fault}")
    return policy


def require_positions(policy: Policy, config: RunConfig) -> None:
    """Refuse a run whose prompts and completions can be longer than its model has positions.

    Raises:
        ModelError: names both.
    """
    for fault in beyond_positions(config, outline_of(policy.model), is_bound=True):
        raise ModelError(f"model.source {config.model.source}: {fault}")


def _policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> Policy:
    return Policy(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(model, tokenizer),
        dtype=config.model.dtype,
        temperature=config.rollout.temperature,
        limits=BatchLimits(rollout_rows=config.training.rollout_rows, microbatch_tokens=config.training.microbatch_tokens),
        path=SamplingPath.fastest(model, config.model.dtype, may_pack=config.training.packed_weights),
        recomputed=config.training.gradient_checkpointing,
    )


def _adapted(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: RunConfig, lora: LoraConfig
) -> "AdaptedPolicy":
    from grpo_core.policy.lora.adapted import AdaptedPolicy, add_adapter  # here: most need no PEFT, whose import takes a second

    add_adapter(model, lora, seed=config.training.seed, dtype=config.model.dtype, source=config.model.source)
    return AdaptedPolicy.of(_policy(model, tokenizer, config), most_rank=lora.most_rank)


def _load(policy: "AdaptedPolicy", folder: Path, lora: LoraConfig) -> None:
    """Give a policy the adapter in a folder.

    Raises:
        ModelError: it cannot be read, or is another one than the configuration's.
    """
    facts, factors = read_adapter(folder), policy.stored(folder)
    if not math.isclose(facts.alpha_scale, lora.scale, rel_tol=1e-9):
        raise ModelError(f"model.lora.alpha: a scale of {lora.scale:g}, that of {folder} is {facts.scale_formula}")
    _take(policy, factors, f"model.lora: {folder} holds another adapter")


def _take_stored(policy: Policy, place: Path) -> None:
    """Give a policy the initial weights that a run has stored; their digest is in its checkpoints."""
    with raised_as(ModelError, f"{place}: cannot be read ({{cause}})", OSError, ValueError, SafetensorError):
        weights = load_file(place)
    _take(policy, weights, f"{place} holds the initial policy of another model")


def _take(policy: Policy, weights: Weights, misfit: str) -> None:
    if (fault := policy.misfit(weights)) is not None:
        raise ModelError(f"{misfit}: {fault}")
    policy.load(weights)
