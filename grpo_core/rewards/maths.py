"""Mathematical equality with the gold answer, by math-verify, in a worker process that can be killed.

Parsing goes through sympy, which can take unbounded time on hostile text, and math-verify's own time limit uses signals, which
only work in a main thread. So every batch is checked in a worker without that limit. An answer that takes longer than
`SECONDS_PER_ANSWER` kills its worker, scores 0, and is logged; so does one that crashes the parser. Model output is parsed as
LaTeX or as a plain expression by math-verify's grammar; it is not evaluated as Python.
"""

import atexit
import logging
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from grpo_core.rewards.base import completion_text

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 4000
"""Only the last so many characters of a completion are parsed: the answer is at its end."""
SECONDS_PER_ANSWER = 10.0
SECONDS_TO_START = 120.0


def math_answer(prompts: list[Any], completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
    """Return 1 where the last answer in the completion equals the gold answer, else 0; None where the gold cannot be parsed."""
    pairs = zip(answer, completions, strict=True)
    return [_WORKER.check(gold, completion_text(completion)[-MAX_CHARACTERS:]) for gold, completion in pairs]


class _Worker:
    """One process that parses and compares; replaced after a timeout."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def check(self, gold: str, text: str) -> float | None:
        pipe = self._pipe or self._start()
        pipe.send((gold, text))
        fault = f"no verdict within {SECONDS_PER_ANSWER:.0f} s"
        if pipe.poll(SECONDS_PER_ANSWER):
            try:
                return cast("float | None", pipe.recv())
            except EOFError:
                fault = "the parser died on it"
        self.stop()
        logger.warning("math_answer: %s, scored 0: %r", fault, text[-200:])
        return 0.0

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(SECONDS_TO_START):
            self.stop()
            raise TimeoutError(f"the math-verify worker did not start within {SECONDS_TO_START:.0f} s")
        self._pipe.recv()
        return self._pipe

    def stop(self) -> None:
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None


def _serve(pipe: Connection) -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    from math_verify import parse, verify

    pipe.send("ready")
    while True:
        try:
            gold, text = pipe.recv()
        except EOFError:
            return
        expected = parse(f"${gold}$", parsing_timeout=None)
        pipe.send(float(verify(expected, parse(text, parsing_timeout=None), timeout_seconds=None)) if expected else None)


_WORKER = _Worker()
atexit.register(_WORKER.stop)
