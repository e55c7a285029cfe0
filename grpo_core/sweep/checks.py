"""What makes no sense in a sweep: its keys by themselves, what its arms say together, and what no run will measure."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from grpo_core.config import RunConfig
from grpo_core.config.derived import exact_every, has_sync_rule, is_always_synced, is_changed, is_exact, is_single_update
from grpo_core.config.section import Section
from grpo_core.errors import ConfigError, listed, shown
from grpo_core.metrics import find_metric
from grpo_core.sweep.arms import GROUP_SIZE, PROMPTS
from grpo_core.sweep.schema import Axis, Range, SweepConfig

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


def check_keys(sweep: SweepConfig) -> None:
    """Refuse keys that contradict each other, and keys that have no effect beside the others.

    Raises:
        ConfigError: names the key and the values.
    """
    for key, axis in sweep.axes.items():
        _check_axis(sweep, key, axis)
    _check_primary(sweep)
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


def _check_axis(sweep: SweepConfig, key: str, axis: Axis) -> None:
    """Refuse an axis that varies nothing, varies something twice, or varies what the sweep itself sets."""
    is_range, values = isinstance(axis, Range), () if isinstance(axis, Range) else axis
    written = [repr(float(value)) if type(value) is int else json.dumps(value, default=str) for value in values]
    doubles = [value for value in written if written.count(value) > 1] or [""]
    _refuse_first(
        {
            f"axes.{key}: is set by the sweep itself; seeds are given as `seeds: [0, 1, 2]`": (
                key in ("training.seed", "rollout", "training") or key.split(".", maxsplit=1)[0] == "tracking"
            ),
            f"axes.{key}: also among overrides ({shown(sweep.overrides.get(key))}); give it once": key in sweep.overrides,
            f"axes.{key}: a range needs sampler random or tpe, here it is grid; list its values": (
                is_range and sweep.sampler == "grid"
            ),
            f"axes.{key}: only one value, {shown(values[:1])}, so nothing varies; put it into overrides": len(values) == 1,
            f"axes.{key}: {doubles[0]} is listed {written.count(doubles[0])} times; list it once": len(doubles) > 1,
        }
    )


def _check_primary(sweep: SweepConfig) -> None:
    """Refuse a question that the arms cannot answer."""
    primary = sweep.primary
    if primary is None:
        return
    axis, asked = (
        sweep.axes.get(primary.knob),
        {} if primary.levels is None else {"first": primary.first, "second": primary.second},
    )
    values = axis if isinstance(axis, tuple) else ()
    unknown = [f"primary.{name}: {shown(value)}" for name, value in asked.items() if value not in values] or [""]
    _refuse_first(
        {
            f"primary.knob: {primary.knob} is not swept; name one of {', '.join(sweep.axes)}": axis is None,
            f"primary.first: {primary.knob} is a range, whose values are not known; name the knob alone": (
                isinstance(axis, Range) and bool(asked)
            ),
            f"{unknown[0]} is not among the values of axes.{primary.knob}: {', '.join(map(shown, values))}": bool(unknown[0]),
        }
    )


def check_arms(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse a sweep in which an axis has no effect, or not alone its own, or whose objective some arm does not measure.

    Raises:
        ConfigError: names the key, and an example.
    """
    idle = sum(is_single_update(config) and is_always_synced(config) for config in configs)
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
    _check_objective(sweep, configs)
    if unmeasured := unmeasured_by(sweep, configs):
        raise ConfigError(listed(unmeasured))


def _check_objective(sweep: SweepConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse an objective that some arm does not measure, or that makes no arm better."""
    objective, metric, kl_metric = sweep.objective, sweep.objective.metric, sweep.objective.kl_metric
    examples = (("metric", metric, "", "eval/heldout/pass_at_1 or reward/mean"), ("kl_metric", kl_metric, "kl/", "kl/init/seq"))
    for key, name, start, example in examples:
        if find_metric(name) is None or not name.startswith(start):
            raise ConfigError(f"objective.{key}: {name!r} is no such metric; METRICS.md lists them, for example {example}")
    found = find_metric(metric)
    why = "follows from the configuration alone" if metric.startswith(SCHEDULED) else ""
    why = why if found is None or found.deterministic else "depends on the machine and is another in every repetition"
    if why:
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


def _refuse_first(faults: Mapping[str, bool]) -> None:
    """Refuse with the first message that holds."""
    for message, holds in faults.items():
        if holds:
            raise ConfigError(message)


def unmeasured_by(sweep: SweepConfig, configs: Sequence[RunConfig]) -> tuple[str, ...]:
    """Return which figures that decide something the arms will not measure at their end, or where the pruner looks."""
    faults = Counter[str]()
    for config in configs:
        lacking = {key: _missing_at_end(sweep, config, metric) for key, metric in _deciding(sweep).items()}
        faults.update(f"{key}: {why}" for key, why in lacking.items() if why)
        faults.update(_idle_budget(sweep, config))
    return counted_arms(faults, configs)


def warnings(sweep: SweepConfig, configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield what the report will lack, and figures of the objective in which equal policies differ as an axis changes them."""
    probed = [config for config in configs if measured_steps(config, EXACT_DRIFT)[2]]
    if EXACT_DRIFT not in _deciding(sweep).values():
        whys = (_missing_at_end(sweep, config, EXACT_DRIFT) for config in probed)
        yield from counted_arms(Counter(f"the report will lack the exact drift: {why}" for why in whys if why), configs)
    objective = sweep.objective
    prices = [objective.kl_metric] if objective.kl_penalty or objective.kl_bound else []
    for figure in dict.fromkeys((objective.metric, *prices)):
        if keys := _contained(sweep, figure, has_verifier=configs[0].evaluation.verifier is not None):
            yield (
                f"objective: {figure} contains {', '.join(keys)}, which the axes change: equal policies differ in it; maximise "
                "a figure that means the same in every arm, such as eval/heldout/greedy_accuracy with one verifier"
            )


def counted_arms(texts: Mapping[str, int], arms: Sequence[RunConfig]) -> tuple[str, ...]:
    """Return texts, each with the number of arms that it is about."""
    return tuple(f"{count} of {len(arms)} arms: {text}" for text, count in texts.items())


def _contained(sweep: SweepConfig, figure: str, *, has_verifier: bool) -> list[str]:
    """Return the swept keys that enter a figure directly."""
    area, _, name = figure.partition("/")
    parts = (*CONTENTS.get(area, ()), *(("rewards.0.fn", "rewards.0.args") if area == "eval" and not has_verifier else ()))
    keys = [
        key for key in sweep.axes if any(f"{part}.".startswith(f"{key}.") or f"{key}.".startswith(f"{part}.") for part in parts)
    ]
    # A single reward function, and an evaluation, know no weights.
    return [key for key in keys if not (key.endswith(".weight") and area == "reward" and "/" in name)]


def _deciding(sweep: SweepConfig) -> dict[str, str]:
    """Return the keys that decide which arm is best -> the metric of steps that each rests on."""
    objective = sweep.objective
    used = {} if objective.is_of_evaluation else {"objective.metric": objective.metric}
    keys = {"objective.kl_bound": objective.kl_bound, "objective.kl_penalty": objective.kl_penalty}
    return used | {key: objective.kl_metric for key, value in keys.items() if value is not None}


def measured_steps(config: RunConfig, key: str) -> tuple[str, int | None, list[int]]:
    """Return the key that says how often a run measures a metric of steps, its value, and the steps at which it does."""
    metric, reference, steps = find_metric(key), config.reference, range(1, config.training.steps + 1)
    when = "probe" if metric is not None and metric.is_probe else "step" if metric is None else metric.when
    name, every = {
        "probe": ("probe.every_steps", config.probe.every_steps),
        "sync": ("reference.sync_steps", reference.sync_steps),
        "exact": ("reference.kl_full_every", exact_every(config)),
        "multi_update": ("loss.epochs_per_rollout", None if is_single_update(config) else 1),
    }.get(when, ("reference.kl_init_every", 1))
    if key == "ref/param_distance":
        name, every = "reference.distance_every", reference.distance_every
    measured = [step for step in steps if every is not None and step % every == 0]
    if key.startswith("kl/init/"):  # until the first sync the initial policy is the reference
        first = 0 if has_sync_rule(config) else reference.sync_steps or len(steps)
        full = reference.kl_full_every if is_exact(key) else 1
        later = [step for step in measured if full is not None and step % full == 0 and step % reference.kl_init_every == 0]
        measured = [step for step in measured if step <= first] + [step for step in later if step > first]
        every = every if is_exact(key) else reference.kl_init_every
    return name, every, measured


def _missing_at_end(sweep: SweepConfig, config: RunConfig, key: str) -> str | None:
    """Return why the last steps of a run hold no figure of a metric, and what to change; None where they hold one."""
    last_steps, steps, (name, every, measured) = sweep.objective.last_steps, config.training.steps, measured_steps(config, key)
    if not measured:
        return f"{key} is never measured in the {steps} steps (training.steps) of a run"
    if measured[-1] > max(0, steps - last_steps):
        return None
    return (
        f"{key} is measured for the last time at step {measured[-1]} ({name} {every}), before the last {last_steps} of {steps} "
        f"steps (objective.last_steps, training.steps), so no run has it at its end; let {name} divide {steps}, or set "
        f"objective.last_steps to {steps - measured[-1] + 1} or more"
    )


def _idle_budget(sweep: SweepConfig, config: RunConfig) -> list[str]:
    pruner, metric = sweep.pruner, sweep.objective.kl_metric
    looks = pruner.budget_rungs(config.training.steps) if pruner.kl_budget is not None else range(0)
    measured = measured_steps(config, metric)[2]
    if not looks or any(look - pruner.window < step <= look for look in looks for step in measured):
        return []
    return [
        f"pruner.kl_budget: {pruner.kl_budget:g} can never prune: {metric} is not measured in the {pruner.window} steps "
        f"(pruner.window) up to any step at which it is compared (pruner.first_step {pruner.first_step}, every "
        f"{pruner.every_steps}); compare at steps that measure it, or set a larger pruner.window"
    ]
