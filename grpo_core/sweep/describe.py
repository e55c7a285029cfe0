"""A plan in words, before anything is run: its arms, what each holds, and what is doubtful."""

from collections.abc import Iterator

from grpo_core.config.derived import advantage_rms_factor, weight_of_kl
from grpo_core.sweep.arms import Arm, arm_config
from grpo_core.sweep.axes import grid
from grpo_core.sweep.plan import Plan

SHOWN_ARMS = 40


def describe_plan(plan: Plan) -> Iterator[str]:
    """Yield a line each for the sweep, its arms (of a search: the ends of its ranges) and its warnings."""
    sweep = plan.sweep
    seeds = ", ".join(map(str, sweep.seeds))
    yield f"{plan.num_arms} arms x {len(sweep.seeds)} seeds ({seeds}) = {plan.num_runs} runs of {plan.preset}"
    yield f"objective: {sweep.objective.metric}; sampler: {sweep.sampler}" + (f"; hold: {sweep.hold}" if sweep.hold else "")
    arms = [Arm(number=number, values=values) for number, values in enumerate(grid(sweep))]
    for arm in arms[:SHOWN_ARMS]:
        config = arm_config(sweep, plan.base, arm.values)
        factor = advantage_rms_factor(config)
        spread = f"advantage_rms_factor {factor:.4f}; " if factor else ""
        rollout = config.rollout
        shape = f"{rollout.num_prompts_per_step} x {rollout.group_size} completions a step"
        yield f"  {arm.number:3d}  {arm.name}: {shape}; {spread}effective beta {weight_of_kl(config)}"
    if len(arms) > SHOWN_ARMS:
        yield f"  ... and {len(arms) - SHOWN_ARMS} more"
    yield from (f"warning: {note}" for note in plan.notes)
    yield f"{len(plan.notes)} warning(s); the sweep is valid"
