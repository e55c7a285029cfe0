"""Load a policy from a folder, to be used as a configuration says."""

import math
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

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
    policy = Policy(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(model, tokenizer),
        dtype=config.model.dtype,
        temperature=config.rollout.temperature,
        limits=BatchLimits(rollout_rows=config.training.rollout_rows, microbatch_tokens=config.training.microbatch_tokens),
        recomputed=config.training.gradient_checkpointing,
    )
    lora = config.model.lora
    if lora is not None:
        from grpo_core.policy.lora.adapted import with_adapter  # here: most runs need no PEFT, whose import takes a second

        policy = with_adapter(policy, lora, seed=config.training.seed, source=config.model.source)
    policy = replace(policy, path=SamplingPath.fastest(model, config.model.dtype, may_pack=config.training.packed_weights))
    if lora is not None:
        _set_adapter(policy, lora, folder if is_adapter else None, stored_initial)
    elif stored_initial is not None and folder.is_relative_to(stored_initial.parent):
        _take_stored(policy, stored_initial)
    return policy


def _set_adapter(policy: Policy, lora: LoraConfig, folder: Path | None, stored_initial: Path | None) -> None:
    """Give a policy the adapter in a folder, or without one that with which its training begins, where it is not a new one.

    Raises:
        ModelError: it cannot be read, is another one than the configuration's, or is not finite.
    """
    if folder is None and lora.init_from is None:
        return
    if folder is None and stored_initial is not None and model_here(str(lora.init_from)) is None:
        _take_stored(policy, stored_initial)
        return
    place = resolve_adapter(str(lora.init_from)) if folder is None else folder
    facts, factors = read_adapter(place), policy.stored(place)
    if not math.isclose(facts.alpha_scale, lora.scale, rel_tol=1e-9):
        raise ModelError(f"model.lora.alpha: a scale of {lora.scale:g}, that of {place} is {facts.scale_formula}")
    _take(policy, factors, f"model.lora: {place} holds another adapter")
    if folder is None and (fault := not_finite(place)) is not None:
        raise ModelError(f"model.lora.init_from {lora.init_from}: {fault}")


def require_positions(policy: Policy, config: RunConfig) -> None:
    """Refuse a run whose prompts and completions can be longer than its model has positions.

    Raises:
        ModelError: names both.
    """
    for fault in beyond_positions(config, outline_of(policy.model), is_bound=True):
        raise ModelError(f"model.source {config.model.source}: {fault}")


def _take_stored(policy: Policy, place: Path) -> None:
    """Give a policy the initial weights that a run has stored; their digest is in its checkpoints."""
    with raised_as(ModelError, f"{place}: cannot be read ({{cause}})", OSError, ValueError, SafetensorError):
        weights = load_file(place)
    _take(policy, weights, f"{place} holds the initial policy of another model")


def _take(policy: Policy, weights: Weights, misfit: str) -> None:
    if (fault := policy.misfit(weights)) is not None:
        raise ModelError(f"{misfit}: {fault}")
    policy.load(weights)
