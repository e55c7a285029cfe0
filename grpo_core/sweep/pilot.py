"""The pilot of a sweep: two of its settings with two seeds that it does not have, or runs that are there; what they show."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from grpo_core.config.loading import dump_yaml
from grpo_core.config.spelling import SETTING
from grpo_core.data.prepare import read_manifest
from grpo_core.errors import ConfigError, SweepError
from grpo_core.evaluation.results import table_file
from grpo_core.machine.disk import folder_bytes, write_whole
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record
from grpo_core.sweep.arms import GROUP_SIZE, Arm, arm_overrides
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir
from grpo_core.sweep.plan import Plan, make_plan
from grpo_core.sweep.results import objective_by_prompt, outcome_of, read_run, run_row
from grpo_core.sweep.schema import ObjectiveConfig
from grpo_core.sweep.statistics.variance import Variance, contributions, estimate

FIRST_SEED = 1001
"""Of a pilot; its seeds are none of the sweep's, whose runs nobody has seen before."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What some finished runs show of a sweep to come.

    `runs` has a row a run: its setting, config, seed, steps, seconds, tokens and bytes. `samples` are completions to each of
    `num_prompts`, as far as the metric is known by them, else 1, and `held_out` the prompts that might have been evaluated.
    """

    folders: tuple[str, ...]
    variance: Variance
    runs: pandas.DataFrame
    samples: int = 1
    num_prompts: int = 1
    held_out: int = 1


def pilot_file(plan: Plan, file: Path) -> SweepDir:
    """Write the sweep file of a pilot, and return the folder of its runs, beside the file.

    The two settings differ in the question, else in the first axis: in its first and its last level. All other axes are at
    their first.

    Args:
        plan: a grid.
        file: of the pilot.

    Raises:
        ConfigError: the folder holds the pilot of another sweep.
    """
    sweep, folder = plan.sweep, SweepDir(file.with_suffix(""))
    axes: dict[str, Any] = dict(sweep.axes)
    knob, levels = (sweep.primary.knob, sweep.primary.levels) if sweep.primary else (next(iter(axes)), None)
    hold = sweep.hold if knob == GROUP_SIZE else None
    held = sweep.model_copy(update={"hold": None}) if hold else sweep
    fixed = arm_overrides(held, plan.base, {key: axis[0] for key, axis in axes.items() if key != knob})
    left_out: Any = {"primary": True, "claim": True, "budget": True, "pruner": True, "runs": {"share"}}
    values = sweep.model_dump(mode="json", exclude=left_out) | {
        "question": f"Pilot: how far do runs spread? ({sweep.question or file.stem})",
        "overrides": {**sweep.overrides, **fixed},
        "settings": sweep.settings if knob == SETTING else {},
        "axes": {knob: list(levels or (axes[knob][0], axes[knob][-1]))},
        "seeds": [seed for seed in range(FIRST_SEED, FIRST_SEED + len(sweep.seeds) + 2) if seed not in sweep.seeds][:2],
        "hold": hold,
        "from_step": {},
        "study": None,
    }
    if folder.sweep_file.exists() and folder.read().plan.configs != make_plan(values).configs:
        raise ConfigError(f"{folder.path}: holds the pilot of other settings; move it away, or name it with --pilot")
    write_whole(file, dump_yaml(values))
    return folder


def read_pilot(folders: Sequence[Path], objective: ObjectiveConfig) -> Pilot:
    """Return what the finished runs in some folders show: runs, sweeps, or folders of runs; a repetition counts once.

    Args:
        folders: at least one.
        objective: of the sweep to come.

    Raises:
        SweepError: fewer than two finished runs have the metric, or nothing shows how it spreads.
    """
    rows, draws = dict[tuple[str, int], dict[str, Any]](), dict[tuple[str, int], np.ndarray]()
    for run_dir in [one for folder in folders for one in _runs_in(folder)]:
        config = run_dir.read_config()
        run = read_run(run_dir, Arm(number=0, values={}), config.training.seed)
        row = run_row(run, None, objective)
        if outcome_of(run, None).status == "finished" and np.isfinite(row["objective"]):
            key = config.model_dump_json(exclude={"tracking": True, "training": {"seed"}}), run.seed
            rows[key] = {
                **row,
                "setting": key[0],
                "config": config,
                "bytes": folder_bytes(run_dir.path),
                "eval_seconds": _eval_seconds(run.records),
            }
            if (table := draws_of(run_dir, objective, row["objective"])) is not None:
                draws[key] = table
    if len(rows) < 2:
        shown = ", ".join(map(str, folders))
        raise SweepError(f"--pilot {shown}: {len(rows)} finished run(s) with {objective.metric}; at least 2 are needed")
    is_known = len(draws) == len(rows) and len({table.shape for table in draws.values()}) == 1
    num_prompts, samples = next(iter(draws.values())).shape if is_known else (1, 1)
    runs = pandas.DataFrame(rows.values())
    values = {str(setting): dict(zip(of["seed"], of["objective"], strict=True)) for setting, of in runs.groupby("setting")}
    return Pilot(
        folders=tuple(map(str, folders)),
        variance=estimate(values, draws if is_known else {}),
        runs=runs,
        samples=samples,
        num_prompts=num_prompts,
        held_out=read_manifest(RunDir(Path(runs["run_dir"][0])).data).num_eval if is_known else 1,
    )


def draws_of(run_dir: RunDir, objective: ObjectiveConfig, value: float) -> np.ndarray | None:
    """Return what each completion adds to a run's metric, [prompts in the order of their ids, completions]; None if unknown.

    Args:
        run_dir: of a run.
        objective: what is maximised; one with a price on the drift is not a mean over completions.
        value: of the run; a table whose mean is another one is not of the same policy.
    """
    scores, k = objective_by_prompt(run_dir, objective, value), objective.metric.partition("pass_at_")[2]
    if scores is None or not k:
        return None if scores is None else scores.to_numpy(float)[:, None]
    sampled = pandas.read_parquet(table_file(run_dir, "final")).query("sample >= 0")
    correct = sampled.pivot_table(index="prompt_id", columns="sample", values="correct", aggfunc="max").to_numpy(float)
    is_known = int(k) < max(2, correct.shape[1]) and not np.isnan(correct).any()
    return contributions(correct, int(k)) if is_known else scores.to_numpy(float)[:, None]


def _runs_in(folder: Path) -> list[RunDir]:
    """Return the runs that a folder holds: it is one, a sweep's, or a folder of runs."""
    inside = folder / "runs" if (folder / SWEEP_FILE).is_file() else folder
    files = [folder / "config.json"] if (folder / "config.json").exists() else sorted(inside.glob("*/config.json"))
    return [RunDir(file.parent) for file in files if RunDir(file.parent).kind == "run"]


def _eval_seconds(records: Sequence[Record]) -> float:
    """Return how long the last evaluation took: since the record before it."""
    times = [[datetime.fromisoformat(one.time) for one in two] for two in itertools.pairwise(records) if two[1].kind == "eval"]
    return (times[-1][1] - times[-1][0]).total_seconds() if times else 0.0
