"""TRL's batches and what is counted in them: prompts, minibatches, length, warm-up, checkpoints, evaluations.

Each function converts the keys that depend on each other; `export_...` is its way back.
"""

import math
from dataclasses import dataclass

from grpo_core.config.derived import optimizer_steps
from grpo_core.config.schema import RunConfig
from grpo_core.interop.records import Conclusion, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import in_steps, warmup_steps, warmup_updates


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
    """Return the number of training processes: as given, as a resolved configuration implies it, else 1.

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


def assumed_processes(settings: Settings) -> tuple[str, ...]:
    """Return a note if the number of processes was assumed."""
    known = settings.processes or (settings["generation_batch_size"] and settings["steps_per_generation"])
    return () if known else ("1 training process is assumed (a file does not tell; --processes N does)",)


def refuses_too(settings: Settings) -> str:
    """Return that the source system refuses these batch sizes, with so many processes."""
    count = num_processes(settings)
    which = f"{count} process{'' if count == 1 else 'es'}{' (assumed)' if assumed_processes(settings) else ''}"
    return f"{settings.system.title} refuses that as well, with {which}; --processes N sets their number"


def read_batch(settings: Settings) -> Batch:
    """Return what TRL's batch sizes amount to.

    Raises:
        ConfigError: TRL would refuse them.
    """
    micro, group_size = settings["per_device_train_batch_size"] * num_processes(settings), settings["num_generations"]
    accumulated, mu = settings["gradient_accumulation_steps"], settings["num_iterations"]
    windows, generation = settings["steps_per_generation"], settings["generation_batch_size"]
    if windows is None:
        windows = accumulated if generation is None else generation // micro
        if generation is not None and (generation % micro or generation == 0):
            raise settings.refuse(
                f"generation_batch_size: {generation} is no multiple of per_device_train_batch_size x processes = {micro}"
                f"; {refuses_too(settings)}"
            )
    rows = micro * windows
    if rows % group_size:
        raise settings.refuse(
            f"num_generations: {group_size} does not divide the generation batch of {rows} completions "
            f"({micro} per micro-step x {windows}); {refuses_too(settings)}"
        )
    if windows >= accumulated:
        minibatches, is_uneven = math.ceil(windows / accumulated), windows % accumulated != 0
        sizes = f"{rows} completions of one generation batch / {group_size} generations"
        if is_uneven:
            sizes += f"; {windows} micro-steps are not whole optimizer steps of {accumulated}, here they are equal shares"
        return Batch(
            prompts=rows // group_size, minibatches=minibatches, updates=minibatches * mu, remark=sizes, differs=is_uneven
        )
    if mu == 1 and accumulated % windows == 0:
        return Batch(
            prompts=micro * accumulated // group_size,
            minibatches=1,
            updates=1,
            remark=f"TRL generates {accumulated // windows} times for one optimizer step, which is one step here",
        )
    return Batch(
        prompts=rows // group_size,
        minibatches=1,
        updates=mu,
        remark="TRL's optimizer steps span several generation batches; here each batch has its own",
        differs=True,
    )


def batch(settings: Settings, _key: str) -> Conclusion:
    """Convert the batch sizes, all of them together."""
    found = read_batch(settings)
    return mapped(
        {"rollout.num_prompts_per_step": found.prompts, "loss.minibatches": found.minibatches},
        found.remark,
        differs=found.differs,
    )


def export_batch(config: RunConfig, key: str) -> int:
    """Return a batch size of one process that makes each optimizer step in one pass; see `in_passes`."""
    return in_passes(config, rows_per_minibatch(config))[key]


def in_passes(config: RunConfig, rows_per_pass: int) -> dict[str, int]:
    """Return the batch sizes of one process that computes `rows_per_pass` completions at once, a divisor of a minibatch."""
    passes = rows_per_minibatch(config) // rows_per_pass
    return {
        "per_device_train_batch_size": rows_per_pass,
        "gradient_accumulation_steps": passes,
        "steps_per_generation": passes * config.loss.minibatches,
    }


def rows_per_minibatch(config: RunConfig) -> int:
    """Return the completions of one optimizer step."""
    return config.rollout.num_prompts_per_step * config.rollout.group_size // config.loss.minibatches


def updates_per_step(config: RunConfig) -> int:
    """Return the optimizer steps of one step, in which TRL counts."""
    return config.loss.epochs_per_rollout * config.loss.minibatches


def known_length(settings: Settings) -> int | None:
    """Return the optimizer steps of the whole run; None where they depend on the size of the data."""
    return settings["max_steps"] if settings["max_steps"] > 0 else None


def length(settings: Settings, key: str) -> Conclusion:
    """Convert the length of the run."""
    total, found = known_length(settings), read_batch(settings)
    if key == "num_train_epochs":
        reason = f"set training.steps to {settings[key]:g} x prompts of the data / {found.prompts}"
        return no_counterpart(reason, differs=True) if total is None else dead("max_steps overrides it")
    if total is None:
        reason = "the length is num_train_epochs passes over data of unknown size; set training.steps (it stays at its default)"
        return no_counterpart(reason, differs=True)
    count = math.ceil(total / found.updates)
    is_uneven = count * found.updates != total
    remark = "" if found.updates == 1 else f"optimizer steps there, steps of {found.updates} optimizer steps here"
    if is_uneven:
        remark += f", rounded up: {count * found.updates} optimizer steps instead of {total}"
    return mapped({"training.steps": count}, remark, differs=is_uneven)


def export_length(config: RunConfig, _key: str) -> int:
    """Return the optimizer steps of the whole run."""
    return optimizer_steps(config)


def warmup(settings: Settings, key: str) -> Conclusion:
    """Convert the warm-up; `warmup_ratio` is older TRL's, and `warmup_steps` overrides it."""
    if key == "warmup_ratio" and settings["warmup_steps"] > 0:
        return dead("warmup_steps overrides it")
    amount, is_ignored = settings[key], settings["lr_scheduler_type"] == "constant"
    return warmup_steps(
        warmup_updates(amount, known_length(settings)),
        is_ignored=is_ignored,
        remark="" if amount >= 1 or amount == 0 else f"{amount:g} of max_steps",
    )


def checkpoints(settings: Settings, key: str) -> Conclusion:
    """Convert when checkpoints are written."""
    strategy = settings["save_strategy"]
    if strategy == "steps":
        return _period(settings, settings["save_steps"], "training.checkpoint_every", "a checkpoint")
    if key == "save_steps":
        return dead(f"does nothing with save_strategy {strategy}")
    return (
        mapped({"training.checkpoint_every": None}, "a final checkpoint is written in any case")
        if strategy == "no"
        else no_counterpart("checkpoints are written every training.checkpoint_every steps, and at the end")
    )


def evaluations(settings: Settings, key: str) -> Conclusion:
    """Convert when the policy is evaluated during training."""
    strategy = settings["eval_strategy"]
    if strategy == "steps":
        every = settings["eval_steps"] or settings.given.get("logging_steps")  # as in transformers
        return _period(settings, every if isinstance(every, int | float) else 10, "evaluation.every_steps", "an evaluation")
    if key == "eval_steps":
        return dead(f"does nothing with eval_strategy {strategy}")
    return (
        mapped({"evaluation.every_steps": None}, "before and after training it is evaluated in any case")
        if strategy == "no"
        else no_counterpart("set evaluation.every_steps")
    )


def _period(settings: Settings, amount: float, ours: str, what: str) -> Conclusion:
    total = known_length(settings)
    if amount <= 0:
        return no_counterpart("not a period; TRL refuses it as well")
    if amount < 1 and total is None:
        return no_counterpart(f"a share of steps that depend on the size of the data; set {ours}")
    count, remark = in_steps(amount if amount >= 1 else amount * (total or 0), read_batch(settings).updates, what)
    return mapped({ours: count}, remark)


def export_period(config: RunConfig, key: str) -> str | int:
    """Return when checkpoints are written or the policy is evaluated, in optimizer steps."""
    kind, _, part = key.partition("_")
    steps = {"save": config.training.checkpoint_every, "eval": config.evaluation.every_steps}[kind]
    if part == "strategy":
        return "no" if steps is None else "steps"
    return (steps or 1) * updates_per_step(config)
