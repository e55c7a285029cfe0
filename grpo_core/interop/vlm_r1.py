"""VLM-R1 (commit 90052f4 of 2026-07, built on trl 0.17): which argument of its `grpo_jsonl.py` becomes which key of ours.

The command lines are those of `src/open_r1/grpo_jsonl.py` and its trainer, which overrides or never reads several of TRL's
arguments. The rows that it reads become rows of ours in `vlm_r1_rows.py`; what its trainer does otherwise is in `ITS_TRAINER`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    Whole,
    adapter_dropout,
    by_key,
    convert_rewards,
    copied,
    dead,
    feature,
    mapped,
    no_counterpart,
    one_file,
    read_elsewhere,
    with_defaults,
)
from grpo_core.interop.trl import BATCH, TRL, assumed_processes, batch, refuses_too
from grpo_core.interop.trl_family import defaults_of
from grpo_core.interop.vlm_r1_rows import DataFile, JoinedRows

MODULE = "is_reward_customized_from_vlm_module"
OF_JSONL_SCRIPT = {MODULE, "data_file_paths", "image_folders", "reward_method"}
"""Arguments that `grpo_jsonl.py` has and the older scripts have not."""
METHODS = {
    "default": "VLM-R1 gives math-verify the answer as the gold one",
    "mcq": "a gold answer without a letter is left out here, where VLM-R1 scores 0",
    "yes_no": "yes and no are words here, where VLM-R1 finds no in know",
    "all_match": "",
    "weighted_sum": "an overlap one pixel wide counts here, and a box without a label has an empty one",
}
"""{method of its reward `accuracy` that `vlm_r1_accuracy` has: what differs}."""
ENTERS_REWARDS = "it enters what reward_funcs becomes"
MORE = "--data FILE writes the rows with their images' paths from FILE and VLM-R1's sentence behind each question"
ITS_TRAINER = (
    "VLM-R1's trainer enlarges an image below 28 pixels and gives that size to every later image of the batch, fails with "
    "several images in a prompt, and counts patches of 14 pixels whatever the model; here each image is the processor's"
)
NO_LIMIT = (
    "VLM-R1 has no limit of a prompt; here longer ones than rollout.max_prompt_tokens are dropped and counted, and an image of "
    "640x480 is 391 tokens to Qwen2.5-VL, one of 1,024x1,024 1,369: set it"
)
SENTENCE = (
    "First output the thinking process in <think> </think> tags and then output the final answer in <answer> </answer> tags."
)
IN_TAGS = (
    "First thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning process "
    "and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning "
    "process here </think><answer> {} </answer>"
)
PROMPTS = {
    "rec": f"{{question}} {SENTENCE} Output the final answer in JSON format.",
    "ic": f"{{question}} {IN_TAGS.format('json format answer here')}",
    "odLength": f"{IN_TAGS.format('answer here')}\n{{question}}",
}
"""{task_type: prompt}, as its module for Qwen's models writes it; every other task has the question and `SENTENCE`."""


def prompt_of(task: str) -> str:
    """Return the prompt of a task, with `{question}` where the question stands."""
    return PROMPTS.get(task, f"{{question}} {SENTENCE}")


def is_qwen(settings: Settings) -> bool:
    """Return whether VLM-R1 takes the model for one of Qwen's: by its name."""
    return "qwen" in (settings["model_name_or_path"] or "").lower()


def data_files(settings: Settings) -> tuple[DataFile, ...]:
    """Return the data files with their folders of images and methods; none where the settings name no files or no folders.

    Raises:
        ConfigError: there are not as many folders, or methods, as files; VLM-R1 refuses that as well.
    """
    files, folders, methods = (
        settings[key].split(":") if settings[key] else [] for key in ("data_file_paths", "image_folders", "reward_method")
    )
    for key, found in (("image_folders", folders), ("reward_method", methods)):
        if files and found and len(found) != len(files):
            reason = f"{key}: has {len(found)} parts, data_file_paths {len(files)}; give one for each file"
            raise settings.refuse(f"{reason} (VLM-R1 refuses that as well)")
    if not files or not folders:
        return ()
    methods = methods or ["default"] * len(files)
    return tuple(
        DataFile(path=Path(file), images=Path(folder), method=method)
        for file, folder, method in zip(files, folders, methods, strict=True)
    )


def joined_rows(settings: Settings) -> JoinedRows:
    """Return what `--data` writes.

    Raises:
        ConfigError: the settings do not name the data files and the folders of their images.
    """
    files = data_files(settings)
    if not files:
        raise settings.refuse(
            "data_file_paths, image_folders: --data writes the rows of these, and one of them is not known here"
        )
    return JoinedRows(files=files, prompt=prompt_of(settings["task_type"] or "default"))


def data_source(settings: Settings, key: str) -> Entry:
    """Convert the data files and their folders of images, together."""
    files = data_files(settings)
    if settings.rows is not None:
        return mapped(
            {"data.source": f"file:{settings.rows}"}, f"rows of {len(files)} file{'s' * (len(files) > 1)}, written by --data"
        )
    if key == "image_folders":
        return no_counterpart(f"images are read below the folder of the file that names them: {MORE}", differs=True)
    names = settings[key].split(":")
    if len(names) > 1:
        return no_counterpart(f"one file here, not {len(names)}: {MORE}", differs=True)
    return one_file(names, f"its rows are read as they are: {MORE}", differs=True)


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


def reward(settings: Settings, name: str, _weight: float) -> Entry:
    """Return what a reward of `grpo_jsonl.py` is here."""
    if settings[MODULE]:
        return _reward_of_module(settings, name)
    if name == "format":
        return mapped(
            {"rewards": [{"fn": "format", "args": {"pattern": r"<think>.*?</think>\s*<answer>.*?</answer>"}}]},
            "white space around it is ignored here",
        )
    if name not in ("accuracy", "length"):
        return no_counterpart("nothing here is the same; write a function", differs=True)
    return _by_method(settings, name)


def _by_method(settings: Settings, name: str) -> Entry:
    """Return what a reward is here that compares with the gold answer by a method."""
    if not settings.given.keys() & OF_JSONL_SCRIPT:
        return no_counterpart(OLDER_SCRIPT, differs=True)
    methods = list(dict.fromkeys((settings["reward_method"] or "default").split(":")))
    if others := [method for method in methods if method not in METHODS]:
        return no_counterpart(f"scored by VLM-R1's own method {', '.join(others)}; math_answer is nearest", differs=True)
    remarks = [LENGTH] if name == "length" else []
    remarks += [METHODS[method] for method in methods if METHODS[method]]
    is_written = len(methods) == 1 or settings.rows is not None
    if len(methods) > 1:
        written = "which --data writes into the rows" if is_written else f"which the rows do not hold: {MORE}"
        remarks.append(f"each file has its own method, {written}")
    args = {"method": methods[0] if len(methods) == 1 else "default"}
    return mapped({"rewards": [{"fn": f"vlm_r1_{name}", "args": args}]}, "; ".join(remarks), differs=bool(remarks))


def _reward_of_module(settings: Settings, name: str) -> Entry:
    """Return what a reward of the model's own module is here: of boxes, or not at all."""
    task = settings["task_type"] or "default"
    if task != "rec" or name not in ("accuracy", "format"):
        return no_counterpart(f"VLM-R1's module of the model has no {name} for the task {task}", differs=True)
    if name == "format":
        return mapped({"rewards": [{"fn": "box_format"}]}, ITS_FORM, differs=True)
    coordinates, remark = ("input", OF_INPUT) if is_qwen(settings) else ("image", OF_FILE)
    return mapped(
        {"rewards": [{"fn": "box_iou", "args": {"coordinates": coordinates}}]}, f"{remark}; {ITS_OVERLAP}", differs=True
    )


OF_INPUT = "a box counts in pixels of the image as the model gets it, as there for Qwen2.5-VL"
OF_FILE = "a box counts in pixels of the file, as VLM-R1's module for InternVL compares it"
ITS_OVERLAP = "VLM-R1 takes whole numbers alone, and an overlap one pixel wide for none"
ITS_FORM = "VLM-R1 lets text stand around it and wants braces around the box; here it is all of the text, or a box alone"
LENGTH = "there a wrong answer scores as a right one, and length is in tokens, up to 1,024; here in characters (max_characters)"
OLDER_SCRIPT = "an older script scores it in a way of its own: box_iou is nearest to grpo_rec.py's, math_answer to grpo.py's"


def largest_image(settings: Settings, key: str) -> Entry | Mapping[str, Any]:
    """Convert the largest size of an image, which VLM-R1 gives to the processors of Qwen's models alone."""
    if settings["model_name_or_path"] and not is_qwen(settings):
        return dead("VLM-R1 reads it for Qwen's models alone")
    return {"data.max_image_pixels": settings[key]}


def frozen_parts(settings: Settings, key: str) -> Entry:
    """Convert whether the tower is trained."""
    if not settings[key]:
        return mapped({"model.freeze": []})
    if settings["use_peft"]:
        return dead("with an adapter on the language model the tower has no gradient, here as there")
    trained = not is_qwen(settings)
    return mapped(
        {"model.freeze": ["vision"]},
        "the projector is frozen with the tower; VLM-R1 trains it in InternVL"
        if trained
        else "the projector with it, as there",
        differs=trained,
    )


def adapter(settings: Settings, key: str) -> Entry:
    """Convert whether an adapter is trained, and of which layers."""
    if not settings[key]:
        return mapped({"model.lora": None})
    return mapped(
        {RANK: settings["lora_r"]},
        "VLM-R1 adapts every linear layer of the language model with its vocabulary head; here the head gets no adapter",
        differs=True,
    )


VLM_R1_OWN = (
    *(Rule(key, Positive, default, BATCH, whole_groups)
      for key, default in (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1))),
    Rule("reward_funcs", Texts, ["accuracy", "format"], "rewards[].fn, rewards[].args",
         lambda settings, key: convert_rewards(settings, [(name, 1.0) for name in settings[key]], reward),
         "every weight is 1"),
    read_elsewhere("reward_method", str | None, None, ENTERS_REWARDS),
    read_elsewhere(MODULE, bool, False, ENTERS_REWARDS),
    read_elsewhere("task_type", str | None, None, "it enters what reward_funcs becomes, and the prompts that --data writes"),
    Rule("data_file_paths", str | None, None, "data.source", data_source, unset="names no data"),
    Rule("image_folders", str | None, None, "data.source", data_source, unset="names no folder"),
    read_elsewhere("image_root", str | None, None, "of older scripts, whose dataset_name lists the data: write a .jsonl of it"),
    Rule("max_pixels", Positive | None, 12_845_056, "data.max_image_pixels", largest_image,
         "larger images are scaled down to it, as there", unset="the processor's own there"),
    feature("min_pixels", Whole | None, 3136, "images are enlarged by the model's processor alone", off=(None,)),
    feature("max_anyres_num", Whole | None, 12, "the model's processor cuts images into as many tiles as its folder says",
            off=(None,)),
    Rule("freeze_vision_modules", bool, False, "model.freeze", frozen_parts),
    Rule("use_peft", bool, False, "model.lora", adapter),
    Rule("lora_dropout", Number, 0.05, DROPOUT, adapter_dropout, needs="use_peft", reports_default=True),
    copied("val_split_ratio", "data.eval_fraction", Number, 0.0, "VLM-R1 splits rows, without a seed; here images are split"),
)  # fmt: skip
VLM_R1_IGNORED = by_key({
    "prepared prompts are cached by their inputs": "arrow_cache_dir",
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
    rules=[rule for rule in with_defaults(TRL.rules, OF_ITS_TRAINER, *VLM_R1_OWN) if rule.key not in NEVER_READ],
    ignored={key: reason for key, reason in {**TRL.ignored, **VLM_R1_IGNORED}.items() if key not in NEVER_READ},
    dead={**TRL.dead, **NEVER_READ},
    assumptions=lambda settings: (*assumed_processes(settings), NO_LIMIT, ITS_TRAINER),
    aliases=TRL.aliases,
    joined=joined_rows,
)
