"""Functions and files of the product stay small enough to read."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for package in ("grpo_core", "tasks", "flows") for path in (ROOT / package).rglob("*.py"))
MAX_FUNCTION_LINES = 45
MAX_FILE_LINES = 400
MAX_LOOSE_FILES = 6
"""Of `grpo_core`, which belong to no folder of it."""


def long_functions(source: str) -> list[str]:
    """Return `name: lines` of every function that is too long, its decorators left out."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions]
    return [f"{name}: {lines}" for name, lines in lengths if lines > MAX_FUNCTION_LINES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_and_files_are_short(path: Path) -> None:
    source = path.read_text()
    assert long_functions(source) == []
    assert len(source.splitlines()) <= MAX_FILE_LINES


def test_few_files_are_loose() -> None:
    assert len(list((ROOT / "grpo_core").glob("*.py"))) <= MAX_LOOSE_FILES
