"""ROLL's minibatches, from batch sizes and devices, and the warm-up, which is counted in them."""

import math
import re
from typing import Any

from grpo_core.interop.records import Conclusion, Rule, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import optional, positive, text, warmup_steps, warmup_updates

ARGS = "actor_train.training_args"
STRATEGY = "actor_train.strategy_args.strategy_name"
SIZES = "actor_train.strategy_args.strategy_config"
MEGATRON_SIZES = (
    f"{SIZES}.tensor_model_parallel_size",
    f"{SIZES}.pipeline_model_parallel_size",
    f"{SIZES}.context_parallel_size",
)
ULYSSES = "actor_train.model_args.ulysses_size"
RANGE = re.compile(r"list\(\s*range\(\s*(\d{1,6})\s*(?:,\s*(\d{1,6})\s*)?\)\s*\)")
NUMBERS = re.compile(r"\[[\d\s,]*\]")


def _splits_devices(_settings: Settings, _key: str) -> Conclusion:
    return no_counterpart("one training process here; it enters through the data-parallel size behind loss.minibatches")


MODEL_PARALLEL = (
    Rule(STRATEGY, optional(text), None, _splits_devices, "", "one training process here"),
    *(Rule(key, optional(positive), 1, _splits_devices, "", "one training process here") for key in (*MEGATRON_SIZES, ULYSSES)),
)


def count_devices(mapping: Any) -> int | None:
    """Return how many devices a `device_mapping` names; None where it is written in another way.

    ROLL evaluates the text as Python. Here only its usual forms are read: lists, `list(range(a, b))`, and sums of these.

    >>> count_devices("list(range(0,4)) + [6, 7]")
    6
    """
    if isinstance(mapping, list):
        return len(mapping)
    counts = [_devices_of(part.strip()) for part in mapping.split("+")] if isinstance(mapping, str) else [None]
    return sum(count for count in counts if count is not None) if None not in counts else None


def _devices_of(text: str) -> int | None:
    if found := RANGE.fullmatch(text):
        first, last = ("0", found[1]) if found[2] is None else (found[1], found[2])
        return max(int(last) - int(first), 0)
    return len(re.findall(r"\d+", text)) if NUMBERS.fullmatch(text) else None


def data_parallel(settings: Settings) -> int | None:
    """Return over how many processes ROLL spreads one batch; None if the file does not state it."""
    if settings.processes is not None:
        return settings.processes
    devices = count_devices(settings["actor_train.device_mapping"])
    if not devices:
        return None
    split: int = math.prod(
        settings[key] or 1 for key in (MEGATRON_SIZES if settings[STRATEGY] == "megatron_train" else (ULYSSES,))
    )
    return max(devices // split, 1)


def read_minibatches(settings: Settings) -> tuple[int, str]:
    """Return (optimizer steps in one pass over a batch of rollouts, remark)."""
    rows = settings["rollout_batch_size"] * settings["num_return_sequences_in_group"]
    parallel = data_parallel(settings) or 1
    batch = settings[f"{ARGS}.per_device_train_batch_size"] * settings[f"{ARGS}.gradient_accumulation_steps"] * parallel
    remark = f"{rows} completions / {batch} of one optimizer step on {parallel} data-parallel processes"
    if rows % batch:
        remark += "; not a whole number: rounded, equal shares here"
    return max(rows // batch, 1), remark


def minibatches(settings: Settings, _key: str) -> Conclusion:
    """Convert the batch sizes and devices, all of them together."""
    count, remark = read_minibatches(settings)
    return mapped({"loss.minibatches": count}, remark, differs="rounded" in remark)


def assumed_data_parallel(settings: Settings) -> tuple[str, ...]:
    """Return a note if the number of processes was assumed."""
    return (
        ()
        if data_parallel(settings) is not None
        else ("1 data-parallel process is assumed: actor_train.device_mapping does not tell (--processes N does)",)
    )


def actor_warmup(settings: Settings, key: str) -> Conclusion:
    """Convert the warm-up: optimizer steps, or a share of all of them where these are 0."""
    updates, ratio = settings[f"{ARGS}.warmup_steps"], settings[f"{ARGS}.warmup_ratio"]
    is_ignored = settings[f"{ARGS}.lr_scheduler_type"] == "constant" and settings[STRATEGY] != "megatron_train"
    if key.endswith("warmup_ratio"):
        if updates > 0:
            return dead("warmup_steps overrides it")
        total = int(settings["max_steps"] * settings["ppo_epochs"] * read_minibatches(settings)[0])
        return warmup_steps(warmup_updates(min(ratio, 0.999999), total), is_ignored=is_ignored)
    return dead("0 leaves it to warmup_ratio") if updates <= 0 < ratio else warmup_steps(int(updates), is_ignored=is_ignored)
