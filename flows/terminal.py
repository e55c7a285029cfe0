"""What the `grpo` command prints: lines in which nothing acts on the terminal and no password stands."""

import traceback
from collections.abc import Iterable

import typer

from grpo_core.plain_text import for_terminal, visible
from grpo_core.redaction import redact_uri


def echo(line: str = "", err: bool = False) -> None:
    """Print one line; a line break in it is shown, not obeyed: a run's name cannot look like a line of the command's own."""
    typer.echo(visible(redact_uri(line)), err=err)


def echo_text(text: str, err: bool = False) -> None:
    """Print a text of several lines."""
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
    for label, place in places:
        echo(f"{label:10}{place}")
    echo_warnings(problems)


def echo_traceback() -> None:
    """Print the traceback of the error that is being handled."""
    echo_text(traceback.format_exc().rstrip("\n"), err=True)
