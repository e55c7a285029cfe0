"""A planted mistake: an expression in one function, replaced by another one in the syntax tree of its file.

Layout, comments and line breaks do not matter, nor does where in the file the function stands. A function, an expression or
statements that do not occur exactly once are refused.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


class NotOnceError(LookupError):
    """What a mutation replaces, or the function that holds it, does not occur exactly once in its file."""


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    name: str
    """Unique; what `-k` selects by."""
    file: str
    """Path from the root of the repository."""
    function: str
    """Its name, after those of the classes and functions around it: `Updater.update`, `lr_factor.factor`."""
    original: str
    """What is right: an expression, a keyword argument (`name=value`) or consecutive statements."""
    replacement: str
    """What is wrong, of the same kind."""
    tests: tuple[str, ...]
    """Files of tests/unit, without .py, that must kill it."""
    why: str
    """What the mistake does to an experiment."""

    def apply(self, source: str) -> str:
        """Return the mutated source of the file, without its comments.

        Raises:
            NotOnceError: the function or `original` does not occur exactly once in it.
        """
        tree = ast.parse(source)
        scope: ast.AST = tree
        for name in self.function.split("."):
            scope = self._only([node for node in ast.walk(scope) if _is_definition(node, name)], f"a function or class {name}")
        places = [(place, wrong) for right, wrong in self._readings() for place in _places(scope, right)]
        replace, nodes = self._only(places, repr(self.original))
        replace(nodes)
        return ast.unparse(tree) + "\n"

    def _readings(self) -> list[tuple[Sequence[ast.AST], Sequence[ast.AST]]]:
        """Return what `original` and `replacement` may be: `name=value` is a statement or a keyword argument."""
        right, wrong = ast.parse(self.original).body, ast.parse(self.replacement).body
        match right, wrong:
            case [ast.Expr(value=one)], [ast.Expr(value=other)]:
                return [([one], [other])]
            case [ast.Assign(targets=[ast.Name(id=name)], value=one)], [ast.Assign(targets=[ast.Name()], value=other)]:
                return [(right, wrong), ([ast.keyword(arg=name, value=one)], [ast.keyword(arg=name, value=other)])]
        return [(right, wrong)]

    def _only(self, found: Sequence[Any], what: str) -> Any:
        if len(found) != 1:
            raise NotOnceError(f"{what} occurs {len(found)} times in {self.function} of {self.file}")
        return found[0]


def _is_definition(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name


def _places(scope: ast.AST, wanted: Sequence[ast.AST]) -> Iterator[Callable[[Sequence[ast.AST]], None]]:
    """Yield for each place below `scope` where `wanted` stands a function that puts other nodes there."""
    dumped = [ast.dump(node) for node in wanted]
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            children = value if isinstance(value, list) else [value]
            # A field may hold names or constants as well, which are no nodes.
            dumps = [ast.dump(child) if isinstance(child, ast.AST) else "" for child in children]
            for start in range(len(dumps) - len(dumped) + 1):
                if dumps[start : start + len(dumped)] == dumped:
                    yield _replacing(parent, field, slice(start, start + len(dumped)))


def _replacing(parent: ast.AST, field: str, part: slice) -> Callable[[Sequence[ast.AST]], None]:
    def replace(nodes: Sequence[ast.AST]) -> None:
        value = getattr(parent, field)
        if isinstance(value, list):
            value[part] = nodes
        else:
            (node,) = nodes
            setattr(parent, field, node)

    return replace
