"""Valid files, mutated: as trees, which mostly get past the parser, and as bytes, which often do not."""

import copy
import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import yaml
from hypothesis import strategies as st

from grpo_core.config import RunConfig

HUGE = "0x" + "f" * 5000
"""More digits than Python turns into text; a YAML dumper cannot write it, so it is put in afterwards."""
HUGE_MARK = "huge-mark"

NUMBERS = [0, 1, -1, 2, 3, 7, 0.5, 1.5, -0.0, 1e-4, 5e-324, 1e308, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, -(10**400)]
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
TEXTS = ["", " ", "1", "nan", "null", "true", "é\u2028\x85", "\ud800", "\x00", "\n", "x" * 5000, "../../x", "/etc/passwd"]
NAMES = ["~nobody-of-that-name/rows.jsonl", "file:~nobody-of-that-name/x.csv", "file:" + "x" * 5000 + ".csv", "hub", "none"]
LISTS: list[Any] = [[], [[]], [None], [1, "a"], {}, {"a": 1}, {"role": "user", "content": "hi"}]
LITERALS = [True, False, None]
TYPOS = ["", "x", "s", "_", ".0", " "]
PIECES = [
    *(
        b"\t",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\n\n",
        b"\\",
        b'"',
        b"'",
        b",",
        b": ",
        b"- ",
        b"? ",
        b"#",
        b"%",
    ),
    *(b"&a ", b"*a", b"<<: ", b"!!python/object/apply:os.getcwd []", b"!!binary ", b"!!set ", b"---\n", b"|\n", b">-"),
    *(b"{", b"}", b"[", b"]", b"null", b"NaN", b"1e999", b"0x1f", b"2026-13-45", b"2026-01-01", "\u2028".encode(), b"\xf0\x9f"),
]


def deep(levels: int) -> Any:
    """Return lists within lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def values() -> st.SearchStrategy[Any]:
    """Values of any type, the extreme ones first of all."""
    return st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from([*NOT_FINITE, *LITERALS]),
        st.sampled_from(TEXTS),
        st.sampled_from([*LISTS, *NAMES, deep(30), deep(300)]),
        st.integers(-5, 500),
        st.floats(0, 2),
        st.text(max_size=20),
    )


def yaml_values() -> st.SearchStrategy[Any]:
    """What YAML has and JSON does not, too."""
    import datetime

    only_yaml = [datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1, 12), b"\xff\x00", {1: 2}, {None: []}, {True: "x"}]
    return st.one_of(values(), values(), st.sampled_from([*only_yaml, HUGE_MARK]))


@st.composite
def mutated_trees(draw: st.DrawFn, tree: Any, value: st.SearchStrategy[Any] | None = None) -> Any:
    """Return a copy of `tree` (mappings and lists) with one to three changes."""
    value = values() if value is None else value
    root = [copy.deepcopy(tree)]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = list(_places(root, 0))
        container, key = places[draw(st.integers(0, len(places) - 1))]
        _change(draw, root, container, key, value)
    return root[0]


def _places(container: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a tree, the outermost first."""
    yield container, key
    value = container[key]
    if isinstance(value, dict):
        for inner in value:
            yield from _places(value, inner)
    elif isinstance(value, list) and len(value) < 50:  # not the deep ones that an earlier change has put there
        for index in range(len(value)):
            if not isinstance(value[index], list):
                yield from _places(value, index)


def _change(draw: st.DrawFn, root: list[Any], container: Any, key: Any, value: st.SearchStrategy[Any]) -> None:
    # What is drawn is copied: a later change would reach into the list that it was drawn from.
    kind = draw(st.sampled_from(["replace", "replace", "nudge", "nudge", "delete", "rename", "double", "wrap", "swap"]))
    old = container[key]
    if kind == "nudge":
        container[key] = copy.deepcopy(draw(nudged(old, value)))
    elif kind == "delete" and container is not root:
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        position, typo = draw(st.integers(0, len(str(key)))), draw(st.sampled_from(TYPOS))
        container[str(key)[:position] + typo + str(key)[position + 1 :]] = container.pop(key)
    elif kind == "double" and isinstance(container, list) and container is not root:
        container.insert(key, copy.deepcopy(old))
    elif kind == "double" and isinstance(container, dict):
        container[draw(st.sampled_from(list(map(str, container))))] = copy.deepcopy(old)
    elif kind == "wrap":
        container[key] = draw(st.sampled_from([[old], {"x": old}, [old, old]]))
    elif kind == "swap":
        places = list(_places(root, 0))
        other, at = places[draw(st.integers(0, len(places) - 1))]
        container[key] = copy.deepcopy(other[at])
    else:
        container[key] = copy.deepcopy(draw(value))


SECTIONS = [field.annotation for field in RunConfig.model_fields.values() if isinstance(field.annotation, type)]


def _choices(section: Any) -> list[tuple[Any, ...]]:
    """Return the values of each of a section's keys that has a fixed list of them."""
    fields = getattr(section, "model_fields", {}).values()
    return [get_args(field.annotation) for field in fields if get_origin(field.annotation) is Literal]


def nudged(old: Any, otherwise: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values near a valid one, which mostly are valid as well; a section or null has none."""
    if isinstance(old, bool):
        return st.just(not old)
    if isinstance(old, int | float) and abs(old) < 1e300:  # no integer that an earlier change made too large for a float
        return st.sampled_from(
            [old + 1, old - 1, old * 2, old / 2, -old, old * 1000, str(old), float(old) if abs(old) < 1e9 else 0]
        )
    choices = [choice for section in SECTIONS for choice in _choices(section) if old in choice]
    if choices:
        return st.sampled_from(choices[0])
    if isinstance(old, str):
        return st.sampled_from([old + " ", old.upper(), old[:-1], old * 2, f" {old}", [old]])
    return otherwise


def as_yaml(tree: Any, allow_unicode: bool = False) -> bytes:
    """Return a tree as YAML text."""
    return _dumped(tree, sort_keys=False, allow_unicode=allow_unicode).encode()


def as_flow(value: Any) -> str:
    """Return a value as YAML on one line, as an override has it."""
    return _dumped({"x": value}, default_flow_style=True, width=10**6)[len("{x: ") : -len("}\n")]


def _dumped(tree: Any, **options: Any) -> str:
    try:
        text: str = yaml.dump(tree, Dumper=yaml.CSafeDumper, **options)
    except UnicodeEncodeError:  # half a surrogate pair, which only the slower dumper can escape
        text = yaml.dump(tree, Dumper=yaml.SafeDumper, **{**options, "allow_unicode": False})
    return text.replace(HUGE_MARK, HUGE)


def as_json(tree: Any) -> bytes:
    """Return a tree as JSON text, NaN and infinities as Python writes them."""
    return json.dumps(tree).encode()


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Return `content` with one to three changes of its text."""
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        content = _changed_bytes(draw, content)
    return content


def _changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    kind = draw(st.sampled_from(["flip", "cut", "insert", "insert", "leave out", "double a line", "move a line", "nest"]))
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    if kind == "flip" and content:
        return content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "leave out":
        return content[:at] + content[at + draw(st.integers(1, 20)) :]
    if kind == "nest":
        return content[:at] + b"[" * draw(st.sampled_from([2, 200, 20_000])) + content[at:]
    if kind in ("double a line", "move a line"):
        return _moved_line(draw, content, again=kind == "double a line")
    return content[:at] + draw(st.sampled_from(PIECES)) + content[at:]


def _moved_line(draw: st.DrawFn, content: bytes, again: bool) -> bytes:
    lines = content.split(b"\n")
    start, end = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    line = lines[start] if again else lines.pop(start)
    lines.insert(end, line)
    return b"\n".join(lines)
