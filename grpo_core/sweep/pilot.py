"""The pilot of a sweep: two of its settings with two seeds that it does not have, or runs that are there; what they show."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from grpo_core.config.loading import dump_yaml
from grpo_core.errors import ConfigError, SweepError
from grpo_core.evaluation.results import table_file
from grpo_core.machine.disk import folder_bytes, write_whole
from grpo_core.run.curves import read_table
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record
from grpo_core.sweep.arms import GROUP_SIZE, Arm, arm_overrides
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir
from grpo_core.sweep.plan import Plan, load_sweep
from grpo_core.sweep.results import SHARE, outcome_of, read_run, run_row
from grpo_core.sweep.schema import ObjectiveConfig
from grpo_core.sweep.statistics.variance import Variance, contributions, estimate

FIRST_SEED = 1001
"""Of a pilot: its seeds are none of the sweep's, whose runs nobody has seen before."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What some finished runs show of a sweep to come."""

    folders: tuple[str, ...]
    variance: Variance
    num_runs: int
    num_settings: int
    num_seeds: int
    samples: int
    """Completions to each prompt, where the metric is known completion by completion; else 1."""
    num_prompts: int
    """Held-out prompts, where the metric is known by prompt; else 1."""
    steps: float
    seconds: float
    """Of a run, beside its training steps."""
    step_seconds: float
    eval_seconds: float
    """Of them, of the final evaluation."""
    step_tokens: float
    """Completion tokens of a step."""
    bytes: float
    """Of a run's folder."""


def pilot_file(plan: Plan, file: Path) -> SweepDir:
    """Write the sweep file of a pilot, and return the folder of its runs, beside the file.

    The two settings differ in the question, else in the first axis: in its first and its last level. All other axes are at
    their first.

    Args:
        plan: the sweep.
        file: of the pilot.

    Raises:
        ConfigError: the settings of the sweep are not known before, or the folder holds the pilot of another sweep.
    """
    sweep, folder = plan.sweep, SweepDir(file.with_suffix(""))
    require_grid(plan)
    knob = sweep.primary.knob if sweep.primary else next(iter(sweep.axes))
    levels = sweep.axes[knob][:: len(sweep.axes[knob]) - 1]  # type: ignore[index, arg-type]  # a grid has lists
    if sweep.primary is not None and sweep.primary.levels is not None:
        levels = sweep.primary.levels
    first: dict[str, Any] = {key: axis[0] for key, axis in sweep.axes.items()}  # type: ignore[index]
    swept = knob == GROUP_SIZE
    fixed = {key: value for key, value in (first if swept else arm_overrides(sweep, plan.base, first)).items() if key != knob}
    seeds = itertools.islice((seed for seed in itertools.count(FIRST_SEED) if seed not in sweep.seeds), 2)
    values = sweep.model_dump(mode="json", exclude={"primary": True, "budget": True, "pruner": True, "runs": {"share"}}) | {
        "question": f"Pilot: how far do runs spread? ({sweep.question or file.stem})",
        "overrides": {**sweep.overrides, **fixed},
        "axes": {knob: list(levels)},
        "seeds": list(seeds),
        "hold": sweep.hold if swept else None,
        "from_step": {},
        "study": None,
    }
    write_whole(file, dump_yaml(values))
    if folder.sweep_file.exists() and folder.read().plan.configs != load_sweep(file).configs:
        raise ConfigError(f"{folder.path}: holds the pilot of other settings; move it away, or name it with --pilot")
    return folder


def require_grid(plan: Plan) -> None:
    """Refuse a plan whose settings a sampler will choose.

    Raises:
        ConfigError: as above.
    """
    if plan.sweep.sampler != "grid":
        raise ConfigError(f"sampler: {plan.sweep.sampler} chooses its settings as it goes; --plan takes sampler grid")


def read_pilot(folders: Sequence[Path], objective: ObjectiveConfig) -> Pilot:
    """Return what the finished runs in some folders show: runs, sweeps, or folders of runs.

    Args:
        folders: at least one.
        objective: of the sweep to come.

    Raises:
        SweepError: fewer than two finished runs have the metric, or none of them share a setting.
    """
    values, draws = defaultdict[str, dict[int, float]](dict), dict[tuple[str, int], np.ndarray]()
    rows = []
    for run_dir in [one for folder in folders for one in _runs_in(folder)]:
        config = run_dir.read_config()
        run = read_run(run_dir, Arm(number=0, values={}), config.training.seed)
        row = run_row(run, None, objective)
        if outcome_of(run, None).status != "finished" or not np.isfinite(row["objective"]):
            continue
        setting = config.model_dump_json(exclude={"tracking": True, "training": {"seed"}})
        values[setting][run.seed] = row["objective"]
        if (table := draws_of(run_dir, objective, row["objective"])) is not None:
            draws[setting, run.seed] = table
        rows.append({**row, "bytes": folder_bytes(run_dir.path), "eval_seconds": _eval_seconds(run.records)})
    if len(rows) < 2:
        shown = ", ".join(map(str, folders))
        raise SweepError(f"--pilot {shown}: {len(rows)} finished run(s) with {objective.metric}; at least 2 are needed")
    is_known = len(draws) == len(rows) and len({table.shape for table in draws.values()}) == 1
    num_prompts, samples = next(iter(draws.values())).shape if is_known else (1, 1)
    steps = fmean(row["steps"] for row in rows)
    return Pilot(
        folders=tuple(map(str, folders)),
        variance=estimate(values, draws if is_known else {}),
        num_runs=len(rows),
        num_settings=len(values),
        num_seeds=len({seed for of_setting in values.values() for seed in of_setting}),
        samples=samples,
        num_prompts=num_prompts,
        steps=steps,
        seconds=fmean(row["wall_seconds"] - row["train_seconds"] for row in rows),
        step_seconds=fmean(row["train_seconds"] for row in rows) / steps,
        eval_seconds=fmean(row["eval_seconds"] for row in rows),
        step_tokens=fmean(row["tokens"] for row in rows) / steps,
        bytes=fmean(row["bytes"] for row in rows),
    )


def draws_of(run_dir: RunDir, objective: ObjectiveConfig, value: float) -> np.ndarray | None:
    """Return what each completion adds to a run's metric, [prompts in the order of their ids, completions]; None if unknown.

    Args:
        run_dir: of a run.
        objective: what is maximised; one with a price on the drift is not a mean over completions.
        value: of the run; a table whose mean is another one is not of the same policy.
    """
    asked, table = SHARE.fullmatch(objective.metric), read_table(table_file(run_dir, "final"))
    if asked is None or objective.kl_penalty is not None or table is None:
        return None
    sampled = table[(table["sample"] < 0) if asked["k"] is None else (table["sample"] >= 0)]
    correct = sampled.pivot_table(index="prompt_id", columns="sample", values="correct", aggfunc="max").to_numpy(float)
    k = int(asked["k"] or 1)
    if not correct.size or np.isnan(correct).any() or k > correct.shape[1]:
        return None
    shares = correct.max(axis=1, keepdims=True) if 1 < k == correct.shape[1] else contributions(correct, k)
    return shares if abs(float(shares.mean()) - value) < 1e-9 else None


def _runs_in(folder: Path) -> list[RunDir]:
    """Return the runs that a folder holds: it is one, a sweep's, or a folder of runs."""
    if (folder / "config.json").exists():
        return [RunDir(folder)]
    inside = folder / "runs" if (folder / SWEEP_FILE).is_file() else folder
    paths = sorted(inside.iterdir()) if inside.is_dir() else []
    return [RunDir(path) for path in paths if RunDir(path).kind == "run" and RunDir(path).config_file.exists()]


def _eval_seconds(records: Sequence[Record]) -> float:
    """Return how long the last evaluation took: since the record before it."""
    times = [datetime.fromisoformat(record.time) for record in records]
    last = next((index for index in reversed(range(1, len(records))) if records[index].kind == "eval"), None)
    return 0.0 if last is None else (times[last] - times[last - 1]).total_seconds()
