"""Every error that a user can cause or meet.

    GrpoError
    |- ConfigError       a key, a value or a combination of keys is refused
    |- DataError         prompts cannot be read, mapped or frozen
    |- ModelError        a policy cannot be found or loaded
    |- DeviceError       a GPU is in use by another process
    |- RewardError       a reward function raised or broke its signature
    |- JournalError      a journal or RUN_DIR cannot be used as asked
    |  |- DiskFullError  what a run under way had to write does not fit
    |  `- FolderError    a folder is not ours to write into
    |- TrackingError     the MLflow server or store cannot be used
    |- BusyError         another process holds a lock for too long
    |- StackError        the local stack cannot be started, stopped or reached
    |- SamplerError      a server that makes the rollouts cannot be used
    |  |- ServerGoneError    it does not answer, or failed; another may take its place
    |  `- StaleWeightsError  it computes with other weights than the policy's
    `- TrainingError     the training process failed or was stopped by a rule

A message names the key, the bound, the value and what to do. Commands print the message alone and exit with
`exit_code`: 2 where nothing had been started, 1 where a run was under way. `shown`, `name_of`,
`few_names`, `cause` and `listed` keep a message readable whatever the value is. No message holds a
password of an address, nor a character that a terminal would obey.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from grpo_core.text import for_terminal, redact_uri

MAX_FAULTS = 10
MAX_FAULT_CHARACTERS = 600


class GrpoError(Exception):
    """Base of all errors whose message is meant for the person at the terminal."""

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        """Keep the message as it may be shown: Prefect, the journal and MLflow keep it, too."""
        super().__init__(for_terminal(message))


class ConfigError(GrpoError, ValueError):
    """A key is unknown, a value out of range, or two keys contradict each other."""


class DataError(GrpoError, ValueError):
    """Prompts cannot be read, a column is missing, or nothing is left after filtering."""


class ModelError(GrpoError, ValueError):
    """A model id, path or architecture cannot be used."""


class DeviceError(GrpoError):
    """A GPU is in use by another process, or it cannot be known whether it is."""


class RewardError(GrpoError):
    """A reward function cannot be imported, raised, or returned the wrong number or type of values."""

    exit_code = 1


class JournalError(GrpoError):
    """A journal cannot be read, or a RUN_DIR already holds another run."""


class DiskFullError(JournalError):
    """The disk was full when a run under way had to write its journal, a checkpoint or a table."""

    exit_code = 1


class FolderError(JournalError):
    """A folder is not one that we made, or a deployment may not write there."""


class TrackingError(GrpoError):
    """The tracking server or store cannot be reached or refuses the run."""


class BusyError(GrpoError):
    """Another process holds a lock for longer than anybody should wait."""


class StackError(GrpoError):
    """The local stack of servers and worker cannot be started, stopped or reached."""


class SweepError(GrpoError):
    """A sweep cannot start or resume, or more of its runs failed than it allows."""


class SamplerError(GrpoError):
    """A server that makes the rollouts cannot be started, refuses a request, or is not the one that is needed."""

    exit_code = 1


class ServerGoneError(SamplerError):
    """A server does not answer, or fails; a new one with the same weights would give the same completions."""


class StaleWeightsError(SamplerError):
    """A server computes with other weights than the policy's: a rollout from it would be of another policy."""


class MemoryFullError(GrpoError):
    """There was too little memory, on the GPU or beside it, for a phase of a step."""

    exit_code = 1

    def __init__(self, message: str = "", *, phase: str = "") -> None:
        """Keep the message, and the phase that it happened in."""
        super().__init__(message)
        self.phase = phase


class TrainingError(GrpoError):
    """The training process ended without reaching its last step."""

    exit_code = 1


def shown(value: Any, most: int = 80) -> str:
    """Return a value as a message shows it: in one line, cut to `most` characters.

    >>> shown([1] * 100, most=12)
    '[1, 1, 1,...'
    """
    try:
        text = redact_uri(repr(value))  # before it is cut: half a password has nothing by which it is recognised
    except (ValueError, RecursionError):  # an integer of thousands of digits; a thousand lists within each other
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def name_of(key: str | int, most: int = 80) -> str:
    r"""Return a key or file name as a line can hold it: as it is, or as `shown` does where it is long or would break the line.

    >>> print(name_of("loss.beta"), name_of(3), name_of(" \u2028"))
    loss.beta 3 ' \u2028'
    """
    return key if isinstance(key, str) and key.isprintable() and len(key) <= most else shown(key, most)


def few_names(names: Iterable[str | int], most: int) -> str:
    """Return some names in one line, and how many more there are.

    >>> few_names("abcdef", 4)
    'a, b, c, d and 2 more'
    """
    names = list(names)
    return ", ".join(map(name_of, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


@contextlib.contextmanager
def raised_as(kind: type[GrpoError], message: str, *caught: type[Exception]) -> Iterator[None]:
    """Raise the errors that are caught inside as one of ours, which says in place of `{cause}` what was wrong.

    Args:
        kind: of the error that is raised.
        message: what cannot be done, why (`{cause}`), and what to do instead.
        caught: kinds of errors; an error that is ours already stays as it is.
    """
    try:
        yield
    except caught as error:
        if isinstance(error, GrpoError):
            raise
        raise kind(message.replace("{cause}", getattr(error, "strerror", None) or cause(error))) from error


def cause(error: BaseException, most: int = 300) -> str:
    """Return the message of another error in one line; its type where it has none.

    >>> cause(KeyError("loss"))
    "'loss'"
    """
    text = redact_uri(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(faults: Sequence[str]) -> str:
    """Return faults, one a line: as many, and as much of each, as a person reads."""
    lines = [text if len(text) <= MAX_FAULT_CHARACTERS else f"{text[:MAX_FAULT_CHARACTERS]}..." for text in faults[:MAX_FAULTS]]
    return "\n".join([*lines, *([f"... and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else [])])
