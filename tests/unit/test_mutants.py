"""The table of planted mistakes fits the source as it is, and the harness tells a killed mutation from a broken one."""

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import Outcome, Verdict, judge
from tests.mutants.mutations import MUTATIONS, Mutation, NotOnceError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_text_once_and_changes_what_it_means(mutation: Mutation) -> None:
    original = (ROOT / mutation.file).read_text()
    # As syntax trees, so that a change of layout or of a comment is no mutation.
    assert ast.dump(ast.parse(mutation.apply(original))) != ast.dump(ast.parse(original))


def test_names_are_unique_and_the_tests_exist() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 20
    for name in {name for mutation in MUTATIONS for name in mutation.tests}:
        assert (ROOT / "tests" / "unit" / f"{name}.py").is_file()


@pytest.mark.parametrize("text", ["a = 1\n", "a = 2; a = 2\n"])
def test_text_that_is_absent_or_ambiguous_is_refused(text: str) -> None:
    with pytest.raises(NotOnceError):
        Mutation("name", "file.py", "a = 2", "a = 3", ("test_loss",), "why").apply(text)


def outcome(exit_code: int, phase: str, *exceptions: str) -> Outcome:
    return Outcome(exit=exit_code, test="tests/unit/test_loss.py::test_it", phase=phase, exceptions=exceptions)


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Outcome(exit=0), Verdict.SURVIVED),
        (outcome(1, "call", "AssertionError"), Verdict.KILLED),
        (outcome(1, "call", "Failed"), Verdict.KILLED),  # pytest.raises, where nothing was raised
        (outcome(1, "call", "NameError"), Verdict.BROKEN),
        (outcome(1, "call", "AssertionError", "TypeError"), Verdict.BROKEN),
        (outcome(1, "setup", "AssertionError"), Verdict.BROKEN),
        (outcome(2, "collect", "SyntaxError"), Verdict.BROKEN),
        (Outcome(exit=4), Verdict.BROKEN),  # a conftest that cannot be imported
        (Outcome(exit=5), Verdict.BROKEN),  # no tests
        (Outcome(exit=-11, exceptions=("Segmentation fault",)), Verdict.BROKEN),
    ],
)
def test_only_an_assertion_that_fails_in_a_test_kills(seen: Outcome, verdict: Verdict) -> None:
    assert judge(seen)[0] is verdict
