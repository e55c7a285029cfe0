"""Standard output and standard error whose reader may leave: `| head`, a `tee` that is killed."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """Write inside to standard output or error; once nobody reads one of them, what is written to it goes nowhere.

    A run does not fail because nobody looks at its lines any more, as it does not when its terminal is closed under `nohup`.
    """
    try:
        yield
    except BrokenPipeError:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
