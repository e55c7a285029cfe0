"""A server of pytest runs on the tree in the current folder: `python -m tests.mutants.run_tests`.

It imports what is no part of the repository once, reads one request a line from its standard input ({"tests": [...],
"first": test, "options": [...], "timeout": seconds}), and forks a process for each: a mutated module has to be imported afresh,
torch and pytest have not. The answer, a line of JSON, also names the `grpo_core` that the tests got: an installed one, editable
or not, would let every mutation survive or, worse, die by chance.
"""

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import beartype
import hypothesis.strategies
import jaxtyping
import numpy
import pandas
import pydantic
import pytest
import reasoning_gym
import scipy.stats
import torch
import torch.distributed.fsdp
import transformers

PRELOADED = (
    beartype,
    hypothesis,
    jaxtyping,
    numpy,
    pandas,
    pydantic,
    reasoning_gym,
    scipy,
    torch,
    transformers.LlamaForCausalLM,
    transformers.PreTrainedTokenizerFast,
)
TIMED_OUT = "timed out"


class FirstFailure:
    """A pytest plugin that remembers the first thing that went wrong."""

    def __init__(self) -> None:
        """Start with nothing wrong."""
        self.seen: dict[str, object] = {}

    def pytest_exception_interact(
        self,
        node: pytest.Item | pytest.Collector,
        call: pytest.CallInfo[object],
        report: pytest.CollectReport | pytest.TestReport,
    ) -> None:
        """Keep where it was, in which phase, and of which types the exceptions were."""
        if not self.seen and call.excinfo is not None:
            names = sorted({type(error).__name__ for error in leaves(call.excinfo.value)})
            self.seen = {"test": node.nodeid, "phase": report.when, "exceptions": names}


class Before:
    """A pytest plugin that runs one test, if it is there, before all others."""

    def __init__(self, test: str) -> None:
        """Keep its name."""
        self._test = test

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Move it to the front."""
        items.sort(key=lambda item: item.nodeid != self._test)


class NoShrinking:
    """A pytest plugin by which Hypothesis reports the first example that fails: nobody reads the smallest one here."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Change the profile that tests/conftest.py has loaded."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group (hypothesis raises one for several failures), or the one given."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def run(tests: Sequence[str], before: str, options: Sequence[str]) -> dict[str, object]:
    """Run the tests in this process and return {"package": path, "exit": code, ...what failed first}."""
    import grpo_core

    first = FirstFailure()
    fixed = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = int(pytest.main([*fixed, *options, *tests], plugins=[first, Before(before), NoShrinking()]))
    return {"package": str(Path(grpo_core.__file__ or "").resolve()), "exit": code, **first.seen}


def have_a_rank_server_ready(unused: int) -> None:
    """Fork a process that becomes the server of ranks in these tests if one is wanted, and ends with this one."""
    (asked, ask), (answers, answer) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for number in (ask, answers, unused):
            os.close(number)
        try:
            from tests.support.ranks import wait_to_be_used

            with os.fdopen(asked) as questions, os.fdopen(answer, "w") as replies:
                wait_to_be_used(questions, replies)
        except SystemExit as ended:  # a rank's
            os._exit(int(ended.code or 0))
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)
    os.close(asked)
    os.close(answer)
    os.environ["GRPO_RANK_SERVER"] = f"{ask} {answers}"


def run_forked(request: dict[str, Any]) -> dict[str, object]:
    """Run the tests of a request in a process of their own, for `timeout` seconds at most."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, this copy of the server must not return into its loop.
        try:
            os.close(reading)
            # What the tests print is not an answer.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            have_a_rank_server_ready(writing)
            with os.fdopen(writing, "w") as answer:
                answer.write(json.dumps(run(request["tests"], request["first"], request["options"])))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        if not select.select([answer], [], [], request["timeout"])[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"exit": 1, "exceptions": [TIMED_OUT]}
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"exit": os.waitstatus_to_exitcode(status) or 1, "exceptions": ["no answer"]}


def main() -> int:
    """Answer requests until the end of the standard input."""
    # What is loaded stays: a child need not look through it each time that pytest collects garbage.
    gc.freeze()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_forked(json.loads(line))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
