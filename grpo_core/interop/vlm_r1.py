"""VLM-R1's command lines (commit 90052f4 of 2026-07, built on trl 0.17): `src/open_r1/grpo_jsonl.py` and its trainer.

Its arguments are TRL's of that time and its own. Its trainer overrides or never reads several of them. Its models and data have
images, which this project does not have yet; a run is still worth translating for what else it says.
"""

from grpo_core.interop.rules import (
    DROPOUT,
    RANK,
    Entry,
    Number,
    Positive,
    Rule,
    Settings,
    System,
    Texts,
    adapter_dropout,
    by_key,
    convert_rewards,
    copied,
    mapped,
    no_counterpart,
    one_file,
    read_elsewhere,
    with_defaults,
)
from grpo_core.interop.trl import BATCH, TRL, assumed_processes, batch, refuses_too
from grpo_core.interop.trl_releases import defaults_of

MODULE = "is_reward_customized_from_vlm_module"
ROWS = "its rows hold `conversations` and images; write the columns question and answer"
OF_REWARDS = "it enters what reward_funcs becomes"


def whole_groups(settings: Settings, key: str) -> Entry:
    """Convert the batch sizes; VLM-R1 wants whole groups in each pass.

    Raises:
        ConfigError: VLM-R1 would refuse them.
    """
    rows, size = settings["per_device_train_batch_size"] * (settings.processes or 1), settings["num_generations"]
    if rows % size:
        reason = f"num_generations: {size} does not divide the {rows} completions of a pass (per_device_train_batch_size x "
        raise settings.refuse(f"{reason}processes); {refuses_too(settings)}")
    return batch(settings, key)


def vlm_r1_reward(settings: Settings, name: str, _weight: float) -> Entry:
    """Return what a reward of `grpo_jsonl.py` is here."""
    if name == "format" and not settings[MODULE]:
        pattern = r"<think>.*?</think>\s*<answer>.*?</answer>"
        return mapped({"rewards": [{"fn": "format", "args": {"pattern": pattern}}]}, "white space around it is ignored here")
    method, task = settings["reward_method"] or "default", settings["task_type"] or "rec"
    scorer = f"the model's module, from images (task {task})" if settings[MODULE] else f"VLM-R1's own method {method}"
    return no_counterpart(f"scored by {scorer}; math_answer and exact_answer are nearest to accuracy", differs=True)


def adapter(settings: Settings, key: str) -> Entry:
    """Convert whether an adapter is trained, and of which layers."""
    if not settings[key]:
        return mapped({"model.lora": None})
    remark = "VLM-R1 adapts every linear layer of the language model with its vocabulary head; here the head gets no adapter"
    return mapped({RANK: settings["lora_r"]}, remark, differs=True)


OWN = (
    *(Rule(key, Positive, default, BATCH, whole_groups)
      for key, default in (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1))),
    Rule("reward_funcs", Texts, ["accuracy", "format"], "rewards[].fn, rewards[].args",
         lambda settings, key: convert_rewards(settings, [(name, 1.0) for name in settings[key]], vlm_r1_reward),
         "every weight is 1"),
    read_elsewhere("reward_method", str | None, None, OF_REWARDS),
    read_elsewhere(MODULE, bool, False, OF_REWARDS),
    read_elsewhere("task_type", str | None, None, OF_REWARDS),
    Rule("data_file_paths", str | None, None, "data.source",
         lambda settings, key: one_file(settings[key].split(":"), ROWS, differs=True), unset="names no data"),
    Rule("use_peft", bool, False, "model.lora", adapter),
    Rule("lora_dropout", Number, 0.05, DROPOUT, adapter_dropout, needs="use_peft", reports_default=True),
    copied("val_split_ratio", "data.eval_fraction", Number, 0.0),
)  # fmt: skip
OWN_IGNORED = by_key({
    "no images here yet":
        "image_folders image_root max_pixels min_pixels max_anyres_num arrow_cache_dir freeze_vision_modules",
    "completions are sampled here, without beams": "do_sample num_beams num_beam_groups",
    "one learning rate here": "vision_learning_rate projector_learning_rate",
})  # fmt: skip
NEVER_READ = {
    **dict.fromkeys(("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"), "VLM-R1's reference is fixed"),
    "reward_weights": "every weight is 1",
    "reward_model_name_or_path": "VLM-R1 scores with reward_funcs alone",
    "dataset_name": "grpo_jsonl.py reads data_file_paths alone, older scripts a list of data with images: set data.source",
    "temperature": "it is 1 whatever is given",
    "max_prompt_length": "there is no limit",
    "disable_dropout": "VLM-R1's trainer never reads it",
    "lora_target_modules": "VLM-R1 overwrites it with every linear layer of the language model",
    **{key: "completions come from transformers, in the training process"
       for key in TRL.known() if key.startswith(("use_vllm", "vllm_"))},
}  # fmt: skip
"""{argument of TRL that VLM-R1 overrides or never reads: what happens instead}."""
OF_ITS_TRAINER = {**defaults_of((0, 17)), "temperature": 1.0, "top_k": None, "loss_type": "grpo", "max_prompt_length": None}
"""Its trainer samples at temperature 1 and averages over the tokens of a completion, whatever its arguments are."""

VLM_R1 = System(
    name="vlm-r1",
    title="VLM-R1",
    version="VLM-R1 at commit 90052f4 of 2026-07-07, which pins trl 0.17.0: its grpo_jsonl.py and the config of its trainer",
    rules=[rule for rule in with_defaults(TRL.rules, OF_ITS_TRAINER, *OWN) if rule.key not in NEVER_READ],
    ignored={key: reason for key, reason in {**TRL.ignored, **OWN_IGNORED}.items() if key not in NEVER_READ},
    dead={**TRL.dead, **NEVER_READ},
    assumptions=lambda settings: (
        *assumed_processes(settings),
        "VLM-R1's prompts hold images; here they are text, so this is another task",
    ),
    aliases=TRL.aliases,
)
