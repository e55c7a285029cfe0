"""Mathematical equality with the gold answer, by math-verify, in a worker process that can be killed.

Parsing goes through sympy, which can take unbounded time on hostile text, and math-verify's own time limit uses signals, which
only work in a main thread. So every batch is checked in a worker without that limit; one answer that takes longer than
`SECONDS_PER_ANSWER` costs its worker the life, scores 0, and is logged; so does one
that kills the parser. Model output is parsed as LaTeX or as a plain
expression by math-verify's grammar; it is not evaluated as Python.
"""

import atexit
import logging
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from grpo_core.rewards.base import completion_text

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 4000
"""Only the last so many characters of a completion are parsed: the answer is at its end."""
SECONDS_PER_ANSWER = 10.0
SECONDS_TO_START = 120.0


def math_answer(prompts: list[Any], completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
    """Return 1 where the last answer in the completion equals the gold answer, else 0; None where the gold cannot be parsed."""
    texts = [completion_text(completion)[-MAX_CHARACTERS:] for completion in completions]
    return [_WORKER.check(gold, text) for gold, text in zip(answer, texts, strict=True)]


class _Worker:
    """One process that parses and compares; replaced after a timeout."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def check(self, gold: str, text: str) -> float | None:
        pipe = self._pipe or self._start()
        pipe.send((gold, text))
        if not pipe.poll(SECONDS_PER_ANSWER):
            self.stop()
            logger.warning("math_answer: no verdict within %.0f s, scored 0: %r", SECONDS_PER_ANSWER, text[-200:])
            return 0.0
        try:
            verdict: float | None = pipe.recv()
        except EOFError:
            self.stop()
            logger.warning("math_answer: the parser died on it, scored 0: %r", text[-200:])
            return 0.0
        return verdict

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
