"""ROLL's adapter: the arguments of `model_args` of its training workers, which `lora_target` switches on."""

from grpo_core.interop import lora
from grpo_core.interop.lora import ALPHA, DROPOUT, RANK, TARGETS
from grpo_core.interop.records import Conclusion, Rule, Settings
from grpo_core.interop.rules import copied, feature, number, optional, positive, text, without

ARGS = "actor_train.model_args"
TARGET = f"{ARGS}.lora_target"
NEEDS_TARGET = without(TARGET, "does nothing without lora_target")
ALL = ("all", "all-linear")
MEGATRON = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's joint matrices: {its name: names here}."""
JOINT = ("linear_qkv", "linear_fc1")
RENAMED = "Megatron's names: linear_proj is o_proj here, linear_fc2 down_proj"
SPLIT = "nearest: Megatron has one adapter for matrices that it joins (linear_qkv, linear_fc1), here each has its own"


def target(settings: Settings, key: str) -> Conclusion:
    """Convert the modules: names with commas between them, one of two words for all, or a regular expression."""
    value: str = settings[key]
    if value.strip() in ALL:
        return lora.every_linear()
    names = [name.strip() for name in value.split(",") if name.strip()]
    found = lora.names(names) if not any(map(lora.SPECIAL.search, names)) else lora.expression(value)
    given = found.targets.get(TARGETS, ())
    if not MEGATRON.keys() & set(given):
        return found
    is_split = any(name in JOINT for name in given)
    parts = [part for name in given for part in MEGATRON.get(name, (name,))]
    return lora.names(parts, SPLIT if is_split else RENAMED, differs=is_split)


def alpha_or_twice_the_rank(settings: Settings, key: str) -> Conclusion:
    """Convert alpha; 0 is as null there, twice the rank."""
    return lora.twice_the_rank() if not settings[key] else lora.converted_alpha(settings, key, 1, is_stabilised=False)


LORA = (
    Rule(TARGET, optional(text), None, target, TARGETS,
         "null = model.lora null: all weights are trained; names with commas between them; all and all-linear = null: "
         f"{lora.EVERY_LINEAR}; {lora.REGEX_REMARK}; Megatron's names as those of their parts", unset=lora.no_adapter()),
    copied(f"{ARGS}.lora_rank", RANK, positive, 8, needs=NEEDS_TARGET),
    Rule(f"{ARGS}.lora_alpha", optional(number), None, alpha_or_twice_the_rank, ALPHA, "null = 2 x rank, as here",
         needs=NEEDS_TARGET),
    Rule(f"{ARGS}.lora_dropout", optional(number), 0.0, lora.converted_dropout, DROPOUT, f"0 alone; {lora.NO_DROPOUT}",
         needs=NEEDS_TARGET),
    feature(f"{ARGS}.additional_target", optional(text), None, lora.WHOLE_LAYERS, needs=NEEDS_TARGET),
    feature(f"{ARGS}.adapter_name_or_path", optional(text), None,
            "set model.lora.init_from to the adapter's folder on this machine"),
)  # fmt: skip
