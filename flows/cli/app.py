"""The `grpo` command: every verb calls a flow or one function."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli.clean import clean
from flows.cli.sweep import report_on_sweep, sweep
from flows.signals import ended_like_ctrl_c
from flows.stack.servers import runs_in_prefect, use_stack
from flows.terminal import echo, echo_text, echo_traceback
from grpo_core.config import check_consistency, load_config, parse_overrides
from grpo_core.config.consistency import advantage_rms_factor, effective_beta
from grpo_core.config.credentials import refuse_credentials
from grpo_core.config.yaml_text import dump_yaml
from grpo_core.errors import MAX_FAULT_CHARACTERS, ConfigError, GrpoError, cause
from grpo_core.machine.lifeline import exit_with_lifeline
from tasks.tracking.credentials import move_credentials

if TYPE_CHECKING:
    from tasks.run.reporting import RunSummary

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="GRPO experiments that can be trusted and repeated. With --debug, errors show their traceback and Prefect its log.",
)

app.command()(sweep)
app.command("report")(report_on_sweep)
app.command()(clean)

Repair = Literal["mlflow", "cut"]
ConfigName = Annotated[str, typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.path=value, applied over the file", metavar="[KEY=VALUE]...")]
DEBUG = "--debug"
StackFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of the stack; left out, that of the stack that is up here, else .grpo."),
]

QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Environment defaults of the command: its own view replaces Prefect's log, and nothing is reported to anybody."""


@app.command()
def train(
    config: Annotated[
        str | None, typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG", show_default=False)
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs/ if left out.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a run that was interrupted: go on with it. Nothing else is given then.")
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
        summary = _train(config, parse_overrides(overrides or []), run_dir)
    _show(summary)
    if summary.status == "stopped":
        echo(f"stopped early: {summary.reason}", err=True)
        raise typer.Exit(3)


def _train(config: str, values: dict[str, Any], run_dir: Path | None) -> "RunSummary":
    for warning in check_consistency(load_config(config, values)):
        echo(f"warning: {warning}", err=True)
    use_stack()
    from flows.train import grpo

    return grpo(config=config, overrides=values, run_dir=str(run_dir) if run_dir else None)


def _resume(run_dir: Path, repair: Repair | None, given: list[object]) -> "RunSummary":
    from grpo_core.run.folder import RunDir
    from grpo_core.run.integrity import check_run

    if given:
        raise ConfigError(f"--resume {run_dir}: the run keeps its own configuration; leave out {given[0]}")
    RunDir(run_dir).read_config()
    if repair is None:
        check_run(RunDir(run_dir))
    use_stack()
    from flows.train import resume

    return resume(run_dir=str(run_dir), repair=repair)


@app.command()
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


@app.command()
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
    """Say what came of a run and where to look at it."""
    echo()
    for fact in (*summary.facts, *(f"alert: {alert}" for alert in summary.alerts)):
        echo(f"  {fact}")
    echo()
    echo(f"report    {summary.run_path}/report/report.md")
    where = (summary.mlflow_ui_command, summary.mlflow_address) if summary.mlflow_ui_command else (summary.mlflow_address,)
    for label, text in zip(("MLflow", ""), where, strict=False):
        echo(f"{label:10}{text}")
    echo(f"Prefect   {runs_in_prefect()}")
    for problem in summary.problems:
        echo(f"warning: {problem}", err=True)
    if summary.is_identical is False:
        raise typer.Exit(4)


@app.command()
def check(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the resolved configuration and every warning, without loading a model."""
    resolved = load_config(config, parse_overrides(overrides or []))
    echo_text(dump_yaml(resolved.model_dump(mode="json")).rstrip())
    factor = advantage_rms_factor(resolved)
    said = f"{factor:.4f}  (root mean square of a group's advantages)" if factor else "not that of a group alone"
    echo()
    echo(f"advantage_rms_factor: {said}")
    echo(f"effective beta: {effective_beta(resolved)}")
    warnings = check_consistency(resolved)
    for warning in warnings:
        echo(f"warning: {warning}")
    echo(f"{len(warnings)} warning(s); the configuration is valid")


@app.command()
def track(run_dir: Annotated[Path, typer.Argument(help="Folder of a run that has ended.")]) -> None:
    """Ship to MLflow what an outage or a cancellation left behind; each figure once, however often this is done."""
    from tasks.tracking.later import track_later

    tracked, status, problems = track_later(run_dir)
    echo(f"{tracked.name}: {status}")
    echo(f"MLflow    {tracked.address}")
    for problem in problems:
        echo(f"warning: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


@app.command("import-config")
def import_settings(
    file: Annotated[Path, typer.Argument(help="A TRL GRPOConfig or a ROLL RLVR configuration, YAML or JSON.")],
    source: Annotated[str | None, typer.Option("--format", help="trl or roll; left out, the keys tell.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Training processes of that run, if no file tells.")] = None,
) -> None:
    """Print the configuration that is equivalent to a TRL or ROLL file, with what became of each of its keys as comments."""
    from grpo_core.interop import import_config, render, summary

    imported = import_config(file, source, processes)
    typer.echo(render(imported).rstrip())  # as it is: it may be on its way into a file
    echo(summary(imported), err=True)


@app.command()
def up(
    *,
    folder: StackFolder = None,
    prefect_port: Annotated[int | None, typer.Option(help="Prefect's port; 4200 or the next free one if left out.")] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="MLflow's port; 5000 or the next free one if left out.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Runs at a time (1); more share this machine's GPUs.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that take runs (1); together as many at a time as --slots says.")
    ] = None,
    allow_reward: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Module whose functions deployments may name as rewards (none); repeatable."),
    ] = None,
) -> None:
    """Start the local stack: Prefect server, MLflow server, deployments, workers."""
    from flows.stack import control
    from flows.stack.client_settings import folder_here
    from tasks.rails import module_names

    allowed = module_names(allow_reward) if allow_reward else None
    wanted = control.Wanted(
        prefect_port=prefect_port, mlflow_port=mlflow_port, slots=slots, workers=workers, allow_reward=allowed
    )
    stack = control.up(folder or folder_here(), wanted, echo)
    echo()
    echo(f"logs and data are in {stack.folder}; a first run:")
    echo("  prefect deployment run grpo/train --param beta=0 --param 'overrides={\"training.steps\": 5}' --watch")


@app.command()
def down(
    folder: StackFolder = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds that running trainings have to finish their step.")] = 300,
) -> None:
    """End what `grpo up` started, after cancelling its runs."""
    from flows.stack import control
    from flows.stack.client_settings import folder_here

    folder = folder or folder_here()
    if not control.down(folder, patience, echo):
        echo(f"nothing is up in {folder}")


@app.command()
def status(
    run_dir: Annotated[Path | None, typer.Argument(help="Folder of a run; left out: the local stack.")] = None,
    folder: StackFolder = None,
) -> None:
    """Say where a run is, or how the local stack is."""
    from flows.stack.client_settings import folder_here

    if run_dir is None:
        _stack_status(folder or folder_here())
    else:
        _run_status(run_dir)


def _stack_status(folder: Path) -> None:
    from flows.stack import control
    from flows.stack.runs import count_runs

    stack, conditions = control.status(folder)
    if stack is None:
        echo(f"nothing is up in {folder}; start it with `grpo up`")
        raise typer.Exit(1)
    addresses = {"prefect": stack.prefect_address, "mlflow": stack.mlflow_address}
    for name, condition in conditions.items():
        process = stack.processes.get(name)
        echo(f"{name:8} {condition:10} process {process.pid if process else '-':<8} {addresses.get(name, '')}")
    counts = count_runs(stack)
    known = ", ".join(f"{count} {state.lower()}" for state, count in (counts or {}).items()) or "none under way"
    echo(f"runs     {'not known: Prefect does not answer' if counts is None else known}")
    if set(conditions.values()) != {"ready"}:
        echo("`grpo up` starts what is missing")
        raise typer.Exit(1)


def _run_status(run_dir: Path) -> None:
    from grpo_core.run.folder import RunDir
    from grpo_core.run.summary import run_status

    now = run_status(RunDir(run_dir))
    echo(f"{run_dir}: {now.state}, step {now.step} of {now.steps}, {now.num_syncs} reference sync(s)")
    if now.reason:
        echo(f"reason: {now.reason}")
    if now.last is not None:
        echo(f"last record: {now.last.time}")
        for key in ("reward/mean", "kl/ref/k3", "kl/init/k3", "policy/entropy", "time/step_seconds"):
            if key in now.last.metrics:
                echo(f"  {key:20} {now.last.metrics[key]:.4g}")
    for alert in now.alerts:
        echo(f"alert: {alert}")
    for note in now.notes:
        echo(note)


def _set_environment(debug: bool) -> None:
    """Set what Prefect and MLflow read when they are imported; what the user has set stays."""
    for name, value in QUIET.items():
        if not (debug and name.endswith("LOGGING_LEVEL")):
            os.environ.setdefault(name, value)


def main() -> None:
    """Run the command; an error is one message and an exit code, with --debug (anywhere on the line) also a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    debug = len(arguments) < len(sys.argv) - 1
    _set_environment(debug)
    exit_with_lifeline()  # a run that a sweep has started ends with it
    if not debug:
        # Each attempt to reach a server that is away; that it is away is said once, by the monitor.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    try:
        move_credentials()
        with ended_like_ctrl_c():
            app(arguments)
    except GrpoError as error:
        if debug:
            echo_traceback()
        echo_text(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001  (whatever else goes wrong is one line, too)
        if debug:
            echo_traceback()
        said = cause(error, most=MAX_FAULT_CHARACTERS)
        echo(f"error: {type(error).__name__}: {said} (unexpected; {DEBUG} shows the traceback)", err=True)
        sys.exit(GrpoError.exit_code)
