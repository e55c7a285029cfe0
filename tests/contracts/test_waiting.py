"""`make test` does not wait: what starts servers and the command belongs to `make test-all`, but for one whole training."""

import ast
from pathlib import Path

import pytest

from tests.longest_files import read_table

ROOT = Path(__file__).parents[2]
WAITING = sorted(path for folder in ("e2e", "security") for path in (ROOT / "tests" / folder).glob("test_*.py"))
KEPT = {"test_flow.py"}
"""One whole training. That a killed one resumes as if it never died is shown without a flow in tests/integration."""


def is_marked(source: str) -> bool:
    """Return whether a whole test file is marked as `proof` or `slow`."""
    marks = [
        ast.unparse(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return any(mark in text for text in marks for mark in ("pytest.mark.proof", "pytest.mark.slow"))


@pytest.mark.parametrize("path", WAITING, ids=lambda path: path.name)
def test_end_to_end_proofs_are_marked(path: Path) -> None:
    assert is_marked(path.read_text()) is (path.name not in KEPT)


def test_the_longest_files_are_there() -> None:
    assert [file for file in read_table() if not (ROOT / file).is_file()] == []
