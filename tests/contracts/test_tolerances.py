"""No test compares with a relative or absolute tolerance above one percent."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LARGEST = 1e-2


def too_loose(source: str) -> list[str]:
    """Return `name=value` of every rtol or atol literal that is too large."""
    keywords = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword))
    return [
        f"{keyword.arg}={keyword.value.value}"
        for keyword in keywords
        if keyword.arg in ("rtol", "atol") and isinstance(keyword.value, ast.Constant) and keyword.value.value > LARGEST
    ]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_tolerance_is_loose(path: Path) -> None:
    assert too_loose(path.read_text()) == []
