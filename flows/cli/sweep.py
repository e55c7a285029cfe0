"""The verbs of the `grpo` command that are about sweeps."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.stack.servers import use_stack
from flows.terminal import echo, echo_result
from grpo_core.config import parse_overrides
from grpo_core.errors import ConfigError
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import describe_plan, load_sweep

if TYPE_CHECKING:
    from tasks.sweep.stages import SweepSummary

Overrides = Annotated[list[str] | None, typer.Argument(help="key.path=value, applied over the file", metavar="[KEY=VALUE]...")]


def sweep(
    file: Annotated[
        str | None, typer.Argument(help="A file in configs/sweeps/ by name, or a path.", metavar="FILE", show_default=False)
    ] = None,
    overrides: Overrides = None,
    *,
    sweep_dir: Annotated[Path | None, typer.Option(help="Folder of the sweep; a new one under runs/ if left out.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the sweep in this folder. No FILE is given then.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="With --resume: run failed runs once more.")] = False,
    dry_run: Annotated[bool, typer.Option("--check", help="Check the sweep and print its arms; run nothing.")] = False,
) -> None:
    """Run every arm of a sweep once per seed and report which differ: the flow `grpo-sweep`."""
    values = parse_overrides(overrides or [])
    if resume is None and retry_failed:
        raise ConfigError("--retry-failed: has no effect without --resume SWEEP_DIR")
    if resume is not None:
        given = [value for value in (file, sweep_dir, *(overrides or [])) if value is not None]
        if given:
            raise ConfigError(f"--resume {resume}: the sweep keeps its own settings; leave out {given[0]}")
        SweepDir(resume).read()  # refused before anything is started
        use_stack()
        from flows.sweep import resume_sweep

        _show_sweep(resume_sweep(sweep_dir=str(resume), retry_failed=retry_failed))
        return
    if file is None:
        raise ConfigError("give a FILE (of configs/sweeps/, or a path), or --resume SWEEP_DIR")
    plan = load_sweep(file, values)  # refused before anything is started
    if dry_run:
        for line in describe_plan(plan):
            echo(line)
    else:
        use_stack()
        from flows.sweep import grpo_sweep

        _show_sweep(grpo_sweep(sweep=file, overrides=values, sweep_dir=str(sweep_dir) if sweep_dir else None))


def _show_sweep(summary: "SweepSummary") -> None:
    echo()
    counts = ", ".join(f"{count} {status}" for status, count in summary.statuses.items())
    places = (("runs", counts), ("report", str(summary.page)), *summary.tracked.places)
    echo_result(summary.answer, places, summary.problems)


def report_on_sweep(sweep_dir: Annotated[Path, typer.Argument(help="Folder of a sweep, finished or not.")]) -> None:
    """Write tables, figures and the report of a sweep from its journals, and upload them to MLflow where it is tracked."""
    from tasks.sweep.stages import report_again

    page, answer, problems = report_again(sweep_dir)
    echo_result(answer, [("report", str(page))], problems)
