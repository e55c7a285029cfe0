"""The page of a sweep while it runs: each setting and seed with its state and its reward so far."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from statistics import fmean

from grpo_core.machine.disk import write_whole
from grpo_core.metrics import LAST_STEPS
from grpo_core.pages import render
from grpo_core.sweep.arms import Arm, Key, Outcome, total_runs
from grpo_core.sweep.display import plain, setting_name
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.results import SweepRun

REWARD = "reward/mean"


def write_live(
    stored: StoredSweep,
    arms: Mapping[int, Arm],
    outcomes: Mapping[Key, Outcome],
    under_way: Collection[Key],
    read: Callable[[Key], SweepRun],
    *,
    is_running: bool = True,
) -> None:
    """Write the page where the report will be; it loads itself again every 10 s while the sweep runs.

    Args:
        stored: the sweep.
        arms: chosen so far.
        outcomes: how runs have ended.
        under_way: runs that were begun and have not ended.
        read: returns a run as its folder holds it.
        is_running: False = the sweep has been interrupted.

    Raises:
        OSError: it cannot be written.
    """
    sweep = stored.plan.sweep
    rewards = {key: [*read(key).curve(REWARD).values()] for key in {*outcomes, *under_way} if key[0] in arms}
    recent = {key: fmean(steps[-LAST_STEPS:]) for key, steps in rewards.items() if steps}
    best = max(recent, key=lambda key: recent[key], default=None)
    rows = {
        setting_name(arm.values): {
            seed: {
                "state": outcomes[key].status if key in outcomes else "running" if key in under_way else "waiting",
                "steps": len(rewards.get(key, ())),
                "reward": plain(recent[key]) if key in recent else "",
                "is_best": key == best,
                "page": f"../runs/{stored.dir.run_dir(*key).path.name}/index.html",
            }
            for seed in sweep.seeds
            if (key := (number, seed))
        }
        for number, arm in arms.items()
    }
    page = render(
        "grpo_core.sweep.report",
        "live.html.j2",
        f"Sweep {stored.name}",
        [],
        sweep=sweep,
        rows=rows,
        ended=len(outcomes),
        total=total_runs(stored.plan.num_arms, sweep, arms),
        steps=max(config.training.steps for config in stored.plan.configs),
        best=None if best is None else f"{setting_name(arms[best[0]].values)}, seed {best[1]}: reward {plain(recent[best])}",
        window=LAST_STEPS,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        is_running=is_running,
    )
    stored.dir.report.mkdir(exist_ok=True)
    write_whole(stored.dir.page, page)
