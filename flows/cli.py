"""The `grpo` command: every verb calls a flow or one function."""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from grpo_core.config import check_consistency, load_config, parse_overrides
from grpo_core.config.consistency import advantage_rms_factor, effective_beta
from grpo_core.errors import GrpoError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="GRPO experiments that can be trusted and repeated. With --debug, errors show their traceback and Prefect its log.",
)

ConfigName = Annotated[str, typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.path=value, applied over the file", metavar="[KEY=VALUE]...")]
DEBUG = "--debug"

QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Environment defaults of the command: its own view replaces Prefect's log, and nothing is reported to anybody."""


@app.command()
def train(
    config: ConfigName,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs/ if left out.")] = None,
) -> None:
    """Prepare, evaluate, train, monitor, evaluate again and report: the flow `grpo`."""
    values = parse_overrides(overrides or [])
    for warning in check_consistency(load_config(config, values)):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo("starting Prefect (embedded unless PREFECT_API_URL is set) ...")
    from flows.train import grpo

    summary = grpo(config, overrides=values, run_dir=str(run_dir) if run_dir else None)
    typer.echo()
    for fact in (*summary.facts, *(f"alert: {alert}" for alert in summary.alerts)):
        typer.echo(f"  {fact}")
    typer.echo(f"\nreport    {summary.run_path}/report/report.md (figures beside it)")
    typer.echo(f"MLflow    {summary.mlflow_ui_command}")
    typer.echo(f"          {summary.mlflow_address}")
    typer.echo("Prefect   prefect server start, then http://127.0.0.1:4200")
    for problem in summary.problems:
        typer.echo(f"warning: {problem}", err=True)
    if summary.status == "stopped":
        typer.echo(f"stopped early: {summary.reason}", err=True)
        raise typer.Exit(3)


@app.command()
def check(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the resolved configuration and every warning, without loading a model."""
    import yaml

    resolved = load_config(config, parse_overrides(overrides or []))
    typer.echo(yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False, allow_unicode=True).rstrip())
    typer.echo(f"\nadvantage_rms_factor: {advantage_rms_factor(resolved.rollout.group_size):.4f}  (sqrt((G-1)/G))")
    typer.echo(f"effective beta: {effective_beta(resolved)}")
    warnings = check_consistency(resolved)
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    typer.echo(f"{len(warnings)} warning(s); the configuration is valid")


@app.command()
def status(run_dir: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Say where a run is."""
    from grpo_core.analysis.summary import run_status
    from grpo_core.rundir import RunDir

    now = run_status(RunDir(run_dir))
    typer.echo(f"{run_dir}: {now.state}, step {now.step} of {now.steps}, {now.num_syncs} reference sync(s)")
    if now.reason:
        typer.echo(f"reason: {now.reason}")
    if now.last is not None:
        typer.echo(f"last record: {now.last.time}")
        for key in ("reward/mean", "kl/ref/k3", "kl/init/k3", "policy/entropy", "time/step_seconds"):
            if key in now.last.metrics:
                typer.echo(f"  {key:20} {now.last.metrics[key]:.4g}")
    for alert in now.alerts:
        typer.echo(f"alert: {alert}")


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
    try:
        app(arguments)
    except GrpoError as error:
        if debug:
            traceback.print_exc()
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001  (whatever else goes wrong is one line, too)
        if debug:
            traceback.print_exc()
        cause = " ".join(str(error).split())
        sys.stderr.write(f"error: {type(error).__name__}: {cause} (unexpected; {DEBUG} shows the traceback)\n")
        sys.exit(GrpoError.exit_code)


if __name__ == "__main__":
    main()
