"""The verbs of the `grpo` command that run something: a training, an evaluation, a repetition."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli.completion import Overrides, complete_config
from flows.cli.folders import working_in, working_in_new
from flows.stack.servers import TrackingUri, runs_in_prefect, track_at, use_stack
from flows.terminal import AsJson, echo, echo_json, echo_places, echo_result, echo_warnings, messages_to_stderr
from grpo_core.config import check_consistency, load, parse_overrides
from grpo_core.config.section import refuse_credentials
from grpo_core.errors import ConfigError, raised_as
from grpo_core.machine.disk import write_whole
from grpo_core.machine.process import gc_paused
from grpo_core.run.folder import RunDir, sizes_to_lower

if TYPE_CHECKING:
    from tasks.run.reporting import RunSummary

Repair = Literal["cut"]


def train(
    config: Annotated[
        str | None,
        typer.Argument(
            help="Preset (`quickstart`) or path of a YAML file.",
            metavar="CONFIG",
            show_default=False,
            autocompletion=complete_config,
        ),
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs/ if left out.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume the interrupted run in this folder. training.microbatch_tokens and training.rollout_rows may be "
            "lowered, where it was out of memory; nothing else is given then."
        ),
    ] = None,
    repair: Annotated[
        Repair | None,
        typer.Option(help="With --resume: cut a damaged journal back to a checkpoint."),
    ] = None,
    *,
    tracking_uri: TrackingUri = None,
) -> None:
    """Prepare, evaluate, train, monitor, evaluate again and report: the flow `grpo`."""
    if resume is not None:
        track_at(tracking_uri)
        # Without a CONFIG the first override stands in its place.
        _resume(resume, repair, run_dir, [value for value in (config, *(overrides or [])) if value is not None])
    elif repair is not None:
        raise ConfigError(f"--repair {repair}: repairs a run that is resumed; give --resume RUN_DIR, too")
    elif tracking_uri is not None:
        raise ConfigError(f"--tracking-uri {tracking_uri}: is for a run that is resumed; a new one has the key tracking.uri")
    elif config is None:
        raise ConfigError("give a CONFIG (a preset such as `quickstart`, or a YAML file), or --resume RUN_DIR")
    else:
        _train(config, parse_overrides(overrides or []), run_dir)


def _train(config: str, values: dict[str, Any], run_dir: Path | None) -> None:
    from grpo_core.run.child import import_folders
    from grpo_core.run.preflight import require_start

    resolved = load(config, values)  # refused before anything is made or started
    started = require_start(resolved.config, import_folders(resolved.config, config), run_dir)
    warnings = (*check_consistency(resolved.config), *started)
    with working_in_new(run_dir, resolved.preset, "run") as folder:
        echo_warnings(warnings)
        use_stack()
        with gc_paused():
            from flows.train import grpo

        _show_training(grpo(config=config, overrides=values, run_dir=str(folder)))


def _resume(run_dir: Path, repair: Repair | None, new_dir: Path | None, given: list[str]) -> None:
    if new_dir is not None:
        raise ConfigError(f"--resume {run_dir}: the run keeps its own folder; leave out --run-dir {new_dir}")
    if configs := [text for text in given if "=" not in text]:
        raise ConfigError(f"--resume {run_dir}: the run keeps its own configuration; leave out {configs[0]}")
    sizes = sizes_to_lower(parse_overrides(given))
    RunDir(run_dir).read_config()
    with working_in(run_dir):
        use_stack()
        with gc_paused():
            from flows.train import resume

        _show_training(resume(run_dir=str(run_dir), repair=repair, **sizes))


def _show_training(summary: "RunSummary") -> None:
    _show(summary)
    if summary.status == "stopped":
        echo(f"stopped early: {summary.reason}", err=True)
        raise typer.Exit(3)


def evaluate(
    policy: Annotated[str, typer.Argument(help="A run dir, a checkpoint, an MLflow run id, or a model.")],
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="Data source, all of whose rows are evaluated.")] = None,
    config: Annotated[
        str | None, typer.Option(help="Preset or file with the settings; left out, those of the policy's run.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the evaluation; a new one under runs/ if left out.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy on its held-out prompts or on any data: the flow `grpo-evaluate`."""
    values = parse_overrides(overrides or [])
    for name, given in {"POLICY": policy, "--data": data, "--config": config}.items():
        refuse_credentials(name, given)  # before it is a flow's parameter, which Prefect keeps
    with messages_to_stderr(as_json), working_in_new(run_dir, "evaluation", "evaluation") as folder:
        use_stack()
        from flows.evaluate import grpo_evaluate

        summary = grpo_evaluate(policy=policy, data=data, config=config, overrides=values, run_dir=str(folder))
    if as_json:
        echo_json(_evaluation(summary))
    else:
        _show(summary)


def _evaluation(summary: "RunSummary") -> dict[str, Any]:
    from grpo_core.evaluation.results import read_estimates

    estimates = read_estimates(RunDir(summary.run_path), "base")
    return {
        "run_dir": str(summary.run_path),
        "facts": summary.facts,
        "estimates": {key: asdict(estimate) for key, estimate in estimates.items()},
        "report": f"{summary.run_path}/report/report.md",
        "mlflow": {**asdict(summary.tracked), "address": summary.tracked.address},
        "problems": summary.problems,
    }


def reproduce(
    run: Annotated[str, typer.Argument(help="A run dir or an MLflow run id.")],
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the repetition; a new one under runs/ if left out.")] = None,
) -> None:
    """Repeat a run from what was recorded of it and compare every figure: exit code 0 if all are identical, 4 if not."""
    values = parse_overrides(overrides or [])
    refuse_credentials("RUN", run)
    with working_in_new(run_dir, "reproduction", "reproduction") as folder:
        use_stack()
        from flows.reproduce import grpo_reproduce

        _show(grpo_reproduce(run=run, overrides=values, run_dir=str(folder)))


def _show(summary: "RunSummary") -> None:
    """Print what came of a run and where to look at it."""
    echo()
    facts = (*summary.facts, *(f"alert: {alert}" for alert in summary.alerts))
    places = (("report", f"{summary.run_path}/report/report.md"), *summary.tracked.places, ("Prefect", runs_in_prefect()))
    echo_result(facts, places, summary.problems)
    if summary.is_identical is False:
        raise typer.Exit(4)


def track(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run that has ended.")], tracking_uri: TrackingUri = None
) -> None:
    """Ship to MLflow what an outage or a cancellation left behind; each figure once, however often this is done."""
    from tasks.tracking.training import track_later

    track_at(tracking_uri)
    tracked, status, problems = track_later(run_dir)
    echo(f"{tracked.name}: {status}")
    echo_places(tracked.places)
    echo_warnings(problems)
    if problems:
        raise typer.Exit(1)


def import_settings(
    file: Annotated[
        Path,
        typer.Argument(help="Settings of TRL, open-r1, ROLL or VLM-R1: YAML, JSON, or the shell script that starts the run."),
    ],
    *,
    source: Annotated[
        str | None, typer.Option("--format", help="trl, open-r1, roll or vlm-r1; left out, the keys tell.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Training processes of that run, if no file tells.")] = None,
    command: Annotated[int | None, typer.Option(min=1, help="Which training of a script that starts several.")] = None,
    trl_version: Annotated[
        str | None, typer.Option(help="Release of TRL whose defaults are taken, such as 0.18; left out, 1.16.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New file for the configuration; left out, it is printed.")
    ] = None,
) -> None:
    """Print or write the configuration equivalent to another system's, with what became of each of its keys as comments."""
    from grpo_core.interop.conversion import import_config
    from grpo_core.interop.report import render, summary

    if output is not None and output.exists():
        raise ConfigError(f"output {output}: is there already, and nothing was changed; give a new name")
    imported = import_config(file, source, processes, command, trl_version)
    if output is None:
        typer.echo(render(imported).rstrip())  # as it is: it may be on its way into a file
    else:
        with raised_as(ConfigError, f"output {output}: cannot be written ({{cause}})", OSError):
            write_whole(output, render(imported))
    echo(summary(imported), err=True)
