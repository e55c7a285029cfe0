"""TRL's batches and what is counted in them: prompts, minibatches, length, schedule, checkpoints, evaluations."""

import math
from dataclasses import dataclass

from grpo_core.interop.records import Outcome, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import in_steps, warmup_updates


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step here: one batch of rollouts and the updates on it."""

    prompts: int
    minibatches: int
    updates: int
    """Optimizer steps on one batch of rollouts."""
    remark: str
    differs: bool = False


def num_processes(settings: Settings) -> int:
    """Return the number of training processes: as told, as a resolved configuration implies it, else 1.

    Raises:
        ConfigError: the file's own figures contradict it.
    """
    generated, windows = settings["generation_batch_size"], settings["steps_per_generation"]
    if generated is None or windows is None:
        return settings.processes or 1
    implied, rest = divmod(generated, settings["per_device_train_batch_size"] * windows)
    if rest or implied == 0 or settings.processes not in (None, implied):
        raise settings.refuse(
            f"generation_batch_size: {generated} is not per_device_train_batch_size x steps_per_generation "
            f"({settings['per_device_train_batch_size']} x {windows}) x a number of processes"
            f"{f' of {settings.processes}' if settings.processes else ''}; leave one of the two out"
        )
    return int(implied)


def read_batch(settings: Settings) -> Batch:
    """Return what TRL's batch sizes amount to.

    Raises:
        ConfigError: TRL would refuse them.
    """
    micro, group_size = settings["per_device_train_batch_size"] * num_processes(settings), settings["num_generations"]
    accumulated, mu = settings["gradient_accumulation_steps"], settings["num_iterations"]
    windows = settings["steps_per_generation"]
    if windows is None:
        generation = settings["generation_batch_size"]
        windows = accumulated if generation is None else generation // micro
        if generation is not None and (generation % micro or generation == 0):
            raise settings.refuse(
                f"generation_batch_size: {generation} is no multiple of per_device_train_batch_size x processes = {micro}"
                "; TRL refuses it as well (--processes tells how many processes there are)"
            )
    rows = micro * windows
    if rows % group_size:
        raise settings.refuse(
            f"num_generations: {group_size} does not divide the generation batch of {rows} completions "
            f"({micro} per micro-step x {windows}); TRL refuses it as well (--processes tells how many processes there are)"
        )
    sizes = f"{rows} completions of one generation batch / {group_size} generations"
    if windows >= accumulated:
        return _windows(rows // group_size, windows, accumulated, mu, sizes)
    if mu == 1 and accumulated % windows == 0:
        whole = f"TRL generates {accumulated // windows} times for one optimizer step, which is one step here"
        return Batch(prompts=micro * accumulated // group_size, minibatches=1, updates=1, remark=whole)
    crossing = "TRL's optimizer steps span several generation batches; here each batch has its own"
    return Batch(prompts=rows // group_size, minibatches=1, updates=mu, remark=crossing, differs=True)


def _windows(prompts: int, windows: int, accumulated: int, mu: int, sizes: str) -> Batch:
    minibatches, rest = divmod(windows, accumulated)
    uneven = (
        f"; {windows} micro-steps are not whole optimizer steps of {accumulated}, here they are equal shares" if rest else ""
    )
    minibatches += bool(rest)
    return Batch(
        prompts=prompts, minibatches=minibatches, updates=minibatches * mu, remark=f"{sizes}{uneven}", differs=bool(rest)
    )


def batch(settings: Settings, _key: str) -> Outcome:
    """Convert the batch sizes, all of them together."""
    found = read_batch(settings)
    targets = {"rollout.num_prompts_per_step": found.prompts, "loss.minibatches": found.minibatches}
    return mapped(targets, found.remark, differs=found.differs)


def assumptions(settings: Settings) -> tuple[str, ...]:
    """Say how many processes were assumed."""
    known = settings.processes or (settings["generation_batch_size"] and settings["steps_per_generation"])
    return () if known else ("1 training process is assumed (a file does not tell; --processes N does)",)


def schedule(settings: Settings, key: str) -> Outcome:
    """Convert the learning-rate schedule."""
    names = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
    if settings[key] not in names:
        return no_counterpart("optimizer.schedule is constant, linear or cosine; it stays constant", differs=True)
    return mapped({"optimizer.schedule": names[settings[key]]})


def total_updates(settings: Settings) -> int | None:
    """Return the optimizer steps of the whole run; None where they depend on the size of the data."""
    return settings["max_steps"] if settings["max_steps"] > 0 else None


def warmup(settings: Settings, key: str) -> Outcome:
    """Convert the warm-up."""
    return _warmup(settings, settings[key])


def warmup_ratio(settings: Settings, key: str) -> Outcome:
    """Convert the warm-up of older TRL, which warmup_steps overrides."""
    if settings["warmup_steps"] > 0:
        return dead("warmup_steps overrides it")
    return _warmup(settings, settings[key])


def _warmup(settings: Settings, amount: float) -> Outcome:
    if settings["lr_scheduler_type"] == "constant" and amount:
        return dead("the schedule `constant` has no warm-up there (constant_with_warmup has)")
    updates = warmup_updates(amount, total_updates(settings))
    if updates is None:
        return no_counterpart("a share of steps that depend on the size of the data; set optimizer.warmup_steps", differs=True)
    return mapped({"optimizer.warmup_steps": updates}, "" if amount >= 1 or amount == 0 else f"{amount:g} of max_steps")


def steps(settings: Settings, _key: str) -> Outcome:
    """Convert the length of the run."""
    total, updates = total_updates(settings), read_batch(settings).updates
    if total is None:
        reason = "the length is num_train_epochs passes over data of unknown size; set training.steps (it stays at its default)"
        return no_counterpart(reason, differs=True)
    count = math.ceil(total / updates)
    uneven = "" if count * updates == total else f", rounded up: {count * updates} optimizer steps instead of {total}"
    remark = "" if updates == 1 else f"optimizer steps there, steps of {updates} optimizer steps here{uneven}"
    return mapped({"training.steps": count}, remark, differs=bool(uneven))


def epochs(settings: Settings, key: str) -> Outcome:
    """Say what becomes of the number of passes over the data."""
    if total_updates(settings) is not None:
        return dead("max_steps overrides it")
    prompts = read_batch(settings).prompts
    return no_counterpart(f"set training.steps to {settings[key]:g} x prompts of the data / {prompts}", differs=True)


def _period(settings: Settings, amount: float, ours: str, what: str) -> Outcome:
    if amount <= 0:
        return no_counterpart("not a period; TRL refuses it as well")
    total = total_updates(settings)
    if amount < 1 and total is None:
        return no_counterpart(f"a share of steps that depend on the size of the data; set {ours}")
    count, remark = in_steps(amount if amount >= 1 or total is None else amount * total, read_batch(settings).updates, what)
    return mapped({ours: count}, remark)


def save_strategy(settings: Settings, key: str) -> Outcome:
    """Convert when checkpoints are written."""
    if settings[key] == "no":
        return mapped({"training.checkpoint_every": None}, "a final checkpoint is written in any case")
    if settings[key] != "steps":
        return no_counterpart("checkpoints are written every training.checkpoint_every steps, and at the end")
    return _period(settings, settings["save_steps"], "training.checkpoint_every", "a checkpoint")


def save_steps(settings: Settings, key: str) -> Outcome:
    """Convert how often checkpoints are written."""
    if settings["save_strategy"] != "steps":
        return dead(f"does nothing with save_strategy {settings['save_strategy']}")
    return _period(settings, settings[key], "training.checkpoint_every", "a checkpoint")


def keep_checkpoints(settings: Settings, key: str) -> Outcome:
    """Convert how many checkpoints are kept."""
    if settings[key] is None:
        return no_counterpart("all are kept there; here the newest training.keep_checkpoints")
    return mapped({"training.keep_checkpoints": settings[key]})


def eval_strategy(settings: Settings, key: str) -> Outcome:
    """Convert when the policy is evaluated during training."""
    if settings[key] == "no":
        return mapped({"evaluation.every_steps": None}, "before and after training it is evaluated in any case")
    if settings[key] != "steps":
        return no_counterpart("set evaluation.every_steps")
    # transformers falls back on logging_steps, 10 in TRL.
    every = settings["eval_steps"] if settings["eval_steps"] is not None else settings.given.get("logging_steps", 10)
    return _period(settings, every if isinstance(every, int | float) else 10, "evaluation.every_steps", "an evaluation")


def eval_steps(settings: Settings, _key: str) -> Outcome:
    """Convert how often the policy is evaluated."""
    if settings["eval_strategy"] != "steps":
        return dead(f"does nothing with eval_strategy {settings['eval_strategy']}")
    return eval_strategy(settings, "eval_strategy")
