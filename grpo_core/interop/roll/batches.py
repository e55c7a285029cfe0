"""ROLL's batches, optimizer and run: minibatches from batch sizes and devices, schedule, checkpoints, evaluations."""

import ast
import re
from typing import Any

from grpo_core.interop.readers import optional, positive, text
from grpo_core.interop.records import Outcome, Rule, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import warmup_updates

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


def _splits_devices(_settings: Settings, _key: str) -> Outcome:
    return no_counterpart("one training process here; it enters through the data-parallel size behind loss.minibatches")


MODEL_PARALLEL = (
    Rule(key=STRATEGY, default=None, read=optional(text), convert=_splits_devices, ours="", remark="one training process here"),
    *(
        Rule(key=key, default=1, read=optional(positive), convert=_splits_devices, ours="", remark="one training process here")
        for key in (*MEGATRON_SIZES, ULYSSES)
    ),
)


def count_devices(mapping: Any) -> int | None:
    """Return how many devices a `device_mapping` names; None where it is written in another way.

    ROLL evaluates the text as Python. Here only its usual forms are read: lists, `list(range(a, b))`, and sums of these.

    >>> count_devices("list(range(0,4)) + [6, 7]")
    6
    """
    if isinstance(mapping, list):
        return len(mapping)
    if not isinstance(mapping, str):
        return None
    count = 0
    for part in mapping.split("+"):
        found = RANGE.fullmatch(part.strip())
        if found:
            first, last = (int(found[1]), int(found[2])) if found[2] else (0, int(found[1]))
            count += max(last - first, 0)
            continue
        try:
            devices = ast.literal_eval(part.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(devices, list):
            return None
        count += len(devices)
    return count


def data_parallel(settings: Settings) -> int | None:
    """Return over how many processes ROLL spreads one batch; None where the file does not tell."""
    if settings.processes is not None:
        return settings.processes
    devices = count_devices(settings["actor_train.device_mapping"])
    if not devices:
        return None
    split = 1
    for key in MEGATRON_SIZES if settings[STRATEGY] == "megatron_train" else (ULYSSES,):
        split *= settings[key] or 1
    return max(devices // split, 1)


def read_minibatches(settings: Settings) -> tuple[int, str]:
    """Return (optimizer steps in one pass over a batch of rollouts, remark)."""
    rows = settings["rollout_batch_size"] * settings["num_return_sequences_in_group"]
    known = data_parallel(settings)
    parallel = known or 1
    batch = settings[f"{ARGS}.per_device_train_batch_size"] * settings[f"{ARGS}.gradient_accumulation_steps"] * parallel
    remark = f"{rows} completions / {batch} of one optimizer step on {parallel} data-parallel processes"
    if rows % batch:
        remark += "; not a whole number: rounded, equal shares here"
    return max(rows // batch, 1), remark


def minibatches(settings: Settings, _key: str) -> Outcome:
    """Convert the batch sizes and devices, all of them together."""
    count, remark = read_minibatches(settings)
    return mapped({"loss.minibatches": count}, remark, differs="rounded" in remark)


def assumptions(settings: Settings) -> tuple[str, ...]:
    """Say whether the number of processes had to be assumed."""
    if data_parallel(settings) is not None:
        return ()
    return ("1 data-parallel process is assumed: actor_train.device_mapping does not tell (--processes N does)",)


def total_updates(settings: Settings) -> int:
    """Return the optimizer steps of the whole run."""
    updates, _ = read_minibatches(settings)
    return int(settings["max_steps"] * settings["ppo_epochs"] * updates)


def schedule(settings: Settings, key: str) -> Outcome:
    """Convert the learning-rate schedule."""
    names = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
    if settings[key] not in names:
        return no_counterpart("optimizer.schedule is constant, linear or cosine; it stays constant", differs=True)
    return mapped({"optimizer.schedule": names[settings[key]]}, "ends at 0" if settings[key] in ("linear", "cosine") else "")


def warmup(settings: Settings, key: str) -> Outcome:
    """Convert the warm-up; 0 leaves it to the ratio."""
    if settings[key] <= 0 and settings[f"{ARGS}.warmup_ratio"] > 0:
        return dead("0 leaves it to warmup_ratio")
    return _warmup(settings, int(settings[key]))


def warmup_ratio(settings: Settings, key: str) -> Outcome:
    """Convert the warm-up as a share of all optimizer steps."""
    if settings[f"{ARGS}.warmup_steps"] > 0:
        return dead("warmup_steps overrides it")
    return _warmup(settings, warmup_updates(min(settings[key], 0.999999), total_updates(settings)) or 0)


def _warmup(settings: Settings, updates: int) -> Outcome:
    plain = settings[f"{ARGS}.lr_scheduler_type"] == "constant" and settings[STRATEGY] != "megatron_train"
    if plain and updates:
        return dead("the schedule `constant` has no warm-up there (constant_with_warmup has)")
    return mapped({"optimizer.warmup_steps": updates})


def adam_betas(settings: Settings, _key: str) -> Outcome:
    """Convert both decay rates."""
    return mapped({"optimizer.adam_betas": [settings[f"{ARGS}.adam_beta1"], settings[f"{ARGS}.adam_beta2"]]})


def max_grad_norm(settings: Settings, key: str) -> Outcome:
    """Convert gradient clipping: 0 is off there."""
    return mapped({"optimizer.max_grad_norm": settings[key] or None})


def save_steps(settings: Settings, key: str) -> Outcome:
    """Convert how often checkpoints are written."""
    return mapped({"training.checkpoint_every": settings[key] if settings[key] > 0 else None})


def keep_checkpoints(settings: Settings, key: str) -> Outcome:
    """Convert how many checkpoints are kept."""
    if settings[key] <= 0:
        return no_counterpart("all are kept there; here the newest training.keep_checkpoints")
    return mapped({"training.keep_checkpoints": settings[key]})


def eval_steps(settings: Settings, key: str) -> Outcome:
    """Convert how often the policy is evaluated."""
    period = settings[key] if settings[key] > 0 else None
    return mapped({"evaluation.every_steps": period}, "greedy, on prompts held out by data.eval_fraction")
