"""A sweep in lines, before it runs: its settings, what their runs have in common, and its warnings."""

from collections.abc import Iterator

from grpo_core.config import derived
from grpo_core.config.spelling import arm_name
from grpo_core.sweep.arms import Arm, grid
from grpo_core.sweep.plan import Plan
from grpo_core.sweep.sharing import forks, sharing_note

SHOWN_ARMS = 40
"""Settings that are listed."""


def describe_plan(plan: Plan) -> Iterator[str]:
    """Yield a line each for the sweep, its arms (of a search: the ends of its ranges) and its warnings."""
    sweep = plan.sweep
    seeds = f"{len(sweep.seeds)} seeds ({', '.join(map(str, sweep.seeds))})"
    yield f"{plan.num_arms} settings x {seeds} = {plan.num_runs} runs of {plan.preset}"
    yield f"objective: {sweep.objective.metric}; sampler: {sweep.sampler}" + (f"; hold: {sweep.hold}" if sweep.hold else "")
    for number, (values, config) in enumerate(zip(grid(sweep), plan.configs[:SHOWN_ARMS], strict=False)):
        factor, rollout = derived.advantage_rms_factor(config), config.rollout
        spread = f"advantage_rms_factor {factor:.4f}; " if factor else ""
        yield (
            f"  {number:3d}  {arm_name(values)}: {rollout.num_prompts_per_step} x {rollout.group_size} completions a step; "
            f"{spread}effective beta {derived.weight_of_kl(config)}"
        )
    if len(plan.configs) > SHOWN_ARMS:
        yield f"  ... and {len(plan.configs) - SHOWN_ARMS} more"
    arms = {number: Arm(number=number, values=values) for number, values in enumerate(grid(sweep))}
    steps, found = plan.configs[0].training.steps, forks(sweep, plan.base, arms if sweep.sampler == "grid" else {})
    yield from sharing_note([step for _, step in found.values()] * len(sweep.seeds), plan.num_runs, steps)
    if sweep.fork is not None:
        yield f"every run is forked from {sweep.fork.run} after step {sweep.fork.at}"
    yield from (f"warning: {note}" for note in plan.notes)
    yield f"{len(plan.notes)} warning(s); the sweep is valid"
