"""The verbs of the `grpo` command that run something: a training, an evaluation, a repetition.

The first line of each is its folder, and the last one, where it did not finish, how to resume.
"""

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli.experiment import Overrides, complete_config, run_path
from flows.stack.servers import TrackingUri, track_at, use_stack
from flows.terminal import AsJson, echo, echo_json, echo_result, echo_warnings, messages_to_stderr
from grpo_core.config import RunConfig, check_consistency, load, parse_overrides
from grpo_core.config.section import refuse_credentials
from grpo_core.errors import ConfigError, GrpoError
from grpo_core.machine.process import gc_paused
from grpo_core.machine.slots import slot_limit
from grpo_core.run.child import child_environment, import_folders, interpreter
from grpo_core.run.flow_folder import Kind, make_folder, named_folder
from grpo_core.run.folder import RunDir, passes_to_change
from grpo_core.run.resuming import path_argument, resume_command
from grpo_core.run.summary import run_status
from grpo_core.run.warm import end_ready, warmed
from grpo_core.sweep.folder import SweepDir
from tasks.process.context import prefect_is_embedded

if TYPE_CHECKING:
    from grpo_core.run.curves import Run
    from tasks.run.reporting import RunSummary

Repair = Literal["cut"]
ResumedRun = Annotated[
    Path | None,
    typer.Option(
        help="Resume this run; training.microbatch_tokens and training.rollout_rows may be lowered, where it was out of "
        "memory, and training.processes and training.shards set.",
        parser=run_path,
        metavar="RUN",
    ),
]
HISTORY = "PREFECT_SERVER_API_AUTH_STRING=me:SECRET prefect server start, then http://127.0.0.1:4200 (it asks for me:SECRET)"
RESUME = "resume with: "
STORE = "mlflow.store.tracking.sqlalchemy_store"
"""What opening a run at MLflow imports."""
_left: list[tuple[Path, BaseException]] = []
"""At most one: the folder of the command that this process runs, which is about to end, and with what."""


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Print the folder of a run or sweep; where what is inside ends with an error, `print_how_to_resume` has it."""
    echo(f"{'folder':10}{folder}")
    try:
        yield
    except BaseException as error:
        _left[:] = [(folder, error)]
        raise


@contextlib.contextmanager
def working_in_new(folder: Path | None, name: str, kind: Kind) -> Iterator[Path]:
    """Yield the folder of a run or sweep that begins, after printing it.

    Args:
        folder: where it is to be; None = a new folder below `runs/`, which is removed again where nothing is begun in it.
        name: of a new folder.
        kind: of what begins.

    Raises:
        JournalError, SweepError: the folder already holds a run or sweep.
    """
    path = folder or make_folder(name)
    sweep_dir, run_dir = SweepDir(path), RunDir(path)
    if kind == "sweep":
        sweep_dir.refuse_second_sweep()
    else:
        run_dir.refuse_second_run()
    try:
        if folder is None:
            (sweep_dir if kind == "sweep" else run_dir).mark(kind)  # now: `grpo clean` lists what a kill leaves
        with working_in(path):
            yield path
    except BaseException:
        if folder is None and not (sweep_dir.sweep_file.exists() or run_dir.config_file.exists()):
            shutil.rmtree(path, ignore_errors=True)  # made a moment ago
        raise


def print_how_to_resume() -> None:
    """Print the command that resumes what this process's command has left unfinished, if there is anything to resume."""
    for path, error in _left:
        if str(error).startswith("model.") and not RunDir(path).checkpoints.exists():
            continue  # this key's fault: the same configuration would meet the same model
        if "/".join(RunDir(path).images.parts[-3:]) in str(error):
            continue  # an image is missing or was changed: the command would meet it again
        from grpo_core.sweep.status import command_that_resumes  # loads pandas: not for a command that left nothing

        command = command_that_resumes(path, has_prompts=isinstance(error, Exception))
        with contextlib.suppress(OSError):  # nobody reads standard error any more
            if command is not None:
                echo(f"{RESUME}{command}", err=True)


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
    resume: ResumedRun = None,
    repair: Annotated[Repair | None, typer.Option(help="With --resume: cut a damaged journal back to a checkpoint.")] = None,
    *,
    continued: Annotated[
        str | None,
        typer.Option(
            "--continue",
            help="Fork this run at its newest checkpoint: no CONFIG is given then, but what differs: training.steps=120.",
            parser=named_folder,
            metavar="RUN",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Without Prefect and MLflow; `grpo track` sends the run to MLflow afterwards.")
    ] = False,
    tracking_uri: TrackingUri = None,
) -> None:
    """Prepare, evaluate, train, monitor, evaluate again and report: `grpo train quickstart loss.beta=0.1 training.steps=20`."""
    if resume is not None:
        track_at(tracking_uri)
        # Without a CONFIG the first override stands in its place.
        instead = [value for value in (config, *(overrides or []), run_dir, continued) if value is not None]
        _resume(resume, repair, instead, is_plain=plain)
        return
    given = parse_overrides([*([config] if config and continued else []), *(overrides or [])])
    begins = begun(continued or config, {"--repair": repair, "--tracking-uri": tracking_uri})
    (_train_plainly if plain else start)(begins, given, run_dir, continued)


def _train_plainly(config: str, values: dict[str, Any], run_dir: Path | None, parent: str | None) -> None:
    from grpo_core.run.forking import fork_of
    from grpo_core.training.from_python import train as train_here

    resolved = load(config, values) if parent is None else fork_of(parent, values)
    with _ready_for(resolved.config), working_in_new(run_dir, resolved.preset, "run") as folder:
        run = train_here(config, overrides=values, run_dir=folder, continue_from=parent)
    _show_plainly(run)


def _show_plainly(run: "Run") -> None:
    from grpo_core.run.summary import compare_evaluations, describe_result
    from grpo_core.run_page.page import write_page

    write_page(run.dir)
    facts = describe_result(run.records, compare_evaluations(run.dir))
    echo_result(facts, (("page", str(run.dir.page)), ("MLflow", f"grpo track {run.path}")), ())
    if run.state == "stopped":
        raise typer.Exit(3)


def start(config: str, values: dict[str, Any], run_dir: Path | None, parent: str | None) -> None:
    """Begin a run and show what came of it; with a `parent` a fork of that one, and `config` is not read."""
    from grpo_core.run.forking import fork_of
    from grpo_core.run.preflight import require_start

    # Refused before anything is made or started.
    resolved = load(config, values) if parent is None else fork_of(parent, values)
    folders = resolved.import_from or import_folders(resolved.config, None if parent else config)
    with _ready_for(resolved.config):
        started = require_start(resolved.config, folders, run_dir)
        with working_in_new(run_dir, resolved.preset, "run") as folder:
            echo_warnings((*check_consistency(resolved.config), *resolved.warnings, *started))
            with imported("flows.train", STORE):
                use_stack()
            from flows.train import grpo, grpo_fork

            show_result(
                grpo(config=config, overrides=values, run_dir=str(folder))
                if parent is None
                else grpo_fork(run=parent, overrides=values, run_dir=str(folder))
            )


def _ready_for(config: RunConfig) -> contextlib.AbstractContextManager[None]:
    """Have a process ready for a run that can take it: not one with slots, whose GPUs are known late."""
    training = config.training
    if slot_limit() or training.processes > 1 or interpreter(training.python) != sys.executable:
        end_ready()  # that a sweep has started
        return contextlib.nullcontext()
    return warmed(child_environment())


@contextlib.contextmanager
def imported(*modules: str) -> Iterator[None]:
    """Import modules beside what is inside: it waits for a server."""
    with gc_paused(), ThreadPoolExecutor(1) as beside:
        done = beside.map(importlib.import_module, modules)
        yield
        list(done)


def begun(what: str | None, of_resume: dict[str, object]) -> str:
    """Return what a command begins with, which has no option that is for a resume alone."""
    if given := [option for option, value in of_resume.items() if value]:
        raise ConfigError(f"{given[0]}: is for what is resumed; give --resume FOLDER, too (where a run tracks: tracking.uri)")
    if what is None:
        raise ConfigError("give a preset (`quickstart`), a sweep or a file to begin with, or --resume FOLDER")
    return what


def _resume(run_dir: Path, repair: Repair | None, given: list[str | Path], *, is_plain: bool) -> None:
    sizes = [value for value in given if isinstance(value, str) and "=" in value]
    if other := [value for value in given if value not in sizes]:
        raise ConfigError(f"--resume {run_dir}: the run keeps its own folder and configuration; leave out {other[0]}")
    if is_plain and repair is not None:
        raise ConfigError(f"--plain: repairs no journal; leave it out with --repair {repair}")
    from grpo_core.run.forking import checkpoints_of

    folder, way_on = RunDir(run_dir), f"grpo train --continue {path_argument(run_dir)}"
    changed = passes_to_change(parse_overrides(sizes), " ".join((way_on, *sizes)))
    steps = (config := folder.read_config()).training.steps
    with contextlib.suppress(GrpoError):  # what is wrong with the run the flow says, and what to do
        if repair is None and run_status(folder).state == "finished" and resume_command(folder) is None:
            echo(f"already finished; more steps: `{way_on} training.steps={2 * steps}`")
            echo(f"what MLflow may lack of it: `grpo track {run_dir}`")
            return
    with _ready_for(config), working_in(run_dir):
        echo(f"resuming at step {max(checkpoints_of(folder), default=0)} of {steps}")
        if is_plain:
            from grpo_core.training.from_python import resume_training

            _show_plainly(resume_training(run_dir, overrides={f"training.{field}": size for field, size in changed.items()}))
            return
        use_stack()
        with gc_paused():
            from flows.train import resume

        show_result(resume(run_dir=str(run_dir), repair=repair, **changed))


def join(
    run_dir: Annotated[Path, typer.Argument(help="The run, whose folder all nodes share.", parser=run_path, metavar="RUN")],
) -> None:
    """Start this node's processes of a training on several nodes, once `grpo train` on the first one has come to it."""
    from grpo_core.parallel.launch import join as become_launcher

    echo(f"{'folder':10}{run_dir}")
    become_launcher(RunDir(run_dir))
    echo("the run is finished")


def evaluate(
    policy: Annotated[
        str, typer.Argument(help="A run, a checkpoint, an MLflow run id, or a model.", parser=named_folder, metavar="POLICY")
    ],
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
    if not as_json:
        show_result(summary)
        return
    from grpo_core.evaluation.results import read_estimates

    estimates = read_estimates(RunDir(summary.run_path), "base")
    echo_json(
        {
            "run_dir": str(summary.run_path),
            "facts": summary.facts,
            "estimates": {key: asdict(estimate) for key, estimate in estimates.items()},
            "report": f"{summary.run_path}/report/report.md",
            "mlflow": {**asdict(summary.tracked), "address": summary.tracked.address},
            "problems": summary.problems,
        }
    )


def reproduce(
    run: Annotated[str, typer.Argument(help="A run, or an MLflow run id.", parser=named_folder, metavar="RUN")],
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the repetition; a new one under runs/ if left out.")] = None,
) -> None:
    """Repeat a run from what was recorded of it and compare every figure: exit code 0 if all are identical, 4 if not."""
    values = parse_overrides(overrides or [])
    refuse_credentials("RUN", run)
    with working_in_new(run_dir, "reproduction", "reproduction") as folder:
        use_stack()
        from flows.train import grpo_reproduce

        show_result(grpo_reproduce(run=run, overrides=values, run_dir=str(folder)))


def show_result(summary: "RunSummary") -> None:
    """Print what came of a run and where to look at it: of an embedded server, which is gone, how its database is shown."""
    echo()
    server = "" if prefect_is_embedded() else os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    for alert in summary.alerts:
        echo(f"  alert: {alert}", fg="red" if alert in str(summary.reason) else "yellow")
    is_evaluation = RunDir(summary.run_path).kind == "evaluation"
    name, file = ("report", "report/report.md") if is_evaluation else ("page", "index.html")
    places = ((name, f"{summary.run_path}/{file}"), *summary.tracked.places, ("Prefect", server or HISTORY))
    echo_result(summary.facts, places, summary.problems)
    if summary.is_identical is None and summary.status == "stopped":
        echo(f"stopped early: {summary.reason}", err=True)
        raise typer.Exit(3)
    if summary.is_identical is False:
        raise typer.Exit(4)
