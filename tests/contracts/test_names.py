"""One name, one thing: a class name is defined once, and a public function name that is repeated has its reason here."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "grpo_core")

ENTRY_POINT = "the entry point of a process, called by nobody else"
REPEATED = {"main": ENTRY_POINT, "train": "`grpo train` and its counterpart in Python, `from grpo_core import train`"}
"""Public functions of modules that have a name in common, each with the reason."""


def definitions(root: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return {name: files} of every class, and of every public function of a module."""
    classes: dict[str, list[str]] = defaultdict(list)
    functions: dict[str, list[str]] = defaultdict(list)
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        where = str(path.relative_to(root))
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(where)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                functions[node.name].append(where)
    return classes, functions


def repeated(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the names that are defined more than once, with their files."""
    return {name: files for name, files in found.items() if len(files) > 1}


def test_a_repeated_name_is_found(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "flows" / "a.py").write_text("class A: pass\ndef f(): pass\ndef _g(): pass\n")
    (tmp_path / "tasks" / "b.py").write_text(
        "class A: pass\nasync def f(): pass\ndef _g(): pass\nclass B:\n  def f(self): pass\n"
    )
    classes, functions = definitions(tmp_path)
    assert repeated(classes) == {"A": ["flows/a.py", "tasks/b.py"]}
    assert repeated(functions) == {"f": ["flows/a.py", "tasks/b.py"]}


def test_a_class_name_is_defined_once() -> None:
    assert repeated(definitions(ROOT)[0]) == {}


def test_a_repeated_function_name_has_its_reason() -> None:
    found = repeated(definitions(ROOT)[1])
    assert {name: files for name, files in found.items() if name not in REPEATED} == {}


def test_every_reason_is_still_needed() -> None:
    assert sorted(REPEATED.keys() - repeated(definitions(ROOT)[1]).keys()) == []
