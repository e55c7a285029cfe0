"""The verbs of the `grpo` command that are about runs, their configurations, and sweeps of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.stack.servers import runs_in_prefect, use_stack
from flows.terminal import echo, echo_result, echo_text, echo_warnings
from grpo_core.config import check_consistency, load_config, parse_overrides
from grpo_core.config.derived import advantage_rms_factor, weight_of_kl
from grpo_core.config.repeatability import repeatability
from grpo_core.config.section import refuse_credentials
from grpo_core.config.yaml_text import dump_yaml
from grpo_core.errors import ConfigError
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import describe_plan, load_sweep

if TYPE_CHECKING:
    from tasks.run.reporting import RunSummary
    from tasks.sweep.stages import SweepSummary

Repair = Literal["mlflow", "cut"]
ConfigName = Annotated[str, typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.path=value, applied over the file", metavar="[KEY=VALUE]...")]


def train(
    config: Annotated[
        str | None, typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG", show_default=False)
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs/ if left out.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the interrupted run in this folder. Nothing else is given then.")
    ] = None,
    repair: Annotated[
        Repair | None,
        typer.Option(help="With --resume: rebuild a damaged journal from MLflow, or cut it back to a checkpoint."),
    ] = None,
) -> None:
    """Prepare, evaluate, train, monitor, evaluate again and report: the flow `grpo`."""
    if resume is not None:
        summary = _resume(resume, repair, [value for value in (config, run_dir, *(overrides or [])) if value is not None])
    elif repair is not None:
        raise ConfigError(f"--repair {repair}: repairs a run that is resumed; give --resume RUN_DIR, too")
    elif config is None:
        raise ConfigError("give a CONFIG (a preset such as `quickstart`, or a YAML file), or --resume RUN_DIR")
    else:
        values = parse_overrides(overrides or [])
        echo_warnings(check_consistency(load_config(config, values)))
        use_stack()
        from flows.train import grpo

        summary = grpo(config=config, overrides=values, run_dir=str(run_dir) if run_dir else None)
    _show(summary)
    if summary.status == "stopped":
        echo(f"stopped early: {summary.reason}", err=True)
        raise typer.Exit(3)


def _resume(run_dir: Path, repair: Repair | None, given: list[object]) -> "RunSummary":
    if given:
        raise ConfigError(f"--resume {run_dir}: the run keeps its own configuration; leave out {given[0]}")
    RunDir(run_dir).read_config()
    if repair is None:
        check_run(RunDir(run_dir))
    use_stack()
    from flows.train import resume

    return resume(run_dir=str(run_dir), repair=repair)


def evaluate(
    policy: Annotated[str, typer.Argument(help="A run dir, a checkpoint, an MLflow run id, or a model.")],
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="Data source, all of whose rows are evaluated.")] = None,
    config: Annotated[
        str | None, typer.Option(help="Preset or file with the settings; left out, those of the policy's run.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the evaluation; a new one under runs/ if left out.")] = None,
) -> None:
    """Evaluate a policy on its held-out prompts or on any data: the flow `grpo-evaluate`."""
    values = parse_overrides(overrides or [])
    for name, given in {"POLICY": policy, "--data": data, "--config": config}.items():
        refuse_credentials(name, given)  # before it is a flow's parameter, which Prefect keeps
    use_stack()
    from flows.evaluate import grpo_evaluate

    _show(grpo_evaluate(policy=policy, data=data, config=config, overrides=values, run_dir=str(run_dir) if run_dir else None))


def reproduce(
    run: Annotated[str, typer.Argument(help="A run dir or an MLflow run id.")],
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the repetition; a new one under runs/ if left out.")] = None,
) -> None:
    """Repeat a run from what was recorded of it and compare every figure: exit code 0 if all are identical, 4 if not."""
    values = parse_overrides(overrides or [])
    refuse_credentials("RUN", run)
    use_stack()
    from flows.reproduce import grpo_reproduce

    _show(grpo_reproduce(run=run, overrides=values, run_dir=str(run_dir) if run_dir else None))


def _show(summary: "RunSummary") -> None:
    """Print what came of a run and where to look at it."""
    echo()
    facts = (*summary.facts, *(f"alert: {alert}" for alert in summary.alerts))
    places = (("report", f"{summary.run_path}/report/report.md"), *summary.tracked.places, ("Prefect", runs_in_prefect()))
    echo_result(facts, places, summary.problems)
    if summary.is_identical is False:
        raise typer.Exit(4)


def check(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the resolved configuration and every warning, without loading a model."""
    resolved = load_config(config, parse_overrides(overrides or []))
    echo_text(dump_yaml(resolved.model_dump(mode="json")).rstrip())
    factor = advantage_rms_factor(resolved)
    meaning = f"{factor:.4f}  (root mean square of a group's advantages)" if factor else "not that of a group alone"
    echo()
    echo(f"advantage_rms_factor: {meaning}")
    echo(f"effective beta: {weight_of_kl(resolved)}")
    echo(f"repeats: {repeatability(resolved).what}")
    warnings = check_consistency(resolved)
    echo_warnings(warnings, err=False)
    echo(f"{len(warnings)} warning(s); the configuration is valid")


def track(run_dir: Annotated[Path, typer.Argument(help="Folder of a run that has ended.")]) -> None:
    """Ship to MLflow what an outage or a cancellation left behind; each figure once, however often this is done."""
    from tasks.tracking.later import track_later

    tracked, status, problems = track_later(run_dir)
    echo(f"{tracked.name}: {status}")
    echo(f"MLflow    {tracked.address}")
    echo_warnings(problems)
    if problems:
        raise typer.Exit(1)


def import_settings(
    file: Annotated[Path, typer.Argument(help="A TRL GRPOConfig or a ROLL RLVR configuration, YAML or JSON.")],
    source: Annotated[str | None, typer.Option("--format", help="trl or roll; left out, the keys tell.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Training processes of that run, if no file tells.")] = None,
) -> None:
    """Print the configuration that is equivalent to a TRL or ROLL file, with what became of each of its keys as comments."""
    from grpo_core.interop.conversion import import_config
    from grpo_core.interop.report import render, summary

    imported = import_config(file, source, processes)
    typer.echo(render(imported).rstrip())  # as it is: it may be on its way into a file
    echo(summary(imported), err=True)


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
