"""Sweeps as frames made by hand: what their runs reached, without a folder."""

import html
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas

from grpo_core.sweep.report.files import render_page
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.findings import Findings
from grpo_core.sweep.statistics.runs import SweepRuns

BETA, GROUP, SYNC = KNOBS = ("loss.beta", "rollout.group_size", "reference.sync_steps")
NOTHING = pandas.DataFrame(columns=["arm", "seed", "status", "objective", *KNOBS])
Objective = Callable[[float, int | None, int], float]


def swept(frame: pandas.DataFrame, knobs: Sequence[str] = KNOBS, seeds: Sequence[int] = (0, 1, 2), **keys: Any) -> SweepRuns:
    """Return the runs of a frame as a sweep that asked for some keys."""
    values = {"question": "Which β?", "hold": "completions", "runs": {"concurrency": 2}, **keys}
    config = SweepConfig.model_validate({"base": "b", "axes": {knob: [0] for knob in knobs}, "seeds": tuple(seeds), **values})
    return SweepRuns(name="a <sweep>", config=config, runs=frame, elapsed_seconds=1000.0)


def run(arm: int, seed: int, levels: Sequence[Any], objective: float, knobs: Sequence[str] = KNOBS) -> dict[str, Any]:
    """Return a finished run."""
    figures = {
        "objective": objective,
        "accuracy": objective,
        "reward": objective,
        "kl_ref_seq": 1.0 + arm / 10,
        "kl_init_seq": 2.0 + arm / 10,
        "tokens": 4000,
        "train_seconds": 50.0,
        "wall_seconds": 60.0,
    }
    return {"arm": arm, "seed": seed, "status": "finished", "cause": None} | figures | dict(zip(knobs, levels, strict=False))


def grid(effect: float = 0.0, seeds: Sequence[int] = (0, 1, 2)) -> pandas.DataFrame:
    """Return a full grid of eight arms in which beta 0.5 has an effect."""
    random = np.random.default_rng(1)
    of_seed = random.normal(0, 0.05, len(seeds))
    rows = []
    for arm, levels in enumerate(itertools.product((0.01, 0.5), (4, 8), (10, None))):
        for place, seed in enumerate(seeds):
            rows.append(run(arm, seed, levels, 0.6 + effect * (levels[0] == 0.5) + of_seed[place] + random.normal(0, 0.005)))
    return pandas.DataFrame(rows)


def bounded() -> pandas.DataFrame:
    """Return a grid in which arms 0 to 2 are the better, the further they drift, and arm 0 is best of all."""
    frame = grid().assign(drift=1.0)
    for arm, (more, drift) in enumerate([(0.3, 43.0), (0.2, 30.0), (0.1, 20.0)]):
        frame.loc[frame["arm"] == arm, "objective"] += more
        frame.loc[frame["arm"] == arm, "drift"] = drift
    return frame


BOUND = {"objective": {"kl_bound": 10.0}}


def crossed(beta: float, sync: int | None, seed: int) -> float:
    """Return an objective in which beta 0.1 gains 0.008 with syncs and 0.179 without, a little different in each seed."""
    gain, noise = 0.008 if sync == 5 else 0.179, (0.003, -0.001, 0.002, -0.004)[seed]
    return 0.4 + 0.1 * seed + (gain + noise * (1 if sync == 5 else -0.5) if beta == 0.1 else 0.0)


def two_knobs(objective: Objective, seeds: Sequence[int], syncs: Sequence[int | None] = (5, None), **keys: Any) -> SweepRuns:
    """Return two betas crossed with some sync periods."""
    rows = [
        run(arm, seed, (beta, sync), objective(beta, sync, seed), (BETA, SYNC))
        | {"kl_ref_seq": 1 + arm + 0.1 * seed, "kl_init_seq": 2 + arm + 0.1 * seed}
        for arm, (beta, sync) in enumerate(itertools.product((0.1, 4.0), syncs))
        for seed in seeds
    ]
    return swept(pandas.DataFrame(rows), (BETA, SYNC), seeds, hold=None, **keys)


def by_prompt(seeds: Sequence[int], primary: dict[str, Any] | None) -> SweepRuns:
    """Return a sweep with an effect of every knob, known prompt by prompt."""
    random = np.random.default_rng(5)
    runs = two_knobs(crossed, seeds, syncs=(5, 20, None), primary=primary)
    frame = runs.table.assign(kl_init_seq=[2 + arm + random.normal(0, 0.2) for arm in runs.table["arm"]])
    prompts = {
        (row["arm"], row["seed"]): pandas.Series(random.random(40) + row["objective"]) for row in frame.to_dict("records")
    }
    frame["objective"] = [prompts[arm, seed].mean() for arm, seed in zip(frame["arm"], frame["seed"], strict=True)]
    return replace(runs, runs=frame, by_prompt=prompts)


def statements(findings: Findings) -> list[str]:
    """Return the sentences with which a page says how sure it is."""
    return re.findall("<li>(.*?)</li>", html.unescape(render_page(findings)))
