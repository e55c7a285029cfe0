"""Tables for the documentation: what becomes of other systems' keys, and what our keys are called elsewhere.

`python -m grpo_core.interop.tables > docs/importing.md` writes the first; `render_options` is the option table of
docs/algorithm.md. VLM-R1's runs (commit 90052f4, 2026-07; a fork of TRL's trainer at 0.17) are shell scripts of `--name value`
arguments: there is no file to import, but what its trainer ignores is worth knowing.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from grpo_core.config.schema import RunConfig
from grpo_core.config.section import Section
from grpo_core.interop.conversion import SYSTEMS
from grpo_core.interop.records import System
from grpo_core.plain_text import markdown_table

SECTIONS = ("rollout", "advantage", "filtering", "loss", "reference", "probe", "optimizer")
NONE = "—"


@dataclass(frozen=True)
class Argument:
    """What some arguments of VLM-R1 are here."""

    names: str
    """Separated by commas, as our keys are."""
    ours: str = ""
    remark: str = ""


IGNORED_THERE = "VLM-R1's trainer never reads it"

VLM_R1 = (
    Argument("--beta", "loss.beta", "default 0.04, as here"),
    Argument("--num_generations", "rollout.group_size"),
    Argument("--per_device_train_batch_size, --gradient_accumulation_steps", "rollout.num_prompts_per_step",
             "their product, times processes, divided by num_generations"),
    Argument("--num_iterations", "loss.epochs_per_rollout", "old log-probabilities only above 1, as here"),
    Argument("--epsilon", "loss.clip_eps"),
    Argument("--epsilon_high", "loss.clip_eps_high"),
    Argument("--max_completion_length", "rollout.max_completion_tokens"),
    Argument("--learning_rate", "optimizer.lr"),
    Argument("--lr_scheduler_type", "optimizer.schedule"),
    Argument("--warmup_steps, --warmup_ratio", "optimizer.warmup_steps"),
    Argument("--weight_decay", "optimizer.weight_decay"),
    Argument("--adam_beta1, --adam_beta2", "optimizer.adam_betas"),
    Argument("--max_grad_norm", "optimizer.max_grad_norm"),
    Argument("--max_steps, --num_train_epochs", "training.steps", "optimizer steps there, batches of rollouts here"),
    Argument("--seed", "training.seed"),
    Argument("--save_steps", "training.checkpoint_every"),
    Argument("--run_name", "tracking.run_name"),
    Argument("--bf16, --torch_dtype", "model.dtype", "weights are float32 here in any case"),
    Argument("--model_name_or_path", "model.source", "language models only: no images yet"),
    Argument("--data_file_paths", "data.source", "file:<path>; several files, separated by `:`, there; one here"),
    Argument("--val_split_ratio", "data.eval_fraction"),
    Argument("--reward_funcs", "rewards[].fn",
             "accuracy: math_answer or exact_answer is nearest; format: format with a pattern"),
    Argument("--reward_method", "", "name the function that it stands for under rewards"),
    Argument("--sync_ref_model, --ref_model_sync_steps", "reference.sync_steps",
             f"{IGNORED_THERE}: a run with them had a fixed reference, which is reference.sync_steps null"),
    Argument("--ref_model_mixup_alpha", "reference.mixup_alpha", IGNORED_THERE),
    Argument("--reward_weights", "rewards[].weight", f"{IGNORED_THERE}: every weight was 1"),
    Argument("--temperature", "rollout.temperature", f"{IGNORED_THERE}: it is 1 whatever is given"),
    Argument("--max_prompt_length", "rollout.max_prompt_tokens", "VLM-R1 overwrites it with none: there is no limit"),
    Argument("--image_folders, --max_pixels, --min_pixels, --max_anyres_num, --freeze_vision_modules", "", "no images yet"),
    Argument("--use_peft, --lora_*", "", "no LoRA here: every weight is trained"),
    Argument("--use_vllm, --vllm_*", "rollout.engine",
             f"{IGNORED_THERE}: completions came from transformers, in the training process; embedded is the counterpart"),
    Argument("--deepspeed, --attn_implementation, --gradient_checkpointing", "", "one training process here"),
    Argument("--report_to, --logging_steps", "", "logging is by MLflow, every step"),
)  # fmt: skip

READ_THEN_IGNORED = "read, then ignored"
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

INTRODUCTION = """\
# Importing from TRL, ROLL and VLM-R1

Generated by `python -m grpo_core.interop.tables`; edit the tables in `grpo_core/interop/`, not this file.

```sh
grpo import-config settings.yaml > configs/mine.yaml     # a TRL or ROLL file, YAML or JSON; its keys decide which
grpo import-config settings.json --format trl            # or name the format
grpo import-config settings.yaml --processes 8           # if the file does not state the number of processes
grpo check configs/mine.yaml
```

The output is a configuration with comments. Every key of the source is in exactly one list: `mapped`, `no counterpart`,
`dead in the source itself` (that system does not read it, or something else in the file overrides it), `unknown`. Defaults
of the source system that are not ours are written out as `mapped (default of ...)`: the run is the source's, not ours. `!`
marks what makes the training differ. What `grpo check` would refuse is left out and listed with the reason. Values of
keys that end in `token`, `api_key`, `secret` or `password` are not shown.

A step here is one batch of rollouts and the updates on it. TRL counts optimizer steps; its figures are divided by
num_iterations x minibatches, and rounded with a remark where that leaves a remainder. ROLL counts as we do.

`use_vllm` and ROLL's `strategy_name: vllm` become `rollout.engine: vllm`: the run starts a server of its own, in the
environment that `make vllm` makes ([vllm.md](vllm.md)). Rollouts from vLLM need top_p 1 and no top_k here. If the file sets
them otherwise, they are kept, the engine stays `embedded`, and the line is marked `!`.

A file often holds neither the data nor the rewards of a run: the top of the output lists what is left to fill in. `${key}`
references of ROLL's files are resolved within the file; what another file defines is listed."""


def markdown_page() -> str:
    """Return the whole page."""
    return "\n\n".join([INTRODUCTION, *(_system(system) for system in SYSTEMS.values()), _vlm_r1()]) + "\n"


def _system(system: System) -> str:
    return "\n\n".join(
        (
            f"## {system.title}",
            markdown_table(
                ("Key", "Default there", "Key here", "Remark"),
                [(f"`{rule.key}`", f"`{json.dumps(rule.default)}`", _listed(rule.ours), rule.remark) for rule in system.rules],
            ),
            f"### What {system.title} does without a key",
            _always(system.always),
            f"### Dead in {system.title} itself",
            markdown_table(("Keys", "Why"), [(_code(group.keys), group.reason) for group in system.dead]),
            "### No counterpart",
            markdown_table(
                ("Keys", "Why, or what to use instead"), [(_code(group.keys), group.reason) for group in system.ignored]
            ),
        )
    )


def _always(always: Mapping[str, str]) -> str:
    return markdown_table(("Key here", "What it does"), [(f"`{key}`", what) for key, what in always.items()])


def _vlm_r1() -> str:
    return "\n\n".join(
        (
            "## VLM-R1",
            "Its runs are command lines; there is no file to import.",
            markdown_table(
                ("Argument", "Key here", "Remark"), [(_listed(row.names), _listed(row.ours), row.remark) for row in VLM_R1]
            ),
            "### What VLM-R1 does whatever its arguments are",
            _always(ALWAYS),
        )
    )


def _listed(keys: str) -> str:
    return _code(tuple(keys.split(", "))) if keys else "—"


def _code(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def algorithm_keys() -> dict[str, FieldInfo]:
    """Return {key path: field} of every key of the algorithm, in the order of the schema."""
    return {
        f"{section}.{name}": field
        for section in SECTIONS
        for name, field in RunConfig.model_fields[section].annotation.model_fields.items()  # type: ignore[union-attr]
        if not isinstance(field.default, Section)  # of a server, not of the algorithm
    }


def render_options() -> str:
    """Return the option table."""
    head = ("Key", "Default", "Values", "Meaning", "TRL", "ROLL", "VLM-R1")
    return markdown_table(head, (_option(key, field) for key, field in algorithm_keys().items()))


def names_elsewhere(key: str) -> tuple[str, str, str]:
    """Return what TRL, ROLL and VLM-R1 call a key of ours; without backticks: what they always do."""
    trl, roll = (_cell(key, [(rule.key, rule.ours) for rule in system.rules], system.always) for system in SYSTEMS.values())
    return trl, roll, _cell(key, [(name, row.ours) for row in VLM_R1 for name in row.names.split(", ")], ALWAYS)


def _cell(key: str, names: Iterable[tuple[str, str]], always: Mapping[str, str]) -> str:
    theirs = ", ".join(f"`{name}`" for name, ours in names if key in ours.split(", "))
    return "; ".join(filter(None, (theirs, always.get(key)))) or NONE


def _option(key: str, field: FieldInfo) -> tuple[str, ...]:
    return f"`{key}`", f"`{_text(field.default)}`", _values(field), str(field.description), *names_elsewhere(key)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _values(field: FieldInfo) -> str:
    """Return the range of a key in words: its choices, or its type with its bounds."""
    kinds = [field.annotation] if get_origin(field.annotation) in (None, Literal, tuple) else get_args(field.annotation)
    choices = [f"`{choice}`" for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return ", ".join(choices)
    words: dict[Any, str] = {int: "whole number", float: "number", bool: "`true`, `false`", type(None): "null"}
    named = [words.get(kind, "two numbers") for kind in kinds]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {getattr(item, name)}" for item in field.metadata for name, sign in signs.items() if hasattr(item, name)]
    return " or ".join([" ".join([named[0], *bounds]), *named[1:]])


if __name__ == "__main__":
    sys.stdout.write(markdown_page())
