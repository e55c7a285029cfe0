"""docs/architecture.md: the tree has a line for each package, and the files that a parameter passes through are named."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("flows", "tasks", "grpo_core")
TREE = re.compile(r"(<!-- tree -->\n)(.*?)(<!-- /tree -->)", re.DOTALL)


def first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("|", r"\|")


def table() -> Iterator[str]:
    """Yield a table of the packages, each with the first paragraph of its docstring."""
    yield "| Package | |\n|---|---|\n"
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            name = folder.relative_to(ROOT).as_posix()
            yield f"| [{name}](../{name}) | {first_paragraph(folder / '__init__.py')} |\n"


def test_the_tree_has_a_line_for_each_package() -> None:
    wanted = "".join(table())
    if os.environ.get("GRPO_WRITE_DOCS"):
        PAGE.write_text(TREE.sub(lambda found: found[1] + wanted + found[3], PAGE.read_text()))
    found = TREE.search(PAGE.read_text())
    assert found is not None
    assert found[2] == wanted


@pytest.mark.parametrize(("section", "most"), [("rewards", 12), ("beta", 8)])
def test_the_way_of_a_parameter_is_short_and_true(section: str, most: int) -> None:
    found = re.search(rf"<!-- way:{section} -->\n(.*?)<!-- /way -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    files = re.findall(r"\]\(\.\./([^)]+\.py)\)", found[1])
    assert 1 < len(set(files)) <= most
    assert [name for name in files[:-1] if not connected(name, files)] == []


def connected(name: str, others: list[str]) -> bool:
    """Return whether a file imports one of the others or is imported by one, so that none of them is on the page by mistake."""
    imported = {other: imports(ROOT / other) for other in others}
    return any(module(other) in imported[name] or module(name) in imported[other] for other in others if other != name)


def module(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def imports(path: Path) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module]
    found = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names} | {str(node.module) for node in nodes}
    exported = {name for package in found if (ROOT / package.replace(".", "/")).is_dir() for name in exports(package)}
    return found | exported


def exports(package: str) -> set[str]:
    """Return the modules whose names a package's `__init__` passes on."""
    source = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    return {str(node.module) for node in source.body if isinstance(node, ast.ImportFrom)}
