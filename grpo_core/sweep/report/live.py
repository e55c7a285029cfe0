"""The page of a sweep while it runs: each setting and seed with its state and its reward so far."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from statistics import fmean
from typing import Any

from grpo_core.machine.disk import durable_folder, write_whole
from grpo_core.metrics import LAST_STEPS
from grpo_core.pages import render
from grpo_core.sweep.arms import Arm, Key, original_of, total_runs
from grpo_core.sweep.display import plain
from grpo_core.sweep.folder import StoredSweep

RUNNING = "running"


def write_live(
    stored: StoredSweep,
    arms: Mapping[int, Arm],
    states: Mapping[Key, str],
    rewards: Mapping[Key, Sequence[float]],
    *,
    is_running: bool = True,
) -> None:
    """Write the page where the report will be; it loads itself again every 10 s while the sweep runs.

    Args:
        stored: the sweep.
        arms: chosen so far.
        states: of the runs that were begun: `running`, or how they have ended.
        rewards: of each of their steps.
        is_running: False = the sweep has been interrupted.
    """
    sweep, recent = stored.plan.sweep, _recent(rewards)
    best = max(recent, key=lambda key: recent[key], default=None)

    own = {number: arm for number, arm in arms.items() if original_of(arm, arms) == number}  # not those suggested again

    def cell(key: Key) -> dict[str, Any]:
        figures = {"steps": len(rewards.get(key, ())), "reward": plain(recent[key]) if key in recent else ""}
        page = f"../runs/{stored.dir.run_dir(*key).path.name}/index.html"
        return figures | {"state": states.get(key, "waiting"), "is_best": key == best, "page": page}

    page = render(
        "grpo_core.sweep.report",
        "live.html.j2",
        f"Sweep {stored.name}",
        [],
        sweep=sweep,
        rows={arm.name: [cell((number, seed)) for seed in sweep.seeds] for number, arm in own.items()},
        ended=sum(state != RUNNING for state in states.values()),
        total=total_runs(stored.plan.num_arms, sweep, arms),
        steps=max(config.training.steps for config in stored.plan.configs),
        best=None if best is None else f"{arms[best[0]].run_name(best[1])}: reward {plain(recent[best])}",
        window=LAST_STEPS,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        is_running=is_running,
    )
    write_whole(durable_folder(stored.dir.report) / stored.dir.page.name, page)


def _recent(rewards: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    """Return the mean reward of each run's last steps, of those that have one."""
    known = {key: [*filter(isfinite, steps[-LAST_STEPS:])] for key, steps in rewards.items()}
    return {key: fmean(last) for key, last in known.items() if last}
