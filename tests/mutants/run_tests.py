"""One pytest run on the tree in the current folder: `python -m tests.mutants.run_tests OUTCOME.json TEST...`.

It is a process of its own because a mutated module has to be imported afresh, and it asks the interpreter which `grpo_core`
the tests get: an installed one, editable or not, would let every mutation survive or, worse, die by chance.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import grpo_core


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


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group (hypothesis raises one for several failures), or the one given."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def main(arguments: Sequence[str]) -> int:
    """Run the tests and write {"package": path, "exit": code, ...what failed first} to the file named first."""
    outcome, *tests = arguments
    package = str(Path(grpo_core.__file__).resolve())
    first = FirstFailure()
    code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[first]))
    Path(outcome).write_text(json.dumps({"package": package, "exit": code, **first.seen}))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
