"""The table of planted mistakes fits the source as it is, and the harness tells a killed mutation from a broken one."""

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import Outcome, Verdict, judge
from tests.mutants.mutation import Mutation, NotOnceError
from tests.mutants.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]


SOURCE = """
class Rate:
    def factor(self, index):  # from 0
        limit = max(
            index + 1,
            2,
        )
        if limit:
            self.calls.clear()
            self.calls.append(index)
        return self.rounded(limit + 1, limit=limit)

def other(index):
    return index + 1 + self.calls.clear()
"""


def mutation(function: str, original: str, replacement: str) -> Mutation:
    return Mutation("name", "file.py", function, original, replacement, ("test_loss",), "why")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_expression_once_and_changes_what_it_means(mutation: Mutation) -> None:
    original = (ROOT / mutation.file).read_text()
    assert ast.dump(ast.parse(mutation.apply(original))) != ast.dump(ast.parse(original))


def test_names_are_unique_and_the_tests_exist() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 111
    for name in {name for mutation in MUTATIONS for name in mutation.tests}:
        assert (ROOT / "tests" / "unit" / f"{name}.py").is_file()


@pytest.mark.parametrize(
    ("function", "original", "replacement", "line", "mutated"),
    [
        ("Rate.factor", "max(index+1, 2)", "index", "        limit = max(index + 1, 2)", "        limit = index"),
        ("factor", "index + 1", "index", "        limit = max(index + 1, 2)", "        limit = max(index, 2)"),
        ("other", "index + 1", "index", "    return index + 1 + self.calls.clear()", "    return index + self.calls.clear()"),
        ("factor", "limit=limit", "limit=0", "limit=limit", "self.rounded(limit + 1, limit=0)"),
        ("factor", "self.calls.clear()\nself.calls.append(index)", "pass", "self.calls.append(index)", "pass"),
    ],
)
def test_layout_and_comments_do_not_hide_an_expression(
    function: str, original: str, replacement: str, line: str, mutated: str
) -> None:
    before, after = ast.unparse(ast.parse(SOURCE)), mutation(function, original, replacement).apply(SOURCE)
    assert line in before
    assert line not in after
    assert mutated in after


def test_a_part_of_a_larger_expression_keeps_its_place_in_it() -> None:
    assert "return (index - 1) * 2" in mutation("f", "index + 1", "index - 1").apply(
        "def f(index):\n    return (index + 1) * 2"
    )


@pytest.mark.parametrize(
    ("function", "original"),
    [
        ("factor", "index + 2"),
        ("factor", "index"),
        ("factor", "self.calls.append(index)\nself.calls.clear()"),
        ("nowhere", "index + 1"),
        ("Rate.other", "index + 1"),
    ],
)
def test_what_is_absent_or_ambiguous_is_refused(function: str, original: str) -> None:
    with pytest.raises(NotOnceError, match=r"occurs \d times"):
        mutation(function, original, "0").apply(SOURCE)


def test_two_functions_of_a_name_are_refused() -> None:
    with pytest.raises(NotOnceError, match="a function or class f occurs 2 times"):
        mutation("f", "a", "b").apply("def f():\n    a\n\nclass C:\n    def f(self):\n        return 1\n")


def outcome(exit_code: int, phase: str, *exceptions: str) -> Outcome:
    return Outcome(exit=exit_code, test="tests/unit/test_loss.py::test_it", phase=phase, exceptions=exceptions)


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Outcome(exit=0), Verdict.SURVIVED),
        (outcome(1, "call", "AssertionError"), Verdict.KILLED),
        (outcome(1, "call", "Failed"), Verdict.KILLED),  # pytest.raises, where nothing was raised
        (outcome(1, "call", "TypeCheckError"), Verdict.KILLED),  # a tensor of another shape than its signature's
        (outcome(1, "call", "NameError"), Verdict.BROKEN),
        (outcome(1, "call", "AssertionError", "TypeError"), Verdict.BROKEN),
        (outcome(1, "setup", "AssertionError"), Verdict.BROKEN),
        (outcome(2, "collect", "SyntaxError"), Verdict.BROKEN),
        (Outcome(exit=4), Verdict.BROKEN),  # a conftest that cannot be imported
        (Outcome(exit=5), Verdict.BROKEN),  # no tests
        (Outcome(exit=1, exceptions=("timed out",)), Verdict.TIMED_OUT),
        (Outcome(exit=-11, exceptions=("Segmentation fault",)), Verdict.BROKEN),
    ],
)
def test_only_an_assertion_that_fails_in_a_test_kills(seen: Outcome, verdict: Verdict) -> None:
    assert judge(seen)[0] is verdict
