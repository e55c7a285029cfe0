"""TRL's adapter: the arguments of its `ModelConfig`, from which its scripts make PEFT's `LoraConfig`."""

from grpo_core.interop import lora
from grpo_core.interop.lora import ALPHA, DROPOUT, RANK, TARGETS
from grpo_core.interop.records import Conclusion, Rule, Settings, dead, mapped
from grpo_core.interop.rules import copied, feature, flag, number, optional, positive, text, texts, without

CHOSEN_BY_PEFT = ["q_proj", "v_proj"]
CHOICE_REMARK = "PEFT's own choice for Llama, Qwen, Mistral and Gemma; other models have other names"
PEFT = without("use_peft")


def adapter(settings: Settings, key: str) -> Conclusion:
    """Convert whether an adapter is trained."""
    return mapped({RANK: settings["lora_r"]}) if settings[key] else lora.no_adapter()


def adapter_alpha(settings: Settings, _key: str) -> Conclusion:
    """Convert alpha, and with it the kind of scale."""
    return lora.converted_alpha(settings, "lora_alpha", settings["lora_r"], is_stabilised=settings["use_rslora"])


def adapter_dropout(settings: Settings, key: str) -> Conclusion:
    """Convert the dropout, which `disable_dropout` switches off in the adapter as well."""
    if settings["disable_dropout"]:
        return dead("disable_dropout switches it off")
    return lora.converted_dropout(settings, key)


def target_modules(settings: Settings, key: str) -> Conclusion:
    """Convert the modules; TRL hands a list of one text to PEFT as this text, which PEFT reads as a regular expression."""
    targets = settings[key]
    if not targets:
        return lora.names(CHOSEN_BY_PEFT, CHOICE_REMARK)
    if len(targets) > 1:
        return lora.names(targets)
    (target,) = targets
    if target.lower() == "all-linear":
        return lora.every_linear()
    if lora.SPECIAL.search(target):
        return lora.expression(target)
    return lora.names(targets, "PEFT takes a single name for the whole name of a module, and refuses it where there is none")


LORA = (
    Rule("use_peft", flag, False, adapter, "model.lora", "false = null: all weights are trained; true: by the keys below"),
    copied("lora_r", RANK, positive, 16, needs=PEFT),
    Rule("lora_alpha", number, 32, adapter_alpha, ALPHA, "with use_rslora times sqrt(lora_r): the scale is the same",
         needs=PEFT),
    Rule("use_rslora", flag, False, adapter_alpha, ALPHA,
         "the scale alpha / sqrt(rank), exactly: alpha is multiplied by sqrt(lora_r)", needs=PEFT),
    Rule("lora_dropout", number, 0.05, adapter_dropout, DROPOUT, f"0 alone; {lora.NO_DROPOUT}", needs=PEFT,
         reports_default=True),
    Rule("lora_target_modules", optional(texts), None, target_modules, TARGETS,
         f"null = q_proj and v_proj: {CHOICE_REMARK}; all-linear = null: {lora.EVERY_LINEAR}; {lora.REGEX_REMARK}", needs=PEFT),
    feature("lora_target_parameters", optional(texts), None, lora.ONLY_LINEAR, off=(None, []), needs=PEFT),
    feature("lora_modules_to_save", optional(texts), None, lora.WHOLE_LAYERS, off=(None, []), needs=PEFT),
    feature("lora_task_type", text, "CAUSAL_LM", "a causal language model is trained here", needs=PEFT),
    feature("use_dora", flag, False, lora.NO_DORA, needs=PEFT),
    feature("load_in_8bit", flag, False, lora.NO_QUANTISATION),
    feature("load_in_4bit", flag, False, lora.NO_QUANTISATION),
)  # fmt: skip
