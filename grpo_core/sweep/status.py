"""Where a sweep is and how it is resumed; and what lies in a folder of runs, one row a run, evaluation or sweep."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core.config import RunConfig, parse_overrides, run_name
from grpo_core.config.loading import KNOBS, known_keys, near_key
from grpo_core.config.origin import named_settings
from grpo_core.config.spelling import SHORT, level_name
from grpo_core.errors import ConfigError, GrpoError, cause
from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE
from grpo_core.machine.disk import folder_bytes
from grpo_core.machine.locks import lock_holder
from grpo_core.metrics import LAST_STEPS
from grpo_core.run.flow_folder import MARKER_FILE, RUNS_FOLDER, FlowDir
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.resuming import path_argument, resume_command
from grpo_core.run.summary import all_alerts, run_status
from grpo_core.sweep.arms import next_run, total_runs
from grpo_core.sweep.display import duration
from grpo_core.sweep.folder import SWEEP_FILE, SweepDir
from grpo_core.sweep.plan import Plan
from grpo_core.sweep.results import read_runs, spent_budget

WORDS = {**KNOBS, **{short: key for key, short in SHORT.items()}}
"""Short names of settings, as names of runs and parameters of flows have them."""
OF_FOLDERS = ("state", "preset")


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """Where a sweep is."""

    state: str
    name: str
    ended: int
    total: int
    outcomes: Mapping[str, int]
    under_way: int
    """Runs that were begun and have not ended."""
    resume: str | None
    """The command that resumes the sweep; None where it is running or complete."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One folder of ours."""

    path: Path
    kind: str
    """As its marker says: `run`, `evaluation`, `reproduction` or `sweep`; `unknown` where the marker cannot be read."""
    state: str = "damaged"
    """Of a run as `RunStatus.state`, of a sweep as `SweepStatus.state`; `running` while a flow works in it; `damaged`."""
    preset: str = ""
    name: str = ""  # of a run: its settings
    number: int = 0
    """By which commands take it, where it lies in `runs/`."""
    done: int = 0
    """Steps of a run, runs of a sweep."""
    total: int = 0
    bytes: int
    accuracy_before: float | None = None
    accuracy: float | None = None
    """Held-out greedy accuracy before training and the last one since; None where none was measured."""
    reward: float | None = None
    """Mean of the last steps. Of a sweep: of its run with the best accuracy."""
    alerts: int = 0
    """Of a run, in a sweep of all of its runs."""
    started: datetime
    resume: str | None = None
    """The command that resumes it; None where there is nothing to resume."""
    fault: str | None = None


def sweep_status(sweep_dir: SweepDir) -> SweepStatus:
    """Return where a sweep is.

    Raises:
        GrpoError: the folder holds no sweep, or its files were changed into something else.
    """
    stored = sweep_dir.read()
    arms, outcomes, sweep = sweep_dir.read_arms(), sweep_dir.read_outcomes(), stored.plan.sweep
    statuses = Counter(outcome.status for outcome in outcomes.values())
    begun = [(arm, seed) for arm in arms for seed in sweep.seeds if sweep_dir.run_dir(arm, seed).config_file.exists()]
    is_whole = len(arms) >= stored.plan.num_arms and next_run(sweep, arms, outcomes, ()) is None
    state = "interrupted" if begun or outcomes else "not started"
    if lock_holder(sweep_dir.lock_file) is not None:
        state = "running"
    elif statuses["failed"] > sweep.failed_runs_allowed:
        state = "failed"
    elif is_whole or spent_budget(sweep.budget, read_runs(stored)) is not None:
        state = "finished"
    command = f"grpo sweep --resume {path_argument(sweep_dir.path)}{' --retry-failed' if state == 'failed' else ''}"
    return SweepStatus(
        state=state,
        name=stored.name,
        ended=len(outcomes),
        total=total_runs(stored.plan.num_arms, sweep, arms),
        outcomes=dict(statuses),
        under_way=sum(key not in outcomes for key in begun),
        resume=None if state in ("running", "finished") else command,
    )


def command_that_resumes(path: Path, *, has_prompts: bool = False) -> str | None:
    """Return the command that resumes what a folder holds, a run or a sweep; None where there is nothing to resume.

    A run of a sweep that is not complete is resumed by the sweep.

    Args:
        path: the folder; it need not be one of ours.
        has_prompts: as in `resume_command`.
    """
    if SweepDir(path).sweep_file.exists():
        return _resume_sweep(SweepDir(path))
    command, sweep_dir = resume_command(RunDir(path), has_prompts=has_prompts), _sweep_of(path)
    return command if command is None or sweep_dir is None else _resume_sweep(sweep_dir)


def _resume_sweep(sweep_dir: SweepDir) -> str | None:
    with contextlib.suppress(GrpoError, OSError):  # its files cannot be read
        return sweep_status(sweep_dir).resume
    return None


def _sweep_of(run: Path) -> SweepDir | None:
    """Return the sweep in whose `runs/` a run lies; None where it lies elsewhere."""
    # Not resolved: a run may lie behind a link, and belongs to the sweep all the same.
    sweep_dir = SweepDir(Path(os.path.abspath(run)).parent.parent)  # noqa: PTH100
    return sweep_dir if sweep_dir.sweep_file.exists() else None


def list_folders(folder: Path, words: Sequence[str] = ()) -> list[Listed]:
    """Return what lies in a folder of runs, the newest first; of the folder of a sweep, its runs.

    Only folders with our marker are looked into; comparisons and exports are left out.

    Args:
        folder: of runs, or of one sweep.
        words: what is wanted, such as `beta=0.1`, `loss.beta=0.1` or `state=finished`; of sweeps, those of which a run has it.

    Raises:
        ConfigError: there is no such setting.
    """
    wanted = parse_overrides([f"{WORDS.get(name, name)}={text}" for name, _, text in (word.partition("=") for word in words)])
    for key in wanted.keys() - OF_FOLDERS:
        if re.sub(r"\.\d+(?=\.|$)", ".*", key) not in known_keys():
            raise ConfigError(f"{key}: is no setting of a run, nor {' or '.join(OF_FOLDERS)}{near_key(key)}")
    inside = folder / "runs" if (folder / SWEEP_FILE).is_file() else folder
    paths = [path for path in inside.iterdir() if path.is_dir() and not path.is_symlink()] if inside.is_dir() else []
    listed = [entry for path in paths if (entry := _read(path)) is not None and (not wanted or _is_wanted(entry, wanted))]
    if (sweep_dir := _sweep_of(inside / "run")) is not None:
        command = _resume_sweep(sweep_dir)
        listed = [replace(entry, resume=entry.resume and command) for entry in listed]
    return sorted(listed, key=lambda entry: (entry.started, entry.path.name), reverse=True)


def _is_wanted(entry: Listed, wanted: Mapping[str, Any]) -> bool:
    configs: Sequence[RunConfig] = ()
    with contextlib.suppress(GrpoError):  # a damaged one has a state, and no settings
        configs = SweepDir(entry.path).read().plan.configs if entry.kind == "sweep" else [RunDir(entry.path).read_config()]
    found = [{**named_settings(config), **vars(entry)} for config in configs] or [vars(entry)]
    return any(all(level_name(key, one.get(key, "")) == level_name(key, wanted[key]) for key in wanted) for one in found)


def training_time(plan: Plan) -> str:
    """Return how many runs and steps a sweep has, and how long they train at the pace of the newest run of its base."""
    steps, at_a_time = fmean(config.training.steps for config in plan.configs), plan.sweep.runs.concurrency
    whole, beside = f"{plan.num_runs} runs x {steps:g} steps", f", {at_a_time} runs at a time" if at_a_time > 1 else ""
    for entry in list_folders(RUNS_FOLDER):
        if (entry.kind, entry.preset, entry.fault) == ("run", plan.preset, None):
            paces = _last_steps(check_run(RunDir(entry.path)).history, "time/step_seconds")
            if paces:
                time = duration(plan.num_runs * steps * fmean(paces) / at_a_time)
                return f"{whole}: about {time} of training at {fmean(paces):.2g} s a step, as {entry.path}{beside}"
    return f"{whole}; how long they train is unknown before the first run of {plan.preset}"


def _last_steps(records: Sequence[Record], key: str) -> list[float]:
    return [record.metrics[key] for record in records if key in record.metrics][-LAST_STEPS:]


def _reached(records: Sequence[Record]) -> dict[str, float | None]:
    """Return the held-out greedy accuracy before training and last, of the set that was evaluated last, and the reward."""
    keys = [f"eval/{name}/greedy_accuracy" for name in (HELD_OUT, HELD_OUT_SAMPLE)]
    evaluated = [record for record in records if record.kind == "eval"]
    curves = [{record.step: record.metrics[key] for record in evaluated if key in record.metrics} for key in keys]
    curve = max(curves, key=lambda found: max(found, default=-1))
    rewards = _last_steps(records, "reward/mean")
    return {
        "accuracy_before": curve.get(0),
        "accuracy": curve[max(curve)] if any(curve) else None,
        "reward": fmean(rewards) if rewards else None,
    }


def _read(path: Path) -> Listed | None:
    """Return what is known of a folder; None where it is not ours, a comparison or an export."""
    kind, facts = "unknown", dict[str, Any]()
    try:
        marker = FlowDir(path).marker()
        if marker is None or marker.kind in ("comparison", "export"):
            return None
        kind, started, facts["number"] = marker.kind, datetime.fromisoformat(marker.created), marker.number
        is_held = lock_holder(FlowDir(path).lock_file) is not None
        facts |= _of_sweep(SweepDir(path)) if kind == "sweep" else _of_run(RunDir(path), kind)
        facts |= {"state": "running"} if is_held else {}
    except (GrpoError, OSError, ValueError) as error:
        started = datetime.fromtimestamp((path / MARKER_FILE).lstat().st_mtime, UTC)
        facts["fault"] = cause(error)
    return Listed(path=path, kind=kind, started=started, bytes=folder_bytes(path), **facts)


def _of_run(run_dir: RunDir, kind: str) -> dict[str, Any]:
    if not run_dir.config_file.exists() and not run_dir.journal_file.exists():
        return {"state": "not started"}
    journal = check_run(run_dir)
    origin = run_dir.read_origin()
    facts = {
        "preset": origin.preset,
        "name": run_name(run_dir.read_config(), origin),
        **_reached(journal.history),
    }
    if kind == "evaluation":
        return {**facts, "state": "finished" if any(run_dir.eval.glob("*.json")) else "died"}
    status, resume = run_status(run_dir, journal), resume_command(run_dir, journal=journal)
    return {
        **facts,
        "state": status.state,
        "done": status.step,
        "total": status.steps,
        "alerts": len(status.alerts),
        "resume": resume,
    }


def _of_sweep(sweep_dir: SweepDir) -> dict[str, Any]:
    if not sweep_dir.sweep_file.exists():
        return {"state": "not started"}
    status, runs = sweep_status(sweep_dir), list(read_runs(sweep_dir.read()))
    found = [_reached(run.records) for run in runs]
    return {
        "state": status.state,
        "preset": status.name,
        "done": status.ended,
        "total": status.total,
        **max(found, key=lambda one: (one["accuracy"] is not None, one["accuracy"] or 0.0), default={}),
        "alerts": sum(len(all_alerts(run.folder, run.records)) for run in runs),
        "resume": status.resume,
    }
