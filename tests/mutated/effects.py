"""Configurations with one or two keys changed, over the whole range of each, and what they are compared with."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, check_consistency, validate_config
from grpo_core.errors import ConfigError
from tests.mutated.overrides import LEAVES

EVERYTHING = {
    "probe.every_steps": 2,
    "probe.num_prompts": 4,
    "evaluation.every_steps": 2,
    "evaluation.every_num_prompts": 5,
    "training.checkpoint_every": 1,
    "reference.kl_full_every": 2,
}
"""What is on in every base, so that its keys have something to change."""
BASES: dict[str, dict[str, Any]] = {
    "one update": {},
    "several updates": {
        "loss.epochs_per_rollout": 2,
        "loss.minibatches": 2,
        "loss.kl_correction": "importance",
        "optimizer.lr": 1e-2,
    },
    "shaped": {"advantage.reward_norm": "batch", "advantage.scale": "none", "optimizer.schedule": "linear"},
    "adapter": {"model.lora": {"rank": 4}, "reference.mixup_alpha": 0.5, "optimizer.lr": 1e-2},
}
CHANGE_NO_FIGURE = {
    **dict.fromkeys(("model.source", "model.trust_remote_code", "model.lora.init_from", "data.source"), "what is read"),
    **dict.fromkeys(("rewards.0.fn", "rewards.0.dry_run", "rewards.0.cpu_seconds", "evaluation.verifier"), "whose function"),
    **dict.fromkeys(("training.device", "training.engine", "training.python", "training.threads"), "where it runs"),
    **dict.fromkeys(("rollout.engine", "rollout.vllm"), "where it samples"),
    **dict.fromkeys(("training.microbatch_tokens", "training.rollout_rows", "reference.offload"), "memory, not the result"),
    **dict.fromkeys(("training.gradient_checkpointing", "training.packed_weights"), "speed, not the result"),
    "training.deterministic": "speed, not the result",
    **dict.fromkeys(("tracking", "monitor"), "what is shown, and what watches"),
    "loss.sampler_correction": "none is what null stands for here, and the others are warned about",
    "rollout.max_prompt_tokens": "a bound on the data",
    "evaluation.pass_score": "a bound on scores, of which there are few different ones",
    "optimizer.max_grad_norm": "a bound on gradients",
    "training.keep_checkpoints": "a bound on checkpoints, beside which the best is kept whatever it is",
    "training.max_skipped_updates": "a bound on updates that are not finite",
}
"""Keys, or beginnings of keys, that are not drawn -> why."""
LISTS = {"evaluation.k": ([1], [2], [1, 2]), "optimizer.adam_betas": ([0.5, 0.9], [0.9, 0.99], [0.0, 0.0])}


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A configuration that is valid and not warned about."""

    config: RunConfig
    base: RunConfig
    keys: tuple[str, ...]
    """Those that differ from the base."""

    def compared(self) -> Iterator[tuple[str, RunConfig]]:
        """Yield what it must not do the same as: without the key, and with the key off."""
        values, old = self.config.model_dump(mode="json"), _flat(self.base.model_dump(mode="json"))
        for key in self.keys:
            section = "model.lora" if key.startswith("model.lora") and self.base.model.lora is None else key
            others = {"as in its base": {section: old.get(section)}, "null": {section: None}, "0": {key: 0}}
            if key == "reference.mixup_alpha":
                others["without syncs"] = {"reference.sync_steps": None, key: 1.0}
            for name, override in others.items():
                other = _valid(apply_overrides(values, override))
                if other is not None and other != self.config:
                    yield f"{key} {old.get(key)} -> {_flat(values).get(key)}: the same as {name}", other


def draw_changed(bases: dict[str, dict[str, Any]], draw: Random) -> Changed | None:
    """Return a base with one or two keys changed; None where that is refused, warned about, or the base itself."""
    values = bases[draw.choice(sorted(bases))]
    names = sorted(key for key, kinds in LEAVES.items() if _is_drawn(key) and _simple(kinds))
    changes = {key: _value(key, draw.choice(_simple(LEAVES[key])), draw) for key in draw.sample(names, draw.choice((1, 1, 2)))}
    try:
        config = _valid(apply_overrides(values, changes))
    except ConfigError:  # a key inside a section that is not there
        return None
    base = _valid(values)
    assert base is not None
    assert check_consistency(base) == ()
    if config is None or config == base or check_consistency(config):
        return None
    old, new = _flat(base.model_dump(mode="json")), _flat(config.model_dump(mode="json"))
    keys = tuple(key for key in changes if old.get(key) != new.get(key))
    return Changed(config=config, base=base, keys=keys)


def _value(key: str, kind: dict[str, Any], draw: Random) -> Any:
    """Return an extreme, an ordinary one, or a number of any magnitude between."""
    if key in LISTS:
        return draw.choice(LISTS[key])
    if "enum" in kind:
        return draw.choice(kind["enum"])
    if kind["type"] in ("boolean", "null"):
        return draw.choice((True, False)) if kind["type"] == "boolean" else None
    low = float(kind.get("minimum", kind.get("exclusiveMinimum", 0)))
    high = float(kind.get("maximum", kind.get("exclusiveMaximum", 1e6)))
    between = low + math.exp(draw.uniform(math.log(1e-30), math.log(high)))
    if kind["type"] == "integer":
        return int(draw.choice((low, low + 1, low + draw.randrange(12), low + draw.randrange(12), high, between)))
    return draw.choice((low, high, low + draw.random(), low + draw.random(), between))


def _simple(kinds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the kinds of values that are drawn: no texts and no sections."""
    types = ("boolean", "integer", "number", "null", "array")
    return [kind for kind in kinds if "enum" in kind or kind.get("type") in types]


def _is_drawn(key: str) -> bool:
    is_list = any(kind.get("type") == "array" for kind in LEAVES[key])
    return not key.startswith(tuple(CHANGE_NO_FIGURE)) and (not is_list or key in LISTS)


def _valid(values: dict[str, Any]) -> RunConfig | None:
    try:
        return validate_config(values)
    except ConfigError:
        return None


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return {key.path: value}, of sections and lists as well as of what is in them."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    inner = {path: value for name, item in items for path, value in _flat(item, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): tree} | inner
