"""Which runs of a sweep have their beginning in common, so that one runs it and the others are forked from it.

Two settings that differ in the reference's schedule alone are the same until the first sync of either; settings of a key that
is to change at a step only (`from_step`) are the same up to there. Each run is forked from the one with which it has the most
steps in common: of all ways to do so, one that runs the fewest steps again (a maximum spanning tree, Prim 1957).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.config.origin import flatten
from grpo_core.config.spelling import SETTING
from grpo_core.errors import shown
from grpo_core.run.forking import KEPT
from grpo_core.sweep.arms import Arm, Values, arm_config, arm_overrides
from grpo_core.sweep.schema import SweepConfig

SYNC, MIXUP = "reference.sync_steps", "reference.mixup_alpha"


def forks(sweep: SweepConfig, base: Mapping[str, Any], arms: Mapping[int, Arm]) -> dict[int, tuple[int, int]]:
    """Return {arm: (arm of the run, of the same seed, from which its run is forked, step)}; the others run whole.

    >>> sweep = SweepConfig(base="b", axes={SYNC: [None, 20, 10]}, runs={"share": True})
    >>> forks(sweep, {}, {number: Arm(number=number, values={SYNC: sync}) for number, sync in enumerate((10, None, 20))})
    {1: (0, 9), 2: (1, 19)}
    """
    if not (sweep.runs.share or sweep.from_step):
        return {}
    own = {number: arm_overrides(sweep, base, arm.values) for number, arm in arms.items()}
    configs = {number: arm_config(sweep, base, arm.values) for number, arm in arms.items()}
    # First those with the base's values of the keys that change late.
    left = sorted(arms, key=lambda one: (not _is_base(base, {key: arms[one].values[key] for key in sweep.from_step}), one))
    found: dict[int, tuple[int, int]] = {}
    nearest: dict[int, tuple[int, int]] = dict.fromkeys(left, (0, -1))  # (steps in common, with which arm)
    while left:
        taken = max(left, key=lambda number: nearest[number][0])
        left.remove(taken)
        if (steps := nearest[taken][0]) > 0:
            found[taken] = nearest[taken][1], steps
        for number in left:
            steps = _in_common(sweep, (own[taken], own[number]), (configs[taken], configs[number]))
            if steps > nearest[number][0]:
                nearest[number] = steps, taken
    return found


def fork_faults(sweep: SweepConfig, base: Mapping[str, Any]) -> dict[str, bool]:
    """Return message -> whether the runs of a sweep cannot be forked as it says."""
    late, on_this_machine = ", ".join(sweep.from_step), sweep.runs.where == "local"
    is_plain = sweep.sampler == "grid" and not sweep.pruner.is_on and on_this_machine
    changed = [*sweep.from_step, *((*sweep.changed, *sweep.overrides) if sweep.fork else ())]
    kept = [key for key in changed if f"{key}.".startswith(KEPT)] or [""]
    faults = {
        "runs.share: is for grids on this machine, without pruner and fork; leave it out": sweep.runs.share
        and not (is_plain and sweep.fork is None),
        f"from_step.{late}: is for grids on this machine, without pruner and fork": bool(late)
        and not (is_plain and sweep.fork is None),
        f"from_step.{late}: must be among axes": not set(sweep.from_step) <= set(sweep.axes) - {SETTING},
        f"from_step.{late}: must change after the same step": len(set(sweep.from_step.values())) > 1,
        f"from_step.{late}: is for runs of one length; leave training.steps out of axes and settings": bool(late)
        and "training.steps" in sweep.changed,
        "fork: is for runs on this machine": sweep.fork is not None and not on_this_machine,
        f"{kept[0]}: cannot change; a fork keeps the model and the prompts of its parent": bool(kept[0]),
    }
    if any(faults.values()) or not late:
        return faults
    config = validate_config(base)
    for key, step in sweep.from_step.items():
        axis, before = sweep.axes[key], shown(flatten(config).get(key))
        faults[f"from_step.{key}: {before}, which all runs have until then, must be among axes.{key}"] = not (
            isinstance(axis, tuple) and any(_is_base(base, {key: value}) for value in axis)
        )
        faults[f"from_step.{key}: {step} must be less than training.steps {config.training.steps}"] = (
            step >= config.training.steps
        )
    return faults


def _is_base(base: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return validate_config(apply_overrides(base, values)) == validate_config(base)


def _in_common(sweep: SweepConfig, own: tuple[Values, Values], configs: tuple[RunConfig, RunConfig]) -> int:
    """Return how many steps two arms' runs of a seed have in common, one of which is forked from the other.

    Args:
        sweep: the sweep.
        own: what each arm changes of the base.
        configs: of each arm.
    """
    least = min(config.training.steps for config in configs)
    syncs = [config.reference.sync_steps or least for config in configs]
    is_by_drift = any(config.reference.sync_when is not None for config in configs)
    before_sync = min(syncs) - 1 if sweep.runs.share and not is_by_drift else 0
    different = [key for key in {**own[0], **own[1]} if own[0].get(key, own) != own[1].get(key, own)]
    ends = [sweep.from_step.get(key, before_sync if key in (SYNC, MIXUP) else 0) for key in different]
    return max(0, min([*ends, least - 1]))


def sharing_note(begun: Sequence[int], runs: int, steps: int) -> list[str]:
    """Return how many of so many runs are forks, and how many of their steps those that have `begun` there do not run again."""
    what = f"{len(begun)} of {runs} runs are forked from another one where they begin to differ"
    whole = steps * runs
    return [f"{what}: {sum(begun)} of {whole} steps ({sum(begun) / whole:.0%}) are not run again"] if begun else []
