"""The table of planted mistakes fits the source as it is, and the harness tells a killed mutation from a broken one."""

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import Outcome
from tests.mutants.mutation import Mutation
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


def outcome(exit_code: int, phase: str, *exceptions: str) -> Outcome:
    return Outcome(exit=exit_code, test="tests/unit/test_loss.py::test_it", phase=phase, exceptions=exceptions)
