"""The `grpo` command: every verb calls a flow or one function."""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Annotated

import typer

from flows.cli.experiment import check, import_settings, init
from flows.cli.fork import fork
from flows.cli.results import clean, compare, export, report, runs, samples, status, track, try_prompt, why
from flows.cli.run import evaluate, join, print_how_to_resume, reproduce, train
from flows.cli.stack import down, ui, up
from flows.cli.sweep import sweep
from flows.signals import ended_like_ctrl_c
from flows.terminal import echo, echo_text
from grpo_core.config.loading import known_keys
from grpo_core.errors import MAX_FAULT_CHARACTERS, ConfigError, GrpoError, cause
from grpo_core.interop.conversion import name_here
from grpo_core.machine.process import exit_with_lifeline
from tasks.credentials import move_credentials
from tasks.plain_logs import QUIET

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {"init": init, "import-config": import_settings, "check": check, "train": train, "fork": fork, "join": join},
    "Watch": {
        "runs": runs,
        "status": status,
        "samples": samples,
        "why": why,
        "try": try_prompt,
        "compare": compare,
        "report": report,
        "ui": ui,
    },
    "Sweep": {"sweep": sweep},
    "Hand on": {"evaluate": evaluate, "reproduce": reproduce, "export": export},
    "Servers": {"up": up, "down": down},
    "Repair": {"track": track, "clean": clean},
}
VERBS = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}
OTHER_NAMES = {"list": "runs", "ls": "runs", "logs": "status", "completions": "samples", "dashboard": "compare"}


for panel, verbs in GROUPS.items():
    for name, verb in verbs.items():
        app.command(name, rich_help_panel=panel)(verb)

DEBUG = "--debug"


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"grpo-flow {metadata.version('grpo-flow')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[  # for the help: `main` takes it off the line
        bool, typer.Option(DEBUG, help="Show the traceback of an error, and Prefect's log. Anywhere on the line.")
    ] = False,
) -> None:
    """Run GRPO experiments that can be trusted and repeated: `grpo train quickstart loss.beta=0.1`."""


def _refuse_other_names(verb: str = "", *given: str) -> None:
    """Refuse a verb of other tools, and a key that is given as an option, with their names here."""
    if (here := OTHER_NAMES.get(verb)) in VERBS:
        raise ConfigError(f"{verb}: no such command; did you mean `grpo {here}`?")
    if verb not in ("train", "check", "sweep"):
        return
    for option, value in zip(given, (*given[1:], "..."), strict=False):
        if not option.startswith("--"):
            continue
        name, _, own = option.removeprefix("--").replace("-", "_").partition("=")
        keys = [f"{key.replace('*', '0')}={own or value}" for key in known_keys() if key.rpartition(".")[2] == name]
        meant = f"did you mean {' or '.join(keys)}, without dashes?" if keys else name_here(name)
        if meant:
            raise ConfigError(f"{option}: no such option; {meant}")


def main() -> None:
    """Run the command; an error is one message and an exit code, with --debug (anywhere on the line) also a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    debug = len(arguments) < len(sys.argv) - 1
    for name, value in QUIET.items():  # read when Prefect and MLflow are imported
        if not (debug and name.endswith("LOGGING_LEVEL")):
            os.environ.setdefault(name, value)
    exit_with_lifeline()  # a run that a sweep has started ends with it
    if not debug:
        # Each attempt to reach a server that is away; the monitor reports it once.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    try:
        _refuse_other_names(*arguments)
        move_credentials()
        with ended_like_ctrl_c():
            app(arguments)
    except Exception as error:  # noqa: BLE001  (whatever goes wrong is a message)
        if debug:
            echo_text(traceback.format_exc().rstrip("\n"), err=True)
        if isinstance(error, GrpoError):
            echo_text(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        what = cause(error, most=MAX_FAULT_CHARACTERS)
        echo(f"error: {type(error).__name__}: {what} (unexpected; {DEBUG} shows the traceback)", err=True)
        sys.exit(1)
    finally:
        print_how_to_resume()
