"""What the `grpo` command prints: lines in which nothing acts on the terminal and no password stands."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from grpo_core.machine.process import ignore_broken_pipe
from grpo_core.run.journal import finite
from grpo_core.text import for_terminal, redact_uri, visible

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; messages go to standard error.")]


def echo(line: str = "", err: bool = False, fg: str | None = None) -> None:
    """Print one line; a line break in it is shown, not obeyed: a run's name cannot look like a line of the command's own.

    At a terminal it has the colour `fg`.
    """
    text = visible(redact_uri(line))
    with ignore_broken_pipe():
        typer.echo(typer.style(text, fg=fg) if fg else text, err=err)


def echo_text(text: str, err: bool = False) -> None:
    """Print a text of several lines."""
    with ignore_broken_pipe():
        typer.echo(for_terminal(text), err=err)


def echo_warnings(warnings: Iterable[str], err: bool = True) -> None:
    """Print each warning on a line of its own."""
    for warning in warnings:
        echo(f"warning: {warning}", err=err)


def echo_result(facts: Iterable[str], places: Iterable[tuple[str, str]], problems: Iterable[str]) -> None:
    """Print what came of a run or sweep, where to look at it, each place with its label, and what could not be tracked."""
    for fact in facts:
        echo(f"  {fact}")
    echo()
    echo_places(places)
    echo_warnings(problems)


def echo_places(places: Iterable[tuple[str, str]]) -> None:
    """Print where to look, each place with its label."""
    for label, place in places:
        echo(f"{label:10}{place}")


@contextlib.contextmanager
def messages_to_stderr(wanted: bool) -> Iterator[None]:
    """Send what this process and its children print inside to standard error, so that standard output holds JSON alone.

    The file descriptor is exchanged, not `sys.stdout`: libraries and children write to the descriptor.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        with contextlib.suppress(OSError):  # nobody reads standard error any more
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def echo_json(document: Any) -> None:
    """Print a JSON document in ASCII, so that nothing in it acts on a terminal; without passwords, NaN as a string."""
    with ignore_broken_pipe():
        typer.echo(json.dumps(_printable(finite(document)), indent=2, allow_nan=False, default=str))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return redact_uri(value)
    if isinstance(value, dict):
        return {str(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value
