"""What a sweep is about to do, checked before its first run: every arm's configuration, and what the arms say together."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_core.config import RunConfig, apply_overrides, check_consistency, derived, find_config
from grpo_core.config.loading import explain, read_values
from grpo_core.config.origin import find_sweep, preset_of, read_beside
from grpo_core.config.section import Section
from grpo_core.config.spelling import SETTING, arm_name
from grpo_core.errors import ConfigError, listed, shown
from grpo_core.metrics import find_metric
from grpo_core.run.fit import runs_at_a_time
from grpo_core.sweep.arms import GROUP_SIZE, MOST_ARMS, PROMPTS, arm_config, grid
from grpo_core.sweep.display import first_few
from grpo_core.sweep.schema import Axis, Range, SweepConfig
from grpo_core.sweep.sharing import fork_faults

TPE_STARTUP = 10
"""Trials that Optuna's TPE draws at random before it learns."""
OF_PROMPTS = ("data.seed", "data.source", "data.size", "data.eval_fraction", "data.task_args", "data.hub_split")
"""Keys that decide which prompts there are, and which of them are held out."""
NO_SWEEP = "this is a run's file, which `grpo train` takes; a sweep's has `base` (such a file) and `axes`"
BETA, SYNC = "loss.beta", "reference.sync_steps"
SCHEDULED = ("progress/", "optim/lr", "ref/sync_count", "ref/synced", "ref/steps_since_sync", "ref/lag")
"""Beginnings of the metrics whose value is decided before the first step."""
EXACT_DRIFT = "kl/probe/full_init"
CONTENTS = {
    "eval": ("evaluation.verifier", "evaluation.pass_score", "evaluation.num_prompts"),
    "reward": ("rewards",),
    "group": ("rewards",),
    "advantage": ("rewards", "advantage", "filtering.overlong_buffer_tokens"),
    "loss": ("rewards", "advantage", "filtering", "loss"),
    "filter": ("rewards", "filtering"),
    "kl": ("rollout.temperature",),
    "policy": ("rollout.temperature",),
    "completion": ("rollout.max_completion_tokens",),
}
"""Area of a figure -> the keys that enter it directly, not through what was learned."""


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
    values = apply_overrides(read_values(find_sweep(path)), overrides or {})
    if values.get("fork") and "base" in values:
        raise ConfigError("base: has no effect with fork, whose run's configuration it is; leave it out")
    return make_plan(values)


def make_plan(values: Mapping[str, Any]) -> Plan:
    """Return the checked plan of a sweep's plain values.

    Raises:
        ConfigError: as `load_sweep`.
    """
    try:
        sweep = SweepConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(listed(explain(error, SweepConfig) if {"base", "axes"} & values.keys() else [NO_SWEEP])) from error
    for faults in (*(_axis_faults(sweep, *axis) for axis in sweep.axes.items()), _primary_faults(sweep), _key_faults(sweep)):
        _refuse_first(faults)
    base_file = find_config(sweep.base)
    base = apply_overrides(read_beside(base_file), sweep.overrides)
    _refuse_first(fork_faults(sweep, base))
    configs = _arm_configs(sweep, base)
    _check_arms(sweep, configs)
    if sweep.runs.where == "local" and "concurrency" not in sweep.runs.model_fields_set:
        runs = sweep.runs.model_copy(update={"concurrency": runs_at_a_time(configs)})
        sweep = sweep.model_copy(update={"runs": runs})
    return Plan(
        sweep=sweep,
        base=base,
        preset=preset_of(base_file),
        num_arms=sweep.trials or len(configs),
        configs=tuple(configs),
        notes=tuple(_notes(sweep, configs)),
    )


def _arm_configs(sweep: SweepConfig, base: Mapping[str, Any]) -> list[RunConfig]:
    """Return the configuration of every arm (of a range: of its ends), or refuse all faults at once, each with an arm."""
    size = math.prod(2 if isinstance(axis, Range) else len(axis) for axis in sweep.axes.values())
    if size > MOST_ARMS:
        raise ConfigError(f"axes: {size} combinations are more than {MOST_ARMS}; shorten some axes, or use ranges")
    configs, faults = [], defaultdict[str, list[str]](list)
    for values in grid(sweep):
        try:
            configs.append(arm_config(sweep, base, values))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults[line].append(arm_name(values))
    if faults:
        raise ConfigError(listed([f"setting {first_few(names, 1)}: {line}" for line, names in faults.items()]))
    return configs


def _notes(sweep: SweepConfig, configs: Sequence[RunConfig]) -> list[str]:
    counts = Counter(text for config in configs for text in check_consistency(config))
    is_shared = sweep.runs.where == "local" and sweep.runs.concurrency > 1
    crowded = f"null lets each of {sweep.runs.concurrency} runs at a time use every core; set it to their share"
    counts[f"training.threads: {crowded}"] = sum(is_shared and config.training.threads is None for config in configs)
    unresumable = "training.engine trl cannot resume, so a run that is killed has failed"
    counts[unresumable] = sum(config.training.engine != "native" for config in configs)
    data_axes = [key for key in sweep.changed if key in OF_PROMPTS or key.startswith("data.task_args.")]
    last, steps = sweep.objective.last_steps, [config.training.steps for config in configs]
    notes = {
        f"trials: {sweep.trials} of sampler tpe are all drawn at random; it learns from the first {TPE_STARTUP}": (
            sweep.sampler == "tpe" and (sweep.trials or 0) <= TPE_STARTUP
        ),
        f"{', '.join(data_axes)}: settings have other prompts, also held-out ones: not compared on the same": (bool(data_axes)),
        f"objective.last_steps: {last} is more than training.steps {min(steps)}: the mean is over the whole run": (
            last > min(steps)
        ),
        "seeds: one seed shows no spread; no interval can be given, and no setting be called better": len(sweep.seeds) == 1,
    }
    # + leaves out what is about no arm.
    return [*_counted_arms(+counts, configs), *(note for note, holds in notes.items() if holds), *_warnings(sweep, configs)]


def _refuse_first(faults: Mapping[str, bool]) -> None:
    if found := [message for message, holds in faults.items() if holds]:
        raise ConfigError(found[0])


def _key_faults(sweep: SweepConfig) -> dict[str, bool]:
    """Return message -> whether keys contradict each other, or one has no effect beside the others."""
    objective, pruner, group_size = sweep.objective, sweep.pruner, GROUP_SIZE in sweep.axes
    neither, both = "neither pruner.reward nor pruner.kl_budget", "neither median nor pruner.kl_budget"
    halving, has_rungs = "no pruner.reward successive_halving", pruner.kl_budget is not None or pruner.reward == "median"
    idle: list[tuple[str, Section, str, bool, str]] = [
        ("pruner.", pruner, "first_step", not pruner.is_on, neither),
        ("pruner.", pruner, "window", not pruner.is_on, neither),
        ("pruner.", pruner, "every_steps", not has_rungs, both),
        ("pruner.", pruner, "min_arms", pruner.reward is None, "no pruner.reward"),
        ("pruner.", pruner, "reduction_factor", pruner.reward != "successive_halving", halving),
        ("runs.", sweep.runs, "deployment", sweep.runs.where == "local", "runs.where local"),
        ("", sweep, "sampler_seed", sweep.sampler == "grid", "sampler grid"),
    ]
    keys = [(name, key) for name, values in sweep.settings.items() for key in values]
    own = [key for _, key in keys if _is_sweeps(key)] or [""]
    twice = [f"{name}.{key}" for name, key in keys if any(f"{one}.".startswith(f"{key}.") for one in sweep.overrides)] or [""]
    return {
        f"settings.{twice[0]}: also among overrides; give it once": bool(twice[0]),
        f"settings: {own[0]} is set by the sweep itself": bool(own[0]),
        f"trials: {sweep.trials} has no effect with sampler grid, which runs every setting; leave it out": (
            sweep.sampler == "grid" and sweep.trials is not None
        ),
        f"trials: sampler {sweep.sampler} needs the number of settings to try, for example trials: 20": (
            sweep.sampler != "grid" and sweep.trials is None
        ),
        f"objective.kl_penalty: {objective.kl_penalty} and objective.kl_bound {objective.kl_bound}: give a price or a bound": (
            objective.kl_penalty is not None and objective.kl_bound is not None
        ),
        **{
            f"{prefix}{key}: {getattr(holder, key)} has no effect with {why}; leave it out": is_idle
            and derived.is_changed(holder, key)
            for prefix, holder, key, is_idle, why in idle
        },
        "overrides.training.seed: has no effect, the sweep sets it; give `seeds`": "training.seed" in sweep.overrides,
        f"hold: axes.{GROUP_SIZE} changes more than the group size unless something is held; set it to prompts, completions or "
        "tokens": group_size and sweep.hold is None,
        f"hold: {sweep.hold} has no effect without axes.{GROUP_SIZE}; leave it out": not group_size and sweep.hold is not None,
        f"{PROMPTS}: contradicts hold: {sweep.hold}, which decides it; leave one out": (
            sweep.hold is not None and PROMPTS in sweep.changed
        ),
    }


def _axis_faults(sweep: SweepConfig, key: str, axis: Axis) -> dict[str, bool]:
    """Return message -> whether an axis varies nothing, something twice, or what the sweep itself sets."""
    is_range, values = isinstance(axis, Range), () if isinstance(axis, Range) else axis
    strange = [shown(one) for one in values or (axis,) if key == SETTING and one not in list(sweep.settings)] or [""]
    written = [repr(float(value)) if type(value) is int else json.dumps(value, default=str) for value in values]
    twice = [one for one in sweep.overrides if f"{one}.".startswith(f"{key}.")]
    doubles = [value for value in written if written.count(value) > 1] or [""]
    return {
        f"axes.{key}: is set by the sweep itself; seeds are given as `seeds: [0, 1, 2]`": _is_sweeps(key),
        f"axes.{key}: also among overrides ({', '.join(f'{one} {shown(sweep.overrides[one])}' for one in twice)}); give it "
        "once": bool(twice),
        f"axes.{key}: {strange[0]} is not among settings": bool(strange[0]),
        f"axes.{key}: also in settings; give it once": any(key in of_setting for of_setting in sweep.settings.values()),
        f"axes.{key}: a range needs sampler random or tpe, here it is grid; list its values": (
            is_range and sweep.sampler == "grid"
        ),
        f"axes.{key}: only one value, {shown(values[:1])}, so nothing varies; put it into overrides": len(values) == 1,
        f"axes.{key}: {doubles[0]} is listed {written.count(doubles[0])} times; list it once": len(doubles) > 1,
    }


def _is_sweeps(key: str) -> bool:
    return key in ("training.seed", "rollout", "training") or key.split(".", maxsplit=1)[0] == "tracking"


def _primary_faults(sweep: SweepConfig) -> dict[str, bool]:
    """Return message -> whether the arms cannot answer the question so, or not decide what is claimed of it."""
    primary, claim = sweep.primary, sweep.claim
    faults = {
        "claim: is about primary.first and primary.second of a grid; name the question": claim is not None
        and (sweep.sampler != "grid" or primary is None or primary.levels is None),
        f"claim.effect: {claim and claim.effect} is within claim.margin {claim and claim.margin}, where no difference matters; "
        "give 0 or a larger one": claim is not None and 0 < abs(claim.effect) < claim.margin,
    }
    if primary is None:
        return faults
    axis, asked = sweep.axes.get(primary.knob), {} if primary.levels is None else primary.model_dump(exclude={"knob"})
    values = axis if isinstance(axis, tuple) else ()
    unknown = [f"primary.{name}: {shown(value)}" for name, value in asked.items() if value not in values] or [""]
    return faults | {
        f"primary.knob: {primary.knob} is not swept; name one of {', '.join(sweep.axes)}": axis is None,
        f"primary.first: {primary.knob} is a range, whose values are not known; name the knob alone": (
            isinstance(axis, Range) and bool(asked)
        ),
        f"{unknown[0]} is not among the values of axes.{primary.knob}: {', '.join(map(shown, values))}": bool(unknown[0]),
    }


def _check_arms(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse a sweep in which an axis has no effect, or not alone its own, or whose objective some arm does not measure."""
    names = defaultdict[str, list[str]](list)
    for values, config in zip(grid(sweep), configs, strict=True):
        names[config.model_dump_json()].append(arm_name(values))
    same = next((arms for arms in names.values() if len(arms) > 1), [])
    idle = sum(derived.is_single_update(config) and derived.is_always_synced(config) for config in configs)
    moved, objective = sum(config.reference.sync_when is not None for config in configs), sweep.objective
    wrong, example = "is no such metric; METRICS.md lists them, for example", "eval/heldout/pass_at_1 or reward/mean"
    metric, kl_metric, found = objective.metric, objective.kl_metric, find_metric(objective.metric)
    why = "follows from the configuration alone" if metric.startswith(SCHEDULED) else ""
    why = why if found is None or found.deterministic else "depends on the machine and is another in every repetition"
    _refuse_first(
        {
            f"axes.{BETA}: in {idle} of {len(configs)} settings the KL is always 0 (reference.sync_steps and mixup_alpha 1, "
            "one update a rollout), so every β is the same there; sync more rarely": BETA in sweep.axes and idle > 0,
            f"axes.{SYNC}: in {moved} of {len(configs)} settings reference.sync_when synchronises the reference as well, so "
            "the levels are not when it moves (null is not never); leave one of them out": SYNC in sweep.axes and moved > 0,
            f"settings: {first_few(same)} are the same configuration; leave one out": bool(same),
            f"objective.metric: {metric!r} {wrong} {example}": find_metric(metric) is None,
            f"objective.kl_metric: {kl_metric!r} {wrong} kl/init/seq": not (
                find_metric(kl_metric) is not None and kl_metric.startswith("kl/")
            ),
            f"objective.metric: {metric} {why}, so it makes no setting better; give, for example, {example}": bool(why),
        }
    )
    faults = Counter[str]()
    for config in configs:
        _refuse_first(_unmeasured(sweep, config))
        lacking = {key: _missing_at_end(sweep, config, metric) for key, metric in _deciding(sweep).items()}
        faults.update([f"{key}: {why}" for key, why in lacking.items() if why] + _idle_budget(sweep, config))
    if faults:
        raise ConfigError(listed(_counted_arms(faults, configs)))


def _unmeasured(sweep: SweepConfig, config: RunConfig) -> dict[str, bool]:
    """Return message -> whether an arm's configuration leaves the objective unmeasured."""
    objective, metric, kl_metric = sweep.objective, sweep.objective.metric, sweep.objective.kl_metric
    samples, k = config.evaluation.samples, list(config.evaluation.k)
    is_sampled = bool(samples) and metric.rpartition("_")[2] in map(str, k)
    is_probed = any(name.startswith("kl/probe/") for name in (metric, kl_metric))
    return {
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
            derived.is_exact(kl_metric) and derived.exact_every(config) is None
        ),
    }


def _warnings(sweep: SweepConfig, configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield what the report will lack, and figures of the objective in which equal policies differ as an axis changes them."""
    probed = [config for config in configs if measured_steps(config, EXACT_DRIFT)[2]]
    if EXACT_DRIFT not in _deciding(sweep).values():
        whys = (_missing_at_end(sweep, config, EXACT_DRIFT) for config in probed)
        yield from _counted_arms(Counter(f"the report will lack the exact drift: {why}" for why in whys if why), configs)
    objective = sweep.objective
    prices = [objective.kl_metric] if objective.kl_penalty or objective.kl_bound else []
    for figure in dict.fromkeys((objective.metric, *prices)):
        if keys := _contained(sweep, figure, has_verifier=configs[0].evaluation.verifier is not None):
            yield (
                f"objective: {figure} contains {', '.join(keys)}, which differ between settings: equal policies differ in it; "
                "maximise a figure that means the same in every setting, such as eval/heldout/greedy_accuracy with one verifier"
            )


def _counted_arms(texts: Mapping[str, int], arms: Sequence[RunConfig]) -> tuple[str, ...]:
    return tuple(f"{count} of {len(arms)} settings: {text}" for text, count in texts.items())


def _contained(sweep: SweepConfig, figure: str, *, has_verifier: bool) -> list[str]:
    """Return the swept keys that enter a figure directly; a single reward function, and an evaluation, know no weights."""
    area, _, name = figure.partition("/")
    parts = (*CONTENTS.get(area, ()), *(("rewards.0.fn", "rewards.0.args") if area == "eval" and not has_verifier else ()))
    return [
        key
        for key in sweep.changed
        if any(f"{part}.".startswith(f"{key}.") or f"{key}.".startswith(f"{part}.") for part in parts)
        and not (key.endswith(".weight") and area == "reward" and "/" in name)
    ]


def _deciding(sweep: SweepConfig) -> dict[str, str]:
    """Return the keys that decide which arm is best -> the metric of steps that each rests on."""
    objective = sweep.objective
    used = {} if objective.is_of_evaluation else {"objective.metric": objective.metric}
    used |= {} if objective.kl_bound is None else {"objective.kl_bound": objective.kl_metric}
    return used | ({} if objective.kl_penalty is None else {"objective.kl_penalty": objective.kl_metric})


def measured_steps(config: RunConfig, key: str) -> tuple[str, int | None, list[int]]:
    """Return the key that says how often a run measures a metric of steps, its value, and the steps at which it does."""
    metric, reference, steps = find_metric(key), config.reference, range(1, config.training.steps + 1)
    when: str = "distance" if key == "ref/param_distance" else "step" if metric is None else metric.when
    name, every = {
        "distance": ("reference.distance_every", reference.distance_every),
        "probe": ("probe.every_steps", config.probe.every_steps),
        "sync": ("reference.sync_steps", reference.sync_steps),
        "exact": ("reference.kl_full_every", derived.exact_every(config)),
        "noise": ("training.noise_scale_every", config.training.noise_scale_every),
        "multi_update": ("loss.epochs_per_rollout", None if derived.is_single_update(config) else 1),
    }.get(when, ("reference.kl_init_every", 1))
    measured = [step for step in steps if every is not None and step % every == 0]
    if key.startswith("kl/init/"):  # until the first sync the initial policy is the reference
        first = 0 if reference.sync_when is not None else reference.sync_steps or len(steps)
        full = reference.kl_full_every if derived.is_exact(key) else 1
        later = [step for step in measured if full is not None and step % full == 0 and step % reference.kl_init_every == 0]
        measured = [step for step in measured if step <= first] + [step for step in later if step > first]
        every = every if derived.is_exact(key) else reference.kl_init_every
    return name, every, measured


def _missing_at_end(sweep: SweepConfig, config: RunConfig, key: str) -> str | None:
    """Return why the last steps of a run hold no figure of a metric, and what to change; None where they hold one."""
    last_steps, steps, (name, every, measured) = sweep.objective.last_steps, config.training.steps, measured_steps(config, key)
    if not measured:
        return f"{key} is never measured in the {steps} steps (training.steps) of a run"
    fault = (
        f"{key} is measured for the last time at step {measured[-1]} ({name} {every}), before the last {last_steps} of {steps} "
        f"steps (objective.last_steps, training.steps), so no run has it at its end; let {name} divide {steps}, or set "
        f"objective.last_steps to {steps - measured[-1] + 1} or more"
    )
    return fault if measured[-1] <= max(0, steps - last_steps) else None


def _idle_budget(sweep: SweepConfig, config: RunConfig) -> list[str]:
    """Return that the budget of the drift prunes nothing, where the drift is measured nowhere that it looks."""
    pruner, metric = sweep.pruner, sweep.objective.kl_metric
    looks, measured = pruner.budget_rungs(config.training.steps), measured_steps(config, metric)[2]
    sees = any(look - pruner.window < step <= look for look in looks for step in measured)
    if pruner.kl_budget is None or not looks or sees:
        return []
    return [
        f"pruner.kl_budget: {pruner.kl_budget:g} can never prune: {metric} is not measured in the {pruner.window} steps "
        f"(pruner.window) up to any step at which it is compared (pruner.first_step {pruner.first_step}, every "
        f"{pruner.every_steps}); compare at steps that measure it, or set a larger pruner.window"
    ]
