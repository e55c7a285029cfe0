"""VLM-R1's command lines (commit 90052f4 of 2026-07, built on trl 0.17): `src/open_r1/grpo_jsonl.py` and its trainer.

Its arguments are TRL's of that time and its own. Its trainer overrides or never reads several of them. Its models and data have
images, which this project does not have yet; a run is still worth translating for what else it says.
"""

from dataclasses import replace
from pathlib import PurePath

from grpo_core.interop import lora
from grpo_core.interop.records import Conclusion, Group, Rule, Settings, System, dead, mapped, no_counterpart
from grpo_core.interop.rewards import Counterpart, convert_rewards, none
from grpo_core.interop.rules import OFF, copied, flag, group, number, optional, positive, text, texts, with_defaults, with_rules
from grpo_core.interop.trl import batches
from grpo_core.interop.trl.keys import BATCH, BATCH_REMARK, TRL
from grpo_core.interop.trl.lora import PEFT, adapter
from grpo_core.interop.trl.versions import TRL_0_17

IGNORED_THERE = "VLM-R1's trainer never reads it"
READ_THEN_IGNORED = "read, then ignored"
VISION = "no images here yet"
MODULE = "is_reward_customized_from_vlm_module"
DEFAULT_FORMAT = r"<think>.*?</think>\s*<answer>.*?</answer>"
READABLE = (".jsonl", ".parquet", ".csv")


def whole_groups(settings: Settings, key: str) -> Conclusion:
    """Convert the batch sizes; VLM-R1 wants whole groups in each pass.

    Raises:
        ConfigError: VLM-R1 would refuse them.
    """
    rows, size = settings["per_device_train_batch_size"] * (settings.processes or 1), settings["num_generations"]
    if rows % size:
        raise settings.refuse(
            f"num_generations: {size} does not divide the {rows} completions of a pass (per_device_train_batch_size x "
            f"processes); {batches.refuses_too(settings)}"
        )
    return batches.batch(settings, key)


def vlm_r1_reward(settings: Settings, name: str, _weight: float) -> Counterpart:
    """Return what a reward of `grpo_jsonl.py` is here."""
    if settings[MODULE]:
        task = settings["task_type"] or "rec"
        return none(f"with {MODULE} the module of the model scores it (task {task}: boxes, by their overlap), from images")
    if name == "format":
        return Counterpart(
            fn="format", args={"pattern": DEFAULT_FORMAT}, remark="white space around the completion is ignored here"
        )
    if name == "accuracy":
        method = settings["reward_method"] or "default"
        return none(f"its method {method} is a function of VLM-R1; math_answer and exact_answer are nearest")
    return none("it is neither accuracy nor format, the registry of VLM-R1; a fork may have it")


def vlm_r1_rewards(settings: Settings, _key: str) -> Conclusion:
    """Convert the reward functions; every weight is 1."""
    return convert_rewards(settings, [(name, 1.0) for name in settings["reward_funcs"]], vlm_r1_reward)


def of_rewards(_settings: Settings, _key: str) -> Conclusion:
    """Return what becomes of a choice of reward functions."""
    return no_counterpart("it enters what reward_funcs becomes")


def data_files(settings: Settings, key: str) -> Conclusion:
    """Convert the data files, which VLM-R1 separates by colons."""
    files = settings[key].split(":")
    if len(files) > 1 or PurePath(files[0]).suffix not in READABLE:
        return no_counterpart(
            f"one file here ({', '.join(READABLE)}), not {len(files)}: join them and set data.source to file:<path>",
            differs=True,
        )
    return mapped(
        {"data.source": f"file:{files[0]}"},
        "its rows hold `conversations` and images; write the columns question and answer",
        differs=True,
    )


def unread_dataset(settings: Settings, _key: str) -> Conclusion:
    """Return what becomes of TRL's own key for the data."""
    if settings["data_file_paths"]:
        return dead("grpo_jsonl.py reads data_file_paths alone")
    return no_counterpart("a list or a folder of data with images; set data.source", differs=True)


NEVER_READ = {
    "sync_ref_model": "a run with it had a fixed reference, which is reference.sync_steps null",
    "ref_model_sync_steps": "",
    "ref_model_mixup_alpha": "",
    "reward_weights": "every weight was 1",
    "temperature": "it is 1 whatever is given",
    "max_prompt_length": "there is no limit",
    "disable_dropout": "",
    "use_vllm": "completions came from transformers, in the training process; embedded is the counterpart",
}
"""Arguments that VLM-R1 overrides or never reads: {key: what happens instead}."""
HEAD_TOO = "VLM-R1 adapts every linear layer of the language model with its vocabulary head; here the head gets no adapter"


def adapter_of_all(settings: Settings, key: str) -> Conclusion:
    """Convert whether an adapter is trained, and of which layers."""
    found = adapter(settings, key)
    return replace(found, remark=HEAD_TOO, differs=True) if settings[key] else found


def own_targets(_settings: Settings, _key: str) -> Conclusion:
    """Return what becomes of the modules that a command names."""
    return dead("VLM-R1 overwrites it with every linear layer of the language model")


BATCH_KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps")


def _ignored_there(rule: Rule) -> Rule:
    what = "; ".join(filter(None, (IGNORED_THERE, NEVER_READ[rule.key])))
    return replace(rule, convert=lambda _settings, _key: dead(what), remark=what, needs=None, unset=None)


OWN = (
    *(_ignored_there(rule) for rule in TRL.rules if rule.key in NEVER_READ),
    *(Rule(key, positive, default, whole_groups, BATCH, BATCH_REMARK) for key, default in zip(BATCH_KEYS, (8, 1), strict=True)),
    Rule("reward_funcs", texts, ["accuracy", "format"], vlm_r1_rewards, "rewards[].fn, rewards[].args",
         f"format = format, unless {MODULE}; accuracy has no counterpart (math_answer and exact_answer are nearest): `grpo "
         "check` refuses the result until it is written or removed"),
    Rule("reward_method", optional(text), None, of_rewards, "", "of accuracy"),
    Rule(MODULE, flag, False, of_rewards, "", "rewards of boxes, from images"),
    Rule("task_type", optional(text), None, of_rewards, "", f"of {MODULE}"),
    Rule("data_file_paths", optional(text), None, data_files, "data.source",
         "file:<path>; several, separated by `:`, there, one here", unset=no_counterpart(OFF)),
    Rule("dataset_name", optional(text), None, unread_dataset, "", "not read beside data_file_paths",
         unset=no_counterpart(OFF)),
    Rule("use_peft", flag, False, adapter_of_all, "model.lora", HEAD_TOO),
    Rule("lora_target_modules", optional(texts), None, own_targets, "",
         "VLM-R1 overwrites it with every linear layer of the language model"),
    Rule("lora_dropout", number, 0.05, lora.converted_dropout, lora.DROPOUT, f"0 alone; {lora.NO_DROPOUT}", needs=PEFT,
         reports_default=True),
    copied("val_split_ratio", "data.eval_fraction", number, 0.0),
)  # fmt: skip

OWN_IGNORED = (
    group(VISION, "image_folders image_root max_pixels min_pixels max_anyres_num arrow_cache_dir freeze_vision_modules"),
    group("completions are sampled here, without beams", "do_sample num_beams num_beam_groups"),
    group("one learning rate here", "vision_learning_rate projector_learning_rate"),
)
VLLM_DEAD = Group(
    reason=f"{IGNORED_THERE}: completions came from transformers",
    keys=tuple(rule.key for rule in TRL.rules if rule.key.startswith("vllm_")),
)

ALWAYS = {
    "rollout.engine": f"{READ_THEN_IGNORED}: always the model in training",
    "rollout.max_prompt_tokens": READ_THEN_IGNORED,
    "rollout.temperature": f"{READ_THEN_IGNORED}: always 1",
    "advantage.baseline": "the group's mean",
    "advantage.scale": "the group's standard deviation, Bessel-corrected, as here",
    "advantage.advantage_eps": "1e-4",
    "loss.kl_estimator": "k3",
    "loss.kl_placement": "in the loss",
    "loss.kl_correction": "none",
    "loss.ratio": "token",
    "loss.aggregation": "seq-mean-token-mean",
    "reference.sync_steps": READ_THEN_IGNORED,
    "reference.mixup_alpha": READ_THEN_IGNORED,
}
"""What its trainer does whatever its arguments are: {our key: what}."""


def assumed_text(settings: Settings) -> tuple[str, ...]:
    """Return what had to be assumed, and that the images are missing."""
    return (*batches.assumed_processes(settings), "VLM-R1's prompts hold images; here they are text, so this is another task")


OF_ITS_TRAINER = {**TRL_0_17, "temperature": 1.0, "top_k": None, "loss_type": "grpo", "max_prompt_length": None}
"""Its trainer samples at temperature 1 and averages over the tokens of a completion, whatever its arguments are."""
OWN_KEYS = frozenset({rule.key for rule in OWN} | {key for keys in OWN_IGNORED for key in keys.keys}) - set(TRL.known())
"""Keys that TRL has not."""
VLM_R1 = System(
    name="vlm-r1",
    title="VLM-R1",
    version="VLM-R1 at commit 90052f4 of 2026-07-07, which pins trl 0.17.0: its grpo_jsonl.py and the config of its trainer",
    rules=with_rules(
        with_defaults(
            tuple(rule for rule in TRL.rules if rule.key not in VLLM_DEAD.keys),
            {key: value for key, value in OF_ITS_TRAINER.items() if key not in VLLM_DEAD.keys},
        ),
        *OWN,
    ),
    ignored=(*TRL.ignored, *OWN_IGNORED),
    dead=(*TRL.dead, VLLM_DEAD),
    always=ALWAYS,
    assumptions=assumed_text,
    aliases=TRL.aliases,
)
