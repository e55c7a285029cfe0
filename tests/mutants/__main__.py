"""Plant every mutation of the table in a copy of the repository and require the unit tests to notice.

python -m tests.mutants             all of them
python -m tests.mutants -k clip     those with "clip" in their name

The working tree is copied at the start and never written to. A mutation is killed where an assertion of a test fails; one
that merely breaks an import, a fixture or a call proves nothing about the tests and counts as broken. Exit code 1 unless
all are killed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutations import MUTATIONS, Mutation, NotOnceError

ROOT = Path(__file__).parents[2]
COPIED = ("grpo_core", "tests", "pyproject.toml")
AT_ONCE = 2
TIMEOUT_SECONDS = 240.0
ASSERTIONS = {"AssertionError", "Failed"}


class Verdict(StrEnum):
    """What became of a mutation."""

    KILLED = "killed by"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"
    """The tests failed otherwise than by an assertion."""
    STALE = "NO SUCH TEXT"
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
    """What `run_tests.py` says of one run."""

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
        return Verdict.KILLED, outcome.test.removeprefix("tests/unit/")
    raised = ", ".join(outcome.exceptions) or "no failed test"
    return Verdict.BROKEN, f"pytest exit {outcome.exit}, {raised} in {outcome.phase or 'start'} of {outcome.test or '-'}"


def run_tests(folder: Path, tests: Iterable[str]) -> Outcome:
    """Run unit test files in a copy of the repository.

    Raises:
        RuntimeError: the tests got a package from outside the copy.
        subprocess.TimeoutExpired: it took longer than TIMEOUT_SECONDS.
    """
    written = folder / "outcome.json"
    written.unlink(missing_ok=True)
    # No byte code: a mutation of the same length within the same second would be taken for the cached original.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    files = [f"tests/unit/{name}.py" for name in tests]
    process = subprocess.run(
        [sys.executable, "-m", "tests.mutants.run_tests", str(written), *files],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if not written.exists():
        return Outcome(exit=process.returncode or 1, exceptions=tuple(process.stdout.strip().splitlines()[-1:]))
    values = json.loads(written.read_text())
    package = values.pop("package")
    if not Path(package).is_relative_to(folder):
        raise RuntimeError(f"the tests import {package}, which is not in {folder}")
    return Outcome(**values | {"exceptions": tuple(values.get("exceptions", ()))})


def try_mutation(mutation: Mutation, folder: Path) -> Result:
    """Plant a mutation in a copy, run its tests, and take it out again."""
    started = time.monotonic()
    path = folder / mutation.file
    original = path.read_text()
    try:
        path.write_text(mutation.apply(original))
        verdict, detail = judge(run_tests(folder, mutation.tests))
    except NotOnceError as error:
        verdict, detail = Verdict.STALE, str(error)
    except subprocess.TimeoutExpired:
        verdict, detail = Verdict.TIMED_OUT, f"after {TIMEOUT_SECONDS:.0f} s"
    finally:
        path.write_text(original)
    return Result(mutation=mutation, verdict=verdict, detail=detail, seconds=time.monotonic() - started)


def copy_tree(folder: Path) -> Path:
    """Copy what the tests need into a new folder and return it."""
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def try_all(mutations: Sequence[Mutation], folders: Sequence[Path]) -> list[Result]:
    """Try the mutations, one at a time in each folder, and say what became of each as soon as it is known."""
    free: SimpleQueue[Path] = SimpleQueue()
    for folder in folders:
        free.put(folder)

    def attempt(mutation: Mutation) -> Result:
        folder = free.get()
        try:
            return try_mutation(mutation, folder)
        finally:
            free.put(folder)

    with ThreadPoolExecutor(max_workers=len(folders)) as pool:
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
    """Write a line at once, into a pipe too."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where every selected mutation is killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-k", dest="substring", default="", help="only mutations with this in their name")
    substring = parser.parse_args(arguments).substring
    selected = [mutation for mutation in MUTATIONS if substring in mutation.name]
    if not selected:
        parser.error(f"no mutation has {substring!r} in its name")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        folders = [copy_tree(Path(scratch).resolve() / f"copy{number}") for number in range(AT_ONCE)]
        tests = sorted({name for mutation in selected for name in mutation.tests})
        baseline = run_tests(folders[0], tests)
        if baseline.exit != 0:
            say(f"the tests fail without any mutation: {judge(baseline)[1]}")
            return 1
        say(f"without any mutation {', '.join(tests)} pass ({time.monotonic() - started:.1f} s)")
        results = try_all(selected, folders)
    killed = sum(result.verdict is Verdict.KILLED for result in results)
    say(f"\n{summary(results)}\n\n{killed} of {len(results)} mutations killed in {time.monotonic() - started:.0f} s")
    return 0 if killed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
