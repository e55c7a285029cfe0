"""Which runs of a sweep have their beginning in common, so that one runs it and the others are forked from it.

Two settings that differ in the reference's schedule alone are the same until the first sync of either; settings of a key that
is to change at a step only (`from_step`) are the same up to there. Each run is forked from the one with which it has the most
steps in common: of all ways to do so, one that runs the fewest steps again (a maximum spanning tree, Prim 1957).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, validate_config
from grpo_core.config.spelling import SETTING
from grpo_core.errors import shown
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.schema import SweepConfig

SYNC, MIXUP, KEEP = "reference.sync_steps", "reference.mixup_alpha", "training.keep_at"
BY_DRIFT = "reference.sync_when"
Fork = tuple[int, int]
"""(arm from which a run is forked, step)."""


def forks(sweep: SweepConfig, base: Mapping[str, Any], arms: Mapping[int, Arm]) -> dict[int, Fork]:
    """Return from which arm's run, of the same seed, and after which step each arm's run is forked; the others run whole.

    >>> sweep = SweepConfig(base="b", axes={SYNC: [None, 20, 10]}, runs={"share": True})
    >>> forks(sweep, {}, {number: Arm(number=number, values={SYNC: sync}) for number, sync in enumerate((10, None, 20))})
    {1: (0, 9), 2: (1, 19)}
    """
    if not (sweep.runs.share or sweep.from_step):
        return {}
    config = validate_config(base)
    left = sorted(arms, key=lambda number: (not _is_control(sweep, config, arms[number]), number))
    found: dict[int, Fork] = {}
    nearest: dict[int, tuple[int, int]] = dict.fromkeys(left, (0, -1))  # (steps in common, with which arm)
    while left:
        taken = max(left, key=lambda number: nearest[number][0])
        left.remove(taken)
        if (steps := nearest[taken][0]) > 0:
            found[taken] = nearest[taken][1], steps
        for number in left:
            steps = _in_common(sweep, config, arms[taken], arms[number])
            if steps > nearest[number][0]:
                nearest[number] = steps, taken
    return found


def fork_faults(sweep: SweepConfig, base: Mapping[str, Any]) -> dict[str, bool]:
    """Return message -> whether the runs of a sweep cannot be forked as it says."""
    late, on_this_machine = ", ".join(sweep.from_step), sweep.runs.where == "local"
    is_plain = sweep.sampler == "grid" and not sweep.pruner.is_on and on_this_machine
    faults = {
        "runs.share: is for grids on this machine, without pruner and fork; leave it out": sweep.runs.share
        and not (is_plain and sweep.fork is None),
        f"from_step.{late}: is for grids on this machine, without pruner and fork": bool(late)
        and not (is_plain and sweep.fork is None),
        f"from_step.{late}: must be among axes": not set(sweep.from_step) <= set(sweep.axes) - {SETTING},
        "fork: is for runs on this machine": sweep.fork is not None and not on_this_machine,
    }
    if any(faults.values()) or not late:
        return faults
    config = validate_config(base)
    for key, step in sweep.from_step.items():
        before, axis, steps = value_of(config, key), sweep.axes[key], config.training.steps
        is_there = isinstance(axis, tuple) and before in axis
        faults[f"from_step.{key}: {shown(before)}, which all runs have until then, must be among axes.{key}"] = not is_there
        faults[f"from_step.{key}: {step} must be less than training.steps {steps}"] = step >= steps
    return faults


def _is_control(sweep: SweepConfig, config: RunConfig, arm: Arm) -> bool:
    """Return whether an arm has the base's values of the keys that change late."""
    return all(arm.values[key] == value_of(config, key) for key in sweep.from_step)


def value_of(config: RunConfig, key: str) -> Any:
    """Return the value of a key of a configuration, as a file has it."""
    value: Any = config.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return value


def _in_common(sweep: SweepConfig, config: RunConfig, one: Arm, other: Arm) -> int:
    """Return how many steps two arms' runs of a seed have in common, one of which is forked from the other."""
    syncs = [steps for arm in (one, other) if (steps := arm.values.get(SYNC, config.reference.sync_steps)) is not None]
    is_by_drift = config.reference.sync_when is not None or any(key.startswith(BY_DRIFT) for key in one.values)
    before_sync = min(syncs, default=config.training.steps) - 1 if sweep.runs.share and not is_by_drift else 0
    different = [key for key in one.values if one.values[key] != other.values[key]]
    ends = [sweep.from_step.get(key, before_sync if key in (SYNC, MIXUP) else 0) for key in different]
    return max(0, min([*ends, config.training.steps - 1]))


def kept_steps(found: Mapping[int, Fork], arm: int) -> list[int]:
    """Return the steps after which other arms' runs are forked from an arm's."""
    return sorted({step for parent, step in found.values() if parent == arm})


def sharing_note(found: Mapping[int, Fork], steps: int, arms: int, seeds: int) -> list[str]:
    """Return what was shared and saved, a sentence, or nothing."""
    saved, whole = sum(step for _, step in found.values()) * seeds, steps * arms * seeds
    what = f"{len(found) * seeds} of {arms * seeds} runs were forked from another one where they begin to differ"
    return [f"{what}: {saved} of {whole} steps ({saved / whole:.0%}) were not run again"] if found else []


def parent_of(sweep: SweepConfig) -> tuple[Path, int] | None:
    """Return the run that every run of a sweep is forked from, and after which step."""
    return None if sweep.fork is None else (Path(sweep.fork.run), sweep.fork.at)
