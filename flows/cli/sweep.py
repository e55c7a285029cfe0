"""The verbs of the `grpo` command that are about sweeps."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.completion import Overrides, complete_sweep
from flows.cli.folders import working_in, working_in_new
from flows.stack.servers import TrackingUri, track_at, use_stack
from flows.terminal import AsJson, echo, echo_json, echo_result, messages_to_stderr
from grpo_core.config import parse_overrides
from grpo_core.errors import ConfigError
from grpo_core.machine.process import gc_paused
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import Plan, describe_plan, load_sweep

if TYPE_CHECKING:
    from tasks.sweep.stages import SweepSummary


def sweep(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A file in configs/sweeps/ by name, or a path.",
            metavar="FILE",
            show_default=False,
            autocompletion=complete_sweep,
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    sweep_dir: Annotated[Path | None, typer.Option(help="Folder of the sweep; a new one under runs/ if left out.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the sweep in this folder. No FILE is given then.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="With --resume: run failed runs once more.")] = False,
    dry_run: Annotated[bool, typer.Option("--check", help="Check the sweep and print its arms; run nothing.")] = False,
    tracking_uri: TrackingUri = None,
) -> None:
    """Run every arm of a sweep once per seed and report which differ: the flow `grpo-sweep`."""
    values = parse_overrides(overrides or [])
    if resume is None and retry_failed:
        raise ConfigError("--retry-failed: has no effect without --resume SWEEP_DIR")
    if resume is None and tracking_uri is not None:
        raise ConfigError(f"--tracking-uri {tracking_uri}: is for a sweep that is resumed; its runs have the key tracking.uri")
    if resume is not None:
        track_at(tracking_uri)
        _resume(resume, retry_failed, [value for value in (file, sweep_dir, *(overrides or [])) if value is not None])
        return
    if file is None:
        raise ConfigError("give a FILE (of configs/sweeps/, or a path), or --resume SWEEP_DIR")
    plan = load_sweep(file, values)  # refused before anything is made or started
    if dry_run:
        for line in describe_plan(plan):
            echo(line)
        return
    _require_runs(plan)
    with working_in_new(sweep_dir, Path(file).stem, "sweep") as folder:
        use_stack()
        from flows.sweep import grpo_sweep

        _show_sweep(grpo_sweep(sweep=file, overrides=values, sweep_dir=str(folder)))


def _require_runs(plan: Plan) -> None:
    """Refuse a sweep of this machine whose runs cannot start here: one for each model, data, rollout and rewards is checked."""
    from grpo_core.run.child import import_folders
    from grpo_core.run.preflight import require_start

    if plan.sweep.runs.where == "local":
        kinds = {repr((c.model, c.data, c.rewards, c.training.python, c.rollout)): c for c in plan.configs}
        for config in kinds.values():
            require_start(config, import_folders(config, plan.sweep.base))


def _resume(sweep_dir: Path, retry_failed: bool, given: list[object]) -> None:
    if given:
        raise ConfigError(f"--resume {sweep_dir}: the sweep keeps its own settings; leave out {given[0]}")
    SweepDir(sweep_dir).read()  # refused before anything is started
    with working_in(sweep_dir):
        use_stack()
        from flows.sweep import resume_sweep

        _show_sweep(resume_sweep(sweep_dir=str(sweep_dir), retry_failed=retry_failed))


def _show_sweep(summary: "SweepSummary") -> None:
    echo()
    counts = ", ".join(f"{count} {status}" for status, count in summary.statuses.items())
    places = (("runs", counts), ("report", str(summary.page)), *summary.tracked.places)
    echo_result(summary.answer, places, summary.problems)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep or of a run, finished or not.")],
    as_json: AsJson = False,
    tracking_uri: TrackingUri = None,
) -> None:
    """Draw the figures and write the report of a sweep or a run from its journals, and upload them to MLflow."""
    track_at(tracking_uri)
    is_run = RunDir(folder).config_file.is_file()
    with messages_to_stderr(as_json):
        with gc_paused():
            from tasks.run.reporting import report_run_again
            from tasks.sweep.stages import report_again
        page, answer, problems = report_run_again(folder) if is_run else report_again(folder)
    if as_json:
        kind = "run_dir" if is_run else "sweep_dir"
        echo_json({kind: str(folder), "report": str(page), "answer": answer, "problems": problems})
    else:
        echo_result(answer, [("report", str(page))], problems)
