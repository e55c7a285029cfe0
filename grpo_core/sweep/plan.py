"""What a sweep is about to do, checked before its first run: every arm's configuration, and what the arms say together."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_core.config import RunConfig, apply_overrides, check_consistency, find_config
from grpo_core.config.derived import advantage_rms_factor, has_sync_rule, is_changed, is_single_update, weight_of_kl
from grpo_core.config.loading import explain, read_values
from grpo_core.config.presets import find_sweep
from grpo_core.config.schedule import exact_every, is_exact
from grpo_core.config.section import Section
from grpo_core.errors import ConfigError, listed
from grpo_core.metrics import find_metric, is_registered
from grpo_core.sweep.arms import GROUP_SIZE, MOST_ARMS, PROMPTS, arm_config, check_axes, check_primary, count_arms, grid
from grpo_core.sweep.display import arm_name, first_few
from grpo_core.sweep.measures import counted_arms, find_unmeasured
from grpo_core.sweep.schema import Range, SweepConfig

BETA, SYNC = "loss.beta", "reference.sync_steps"
TPE_STARTUP = 10
"""Trials that Optuna's TPE draws at random before it learns."""
SHOWN_ARMS = 40
SCHEDULED = ("progress/", "optim/lr", "ref/sync_count", "ref/synced", "ref/steps_since_sync", "ref/lag")
"""Beginnings of the metrics whose value is decided before the first step."""
OF_PROMPTS = ("data.seed", "data.source", "data.size", "data.eval_fraction", "data.task_args", "data.hub_split")
"""Keys that decide which prompts there are, and which of them are held out."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep whose arms have been checked."""

    sweep: SweepConfig
    base: Mapping[str, Any]
    """Plain values of the base, the sweep's overrides applied."""
    preset: str
    num_arms: int
    configs: tuple[RunConfig, ...]
    """Of every arm of a grid; of a search, the ends of its ranges."""
    notes: tuple[str, ...]
    """Warnings, each with the number of arms that it is about."""

    @property
    def num_runs(self) -> int:
        """Arms times seeds."""
        return self.num_arms * len(self.sweep.seeds)


def load_sweep(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Return the checked plan of a sweep file (or of a file in `configs/sweeps/` by name), {key: value} overrides last.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, an axis is empty, misspelt or without effect, or an arm
            contradicts itself.
    """
    return make_plan(apply_overrides(read_values(find_sweep(path)), overrides or {}))


def make_plan(values: Mapping[str, Any], *, begun: bool = False) -> Plan:
    """Return the checked plan of a sweep's plain values.

    Args:
        values: the plain values.
        begun: the sweep has runs already, so that a drift that they cannot measure is a warning: what there is can be reported.

    Raises:
        ConfigError: as `load_sweep`.
    """
    try:
        sweep = SweepConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(listed(explain(error, SweepConfig))) from error
    check_axes(sweep)
    check_primary(sweep)
    _check_keys(sweep)
    base_file = find_config(sweep.base)
    base = apply_overrides(read_values(base_file), sweep.overrides)
    configs = _arm_configs(sweep, base)
    _check_reference(sweep, configs)
    _check_objective(sweep, configs)
    faults, warnings = find_unmeasured(sweep, configs)
    if faults and not begun:
        raise ConfigError(listed(faults))
    return Plan(
        sweep=sweep,
        base=base,
        preset=base_file.stem,
        num_arms=count_arms(sweep),
        configs=tuple(configs),
        notes=(*_notes(sweep, configs), *faults, *warnings),
    )


def _check_keys(sweep: SweepConfig) -> None:
    """Refuse keys that contradict each other, and keys that have no effect beside the others."""
    objective, group_size = sweep.objective, GROUP_SIZE in sweep.axes
    _refuse_first(
        {
            f"trials: {sweep.trials} has no effect with sampler grid, which runs every arm; leave it out": (
                sweep.sampler == "grid" and sweep.trials is not None
            ),
            f"trials: sampler {sweep.sampler} needs the number of arms to try, for example trials: 20": (
                sweep.sampler != "grid" and sweep.trials is None
            ),
            f"objective.kl_penalty: {objective.kl_penalty} and objective.kl_bound {objective.kl_bound}: give a price or a "
            "bound": (objective.kl_penalty is not None and objective.kl_bound is not None),
            **_idle_keys(sweep),
            "overrides.training.seed: has no effect, the sweep sets it; give `seeds`": "training.seed" in sweep.overrides,
            f"hold: axes.{GROUP_SIZE} changes more than the group size unless something is held; set it to prompts, "
            "completions or tokens": group_size and sweep.hold is None,
            f"hold: {sweep.hold} has no effect without axes.{GROUP_SIZE}; leave it out": not group_size
            and sweep.hold is not None,
            f"axes.{PROMPTS}: contradicts hold: {sweep.hold}, which decides it; leave one out": (
                sweep.hold is not None and PROMPTS in sweep.axes
            ),
        }
    )


def _idle_keys(sweep: SweepConfig) -> dict[str, bool]:
    """Return message -> whether the key that it is about is set although nothing uses it."""
    pruner, neither = sweep.pruner, "neither pruner.reward nor pruner.kl_budget"
    idle: list[tuple[str, Section, str, bool, str]] = [
        ("pruner.", pruner, "first_step", not pruner.is_on, neither),
        ("pruner.", pruner, "window", not pruner.is_on, neither),
        (
            "pruner.",
            pruner,
            "every_steps",
            pruner.kl_budget is None and pruner.reward != "median",
            "neither median nor pruner.kl_budget",
        ),
        ("pruner.", pruner, "min_arms", pruner.reward is None, "no pruner.reward"),
        ("pruner.", pruner, "reduction_factor", pruner.reward != "successive_halving", "no pruner.reward successive_halving"),
        ("runs.", sweep.runs, "deployment", sweep.runs.where == "local", "runs.where local"),
        ("", sweep, "sampler_seed", sweep.sampler == "grid", "sampler grid"),
    ]
    return {
        f"{prefix}{key}: {getattr(holder, key)} has no effect with {why}; leave it out": is_idle and is_changed(holder, key)
        for prefix, holder, key, is_idle, why in idle
    }


def _arm_configs(sweep: SweepConfig, base: Mapping[str, Any]) -> list[RunConfig]:
    """Return the configuration of every arm (of a range: of its ends), or refuse all faults at once, each with an arm."""
    size = math.prod(2 if isinstance(axis, Range) else len(axis) for axis in sweep.axes.values())
    if size > MOST_ARMS:
        raise ConfigError(f"axes: {size} combinations are more than {MOST_ARMS}; shorten some axes, or use ranges")
    points = list(grid(sweep))
    configs, faults = [], defaultdict[str, list[str]](list)
    for values in points:
        try:
            configs.append(arm_config(sweep, base, values))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults[line].append(arm_name(values))
    if faults:
        raise ConfigError(listed([f"arm {first_few(names, 1)}: {line}" for line, names in faults.items()]))
    return configs


def _check_reference(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse a sweep over β, or over the sync period, in which the axis has no effect, or not alone its own."""
    idle = sum(
        is_single_update(config) and config.reference.sync_steps == 1 and config.reference.mixup_alpha == 1
        for config in configs
    )
    moved = sum(has_sync_rule(config) for config in configs)
    _refuse_first(
        {
            f"axes.{BETA}: in {idle} of {len(configs)} arms the KL is always 0 (reference.sync_steps 1, "
            "reference.mixup_alpha 1, one update a rollout: the reference is the policy that made the rollouts), so every β is "
            "the same arm there; sync more rarely, or sweep something else": BETA in sweep.axes and idle > 0,
            f"axes.{SYNC}: in {moved} of {len(configs)} arms a rule of monitor.rules (action: sync) synchronises the reference "
            "as well, so the levels would not be when it moves (null would not be never); leave the rule or the axis out, or "
            "make axes.monitor.rules the axis": SYNC in sweep.axes and moved > 0,
        }
    )


def _notes(sweep: SweepConfig, configs: Sequence[RunConfig]) -> list[str]:
    counts = Counter(text for config in configs for text in check_consistency(config))
    is_shared = sweep.runs.where == "local" and sweep.runs.concurrency > 1
    crowded = f"null lets each of {sweep.runs.concurrency} runs at a time use every core; set it to their share"
    counts[f"training.threads: {crowded}"] = sum(is_shared and config.training.threads is None for config in configs)
    unresumable = "training.engine trl cannot resume, so a run that is killed has failed"
    counts[unresumable] = sum(config.training.engine != "native" for config in configs)
    data_axes = [key for key in sweep.axes if key in OF_PROMPTS or key.startswith("data.task_args.")]
    last, steps = sweep.objective.last_steps, [config.training.steps for config in configs]
    notes = {
        f"trials: {sweep.trials} of sampler tpe are all drawn at random; it learns from the first {TPE_STARTUP}": (
            sweep.sampler == "tpe" and (sweep.trials or 0) <= TPE_STARTUP
        ),
        f"axes.{', axes.'.join(data_axes)}: arms have other prompts, also held-out ones: they are not compared on the same": (
            bool(data_axes)
        ),
        f"objective.last_steps: {last} is more than training.steps {min(steps)}: the mean is over the whole run": (
            last > min(steps)
        ),
        "seeds: one seed shows no spread; no interval can be given, and no arm be called better": len(sweep.seeds) == 1,
    }
    # + leaves out what is about no arm.
    return [
        *counted_arms(+counts, len(configs)),
        *_swept_units(sweep, configs),
        *(note for note, holds in notes.items() if holds),
    ]


def _refuse_first(faults: Mapping[str, bool]) -> None:
    """Refuse with the first message that holds.

    Raises:
        ConfigError: one of them holds.
    """
    for message, holds in faults.items():
        if holds:
            raise ConfigError(message)


def _check_objective(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse an objective that some arm does not measure, or that makes no arm better.

    Raises:
        ConfigError: names the key, and an example.
    """
    objective, metric, kl_metric = sweep.objective, sweep.objective.metric, sweep.objective.kl_metric
    examples = (("metric", metric, "", "eval/heldout/pass_at_1 or reward/mean"), ("kl_metric", kl_metric, "kl/", "kl/init/seq"))
    for key, name, start, example in examples:
        if not is_registered(name) or not name.startswith(start):
            raise ConfigError(f"objective.{key}: {name!r} is no such metric; METRICS.md lists them, for example {example}")
    if (why := _why_no_objective(metric)) is not None:
        raise ConfigError(f"objective.metric: {metric} {why}, so it makes no arm better; give, for example, {examples[0][3]}")
    is_probed = any(name.startswith("kl/probe/") for name in (metric, kl_metric))
    for config in configs:
        samples, k = config.evaluation.samples, list(config.evaluation.k)
        is_sampled = bool(samples) and metric.rpartition("_")[2] in map(str, k)
        _refuse_first(
            {
                f"objective.metric: {metric} needs held-out prompts, data.eval_fraction is 0": (
                    objective.is_of_evaluation and config.data.eval_fraction == 0
                ),
                f"objective.metric: {metric} is not measured with evaluation.samples {samples} and evaluation.k {k}": (
                    metric.startswith("eval/heldout/pass_at_") and not is_sampled
                ),
                f"objective.metric: {metric} is not of the final evaluation, whose figures are eval/heldout/...": (
                    objective.is_of_evaluation and not metric.startswith("eval/heldout/")
                ),
                "hold: tokens needs overrides training.max_tokens, the tokens of each run": (
                    sweep.hold == "tokens" and config.training.max_tokens is None
                ),
                f"objective.kl_metric: {kl_metric} is measured only where probe.every_steps is set": (
                    is_probed and config.probe.every_steps is None
                ),
                f"objective.kl_metric: {kl_metric} is measured only where reference.kl_full_every is set": (
                    is_exact(kl_metric) and exact_every(config) is None
                ),
            }
        )


def _why_no_objective(metric: str) -> str | None:
    """Return why nobody would maximise a figure; None where somebody may."""
    found = find_metric(metric)
    if found is not None and not found.deterministic:
        return "depends on the machine and is another in every repetition"
    return "follows from the configuration alone" if metric.startswith(SCHEDULED) else None


def _swept_units(sweep: SweepConfig, configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield a warning for each figure of the objective in which equal policies differ, because an axis changes what it counts.

    Args:
        sweep: the sweep.
        configs: of its arms, in the order of its grid.
    """
    objective, points = sweep.objective, list(grid(sweep))
    prices = [objective.kl_metric] if objective.kl_penalty or objective.kl_bound else []
    for figure in dict.fromkeys((objective.metric, *prices)):
        units = [_unit(config, figure) for config in configs]
        keys = [
            key
            for key in sweep.axes
            if any(
                unit != units[0]
                for unit, point in zip(units, points, strict=True)
                if all(point[other] == points[0][other] for other in sweep.axes if other != key)
            )
        ]
        if keys:
            yield (
                f"objective: {figure} contains {', '.join(keys)}, which the axes change: equal policies differ in it; maximise "
                "a figure that means the same in every arm, such as eval/heldout/greedy_accuracy with one verifier"
            )


def _unit(config: RunConfig, figure: str) -> object:
    """Return the settings that enter a figure directly, not through what was learned."""
    functions = [(reward.fn, reward.args) for reward in config.rewards]
    total = [(reward.fn, reward.args, reward.weight) for reward in config.rewards]
    evaluation, name = config.evaluation, figure.partition("/")[2]
    judge = evaluation.verifier or functions[0][0]
    return {
        "eval": ([item for item in functions if item[0] == judge], evaluation.pass_score, evaluation.num_prompts),
        "reward": functions if "/" in name else total,
        "group": total,
        "advantage": (total, config.advantage, config.filtering.overlong_buffer_tokens),
        "loss": (total, config.advantage, config.filtering, config.loss),
        "filter": (total, config.filtering),
        "kl": config.rollout.temperature,
        "policy": config.rollout.temperature,
        "completion": config.rollout.max_completion_tokens,
    }.get(figure.partition("/")[0])


def describe_plan(plan: Plan) -> Iterator[str]:
    """Yield a line each for the sweep, its arms (of a search: the ends of its ranges) and its warnings."""
    sweep = plan.sweep
    seeds = f"{len(sweep.seeds)} seeds ({', '.join(map(str, sweep.seeds))})"
    yield f"{plan.num_arms} arms x {seeds} = {plan.num_runs} runs of {plan.preset}"
    yield f"objective: {sweep.objective.metric}; sampler: {sweep.sampler}" + (f"; hold: {sweep.hold}" if sweep.hold else "")
    for number, (values, config) in enumerate(zip(grid(sweep), plan.configs[:SHOWN_ARMS], strict=False)):
        factor, rollout = advantage_rms_factor(config), config.rollout
        spread = f"advantage_rms_factor {factor:.4f}; " if factor else ""
        yield (
            f"  {number:3d}  {arm_name(values)}: {rollout.num_prompts_per_step} x {rollout.group_size} completions a step; "
            f"{spread}effective beta {weight_of_kl(config)}"
        )
    if len(plan.configs) > SHOWN_ARMS:
        yield f"  ... and {len(plan.configs) - SHOWN_ARMS} more"
    yield from (f"warning: {note}" for note in plan.notes)
    yield f"{len(plan.notes)} warning(s); the sweep is valid"
