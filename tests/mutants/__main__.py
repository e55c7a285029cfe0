"""Plant every mutation of the table in a copy of the repository and require the unit tests to notice.

python -m tests.mutants                         all of them
python -m tests.mutants -k clip                 those with "clip" in their name
python -m tests.mutants --hypothesis-seed 1     property tests try other examples
python -m tests.mutants --record                write down which test killed which

killers.txt has for each mutation the test that killed it before: it is run first, the others follow where it passes. The
tests that have killed are run without any mutation in the end; where one fails then, its kills prove nothing.

The working tree is copied at the start and never written to. A mutation is killed where an assertion of a test fails; one
that merely breaks an import, a fixture or a call proves nothing about the tests and counts as broken. Exit code 1 unless
all are killed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from tests.mutants.mutation import Mutation, NotOnceError
from tests.mutants.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
COPIED = ("grpo_core", "tests", "pyproject.toml")
AT_ONCE = 2
TIMEOUT_SECONDS = 240.0
KILLERS = Path(__file__).with_name("killers.txt")
TIMED_OUT = "timed out"
UNIT = "tests/unit/"
ASSERTIONS = {"AssertionError", "Failed", "TypeCheckError"}
"""`Failed` is of `pytest.raises`, `TypeCheckError` of the shapes in signatures."""


class Verdict(StrEnum):
    """What became of a mutation."""

    KILLED = "killed by"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"
    """The tests failed otherwise than by an assertion."""
    STALE = "NO SUCH EXPRESSION"
    TIMED_OUT = "TIMED OUT"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A mutation and what became of it."""

    mutation: Mutation
    verdict: Verdict
    detail: str = ""
    """The test that killed it, or what happened instead."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `run_tests.py` answers of one run."""

    exit: int
    """pytest's exit code, or the process's own where it ended before pytest did."""
    test: str = ""
    """Where the first failure was."""
    phase: str = ""
    """`collect`, `setup`, `call` or `teardown`."""
    exceptions: tuple[str, ...] = ()
    """Their types."""


def judge(outcome: Outcome) -> tuple[Verdict, str]:
    """Return the verdict on a mutated run, and the test or the reason."""
    if outcome.exit == 0:
        return Verdict.SURVIVED, ""
    by_assertion = bool(outcome.exceptions) and set(outcome.exceptions) <= ASSERTIONS
    if outcome.exit == 1 and outcome.phase == "call" and by_assertion:
        return Verdict.KILLED, outcome.test.removeprefix(UNIT)
    if outcome.exceptions == (TIMED_OUT,):
        return Verdict.TIMED_OUT, f"after {TIMEOUT_SECONDS:.0f} s"
    raised = ", ".join(outcome.exceptions) or "no failed test"
    return Verdict.BROKEN, f"pytest exit {outcome.exit}, {raised} in {outcome.phase or 'start'} of {outcome.test or '-'}"


class Copy:
    """A copy of what the tests need, and a server of test runs on it."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        """Copy the tree into a new folder and start the server; `options` go to pytest."""
        self.folder = folder / "tree"
        self._options = list(options)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, self.folder / name)
        self._time = int(time.time())
        # What the tests leave behind goes with the copy.
        temporary = folder / "temporary"
        temporary.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each mutation would compile all tests again
        command = [sys.executable, "-m", "tests.mutants.run_tests"]
        self._server = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and what it runs."""
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()

    def write(self, file: str, text: str) -> None:
        """Write a file at a time of its own: byte code is known by second and length, which two mutations may share."""
        path = self.folder / file
        path.write_text(text)
        self._time += 1
        os.utime(path, (self._time, self._time))

    def run_tests(self, tests: Iterable[str], first: str = "") -> Outcome:
        """Run unit tests or files of them in the copy, one of them `first`.

        Raises:
            RuntimeError: the server has died, or the tests got a package from outside the copy.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {"tests": [UNIT + test for test in tests], "first": UNIT + first, "options": self._options}
        self._server.stdin.write(json.dumps({**request, "timeout": TIMEOUT_SECONDS}) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server of test runs has ended with exit code {self._server.wait()}")
        values = json.loads(answer)
        package = values.pop("package", None)
        if package is not None and not Path(package).is_relative_to(self.folder):
            raise RuntimeError(f"the tests import {package}, which is not in {self.folder}")
        return Outcome(**values | {"exceptions": tuple(values.get("exceptions", ()))})


def try_mutation(mutation: Mutation, copy: Copy, first: str) -> Result:
    """Plant a mutation in a copy, run its tests, one of them `first`, and take it out again."""
    started = time.monotonic()
    original = (copy.folder / mutation.file).read_text()
    try:
        copy.write(mutation.file, mutation.apply(original))
        verdict, detail = judge(copy.run_tests((f"{name}.py" for name in mutation.tests), first))
    except NotOnceError as error:
        verdict, detail = Verdict.STALE, str(error)
    finally:
        copy.write(mutation.file, original)
    return Result(mutation=mutation, verdict=verdict, detail=detail, seconds=time.monotonic() - started)


def read_killers() -> dict[str, str]:
    """Return {mutation: the test that killed it before}."""
    return dict(line.split("  ", 1) for line in KILLERS.read_text().splitlines())


def write_killers(results: Sequence[Result]) -> None:
    """Write down which test killed which mutation; what was not tried keeps its line."""
    known = {mutation.name for mutation in MUTATIONS}
    killed = {name: test for name, test in read_killers().items() if name in known}
    killed |= {result.mutation.name: result.detail for result in results if result.verdict is Verdict.KILLED}
    KILLERS.write_text("".join(f"{name}  {test}\n" for name, test in sorted(killed.items())))


def try_without(results: Sequence[Result], copies: Sequence[Copy]) -> list[Outcome]:
    """Run the tests that have killed without any mutation."""
    tests = sorted({result.detail for result in results if result.verdict is Verdict.KILLED})
    with ThreadPoolExecutor() as pool:
        shares = [share for number in range(len(copies)) if (share := tests[number :: len(copies)])]
        return list(pool.map(Copy.run_tests, copies, shares))


def try_all(mutations: Sequence[Mutation], copies: Sequence[Copy]) -> list[Result]:
    """Try the mutations, one at a time in each copy, and print what became of each as soon as it is known."""
    killers = read_killers()
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def attempt(mutation: Mutation) -> Result:
        copy = free.get()
        try:
            return try_mutation(mutation, copy, killers.get(mutation.name, ""))
        finally:
            free.put(copy)

    with ThreadPoolExecutor(max_workers=len(copies)) as pool:
        futures = [pool.submit(attempt, mutation) for mutation in mutations]
        for number, future in enumerate(as_completed(futures), start=1):
            one = future.result()
            say(f"[{number:3}/{len(futures)}] {one.mutation.name}: {one.verdict} {one.detail} ({one.seconds:.1f} s)")
    return [future.result() for future in futures]


def summary(results: Sequence[Result]) -> str:
    """Return a table of all results, those that were not killed last, each with why it matters."""
    width = max(len(result.mutation.name) for result in results)
    killed = [result for result in results if result.verdict is Verdict.KILLED]
    others = [result for result in results if result.verdict is not Verdict.KILLED]
    lines = [f"{result.mutation.name:{width}}  {result.detail}" for result in killed]
    for result in others:
        lines.append(f"{result.mutation.name:{width}}  {result.verdict} {result.detail}".rstrip())
        lines.append(f"{'':{width}}  {result.mutation.file}: {result.mutation.why}")
    return "\n".join([f"{'mutation':{width}}  killed by", "-" * (width + 40), *lines])


def say(line: str) -> None:
    """Print a line at once, into a pipe too."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where every selected mutation is killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-k", dest="substring", default="", help="only mutations with this in their name")
    parser.add_argument("--hypothesis-seed", type=int, help="let property tests try other examples than they do in `make test`")
    parser.add_argument("--record", action="store_true", help=f"write into {KILLERS.name} which test killed which")
    asked = parser.parse_args(arguments)
    selected = [mutation for mutation in MUTATIONS if asked.substring in mutation.name]
    if not selected:
        parser.error(f"no mutation has {asked.substring!r} in its name")
    options = [] if asked.hypothesis_seed is None else [f"--hypothesis-seed={asked.hypothesis_seed}"]
    started = time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))).resolve()
        copies = [stack.enter_context(Copy(scratch / str(number), options)) for number in range(AT_ONCE)]
        results = try_all(selected, copies)
        for baseline in try_without(results, copies):
            if baseline.exit != 0:
                say(f"a test that has killed fails without any mutation: {judge(baseline)[1]}")
                return 1
    if asked.record:
        write_killers(results)
    killed = sum(result.verdict is Verdict.KILLED for result in results)
    say(f"\n{summary(results)}\n\n{killed} of {len(results)} mutations killed in {time.monotonic() - started:.0f} s")
    return 0 if killed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
