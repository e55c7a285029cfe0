"""What a caller in Python gives by hand: reward functions, rows and a model, as settings and files of a run.

A function of an imported module stays `module:function`, as in a configuration file. One of the script or notebook itself is
frozen: its source becomes a module in the run's folder, with what it uses of the script (imports, constants, other functions).
So a resume, an evaluation and a repetition call the function that was given, whatever became of the script. What cannot be
frozen is refused by name: a closure, a lambda, a method, a function that uses an object of the script.
"""

import __future__

import ast
import builtins
import contextlib
import inspect
import json
import re
import symtable
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from PIL.Image import Image

from grpo_core.config import DataConfig
from grpo_core.data.frozen_images import FOLDER
from grpo_core.data.prepare import json_digest
from grpo_core.data.row_images import COLUMNS, kept_images, read_below, undecoded
from grpo_core.errors import ConfigError, DataError, shown
from grpo_core.machine.disk import jsonable
from grpo_core.machine.images import as_png

FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names if name != "nested_scopes")
FUTURE = "from __future__ import annotations\n\n"
"""Begins a frozen module: what is named in annotations alone is not needed."""


def given_settings(rewards: Any = None, data: Any = None, model: Any = None) -> tuple[dict[str, Any], dict[str, str | Path]]:
    """Return ({key.path: value}, {name: text, or file to be copied}) for what a caller in Python gives; None = nothing.

    Args:
        rewards: functions, names as in `rewards[].fn`, or sections of a configuration whose `fn` is either; one, or a list.
        data: rows: dicts, a `datasets.Dataset` or a `pandas.DataFrame`. Their file is `data.source`.
        model: folder or hub id.

    Raises:
        ConfigError: a function can be neither imported nor frozen, or the model is loaded already.
        DataError: the data are no rows.
    """
    files, settings = dict[str, str | Path](), dict[str, Any]()
    if not isinstance(model, str | Path | None):
        raise ConfigError(
            f"model: is a loaded {type(model).__name__}; give the folder or the hub id that it was loaded from, or of one that "
            "was changed the folder that model.save_pretrained and tokenizer.save_pretrained have written"
        )
    if model is not None:
        settings["model.source"] = str(model)
    if rewards is not None:
        several = rewards if isinstance(rewards, list | tuple) else [rewards]
        sections = [reward if isinstance(reward, Mapping) else {"fn": reward} for reward in several]
        settings["rewards"] = [{**section, "fn": _name_function(section["fn"], files)} for section in sections]
        settings["evaluation.verifier"] = None
    return settings if data is None else settings | _frozen_rows(data, files), files


def _frozen_rows(data: Any, files: dict[str, str | Path]) -> dict[str, Any]:
    """Return the settings of rows, in place of all that a configuration says of its own, and add their files to `files`."""
    rows = data.astype(object).where(data.notna(), None).to_dict("records") if hasattr(data, "iterrows") else data
    rows = undecoded(rows) if hasattr(rows, "cast_column") else rows
    rows = [_without_images(row, number, files) for number, row in enumerate(rows)] if isinstance(rows, Iterable) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise DataError(
            f"data: expected rows (dicts, one split of a datasets.Dataset, a pandas.DataFrame), got {shown(data)}; a file, or "
            "a data set of the hub, is named in overrides (data.source=file:rows.jsonl)"
        )
    text, first = "".join(json.dumps(jsonable(dict(row))) + "\n" for row in rows), rows[0]
    files[name := f"rows-{json_digest(text)[:12]}.jsonl"] = text
    gold = jsonable(dict(first)).get("answer")
    of_trl = {"data.prompt_column": "prompt", "data.chat_template": not isinstance(first.get("prompt"), str)}
    return {
        **dict.fromkeys(("data.hub_config", "data.size", "data.answer_after", "data.system_prompt")),
        "data.task_args": {},
        "data.examples": [],
        "data.source": f"file:{name}",
        "data.answer_column": "answer" if isinstance(gold, str | int | float) else None,
        **(of_trl if "prompt" in first else {}),  # TRL's column, read as TRL reads it
    }


def _without_images(row: Any, index: int, files: dict[str, str | Path]) -> Any:
    """Return a row with paths in place of its images, whose files are added to `files`; anything but a row as it is.

    Raises:
        DataError: an image cannot be read, has more than 8 bits a channel, or cannot be kept.
    """
    kept = kept_images(DataConfig())

    def stored(value: Any, column: str) -> Any:
        if isinstance(value, list | tuple):
            return [stored(one, column) for one in value]
        if (content := _image_in(value, is_image=column in COLUMNS)) is None:
            return value
        try:
            digest = kept.add(content if isinstance(content, bytes) else as_png(content))
        except (DataError, OSError) as error:
            raise DataError(f"data: column {column!r}, row {index}: {error}") from error
        name = value if isinstance(value, str) else f"{FOLDER}/{digest}"
        files[name] = kept.path / digest
        return name

    return {name: stored(value, str(name)) for name, value in row.items()} if isinstance(row, Mapping) else row


def _image_in(value: Any, *, is_image: bool) -> Image | bytes | None:
    """Return the image that a value of a row is; None where it is none, as a model of text may have columns of any kind.

    It is one of Pillow's, or what `datasets` keeps of one, {"bytes", "path"}; in a column of images also bytes, and the path of
    a file below the working folder.
    """
    if is_struct := isinstance(value, Mapping) and set(value) == {"bytes", "path"}:
        value = value["bytes"] or value["path"]
    if isinstance(value, str) and (is_image or is_struct):
        with contextlib.suppress(DataError):
            place = (Path("/"), str(Path(value).absolute())) if is_struct else (Path.cwd(), value)
            return read_below(*place, takes_absolute=is_struct)
    return value if isinstance(value, Image) or (isinstance(value, bytes) and (is_image or is_struct)) else None


def _name_function(function: Any, files: dict[str, str | Path]) -> str:
    """Return what `rewards[].fn` is for a function; the module of one that is frozen is added to `files`."""
    name, parts = getattr(function, "__name__", type(function).__name__), dict[str, str]()
    if isinstance(function, str) or _import_line(name, function) is not None:
        return function if isinstance(function, str) else f"{function.__module__}:{name}"
    try:
        _add_function(function, name, parts)
    except ValueError as error:
        remedy = f"put it into a file, my_rewards.py, and pass rewards=['my_rewards:{name.replace('<lambda>', 'my_reward')}']"
        raise ConfigError(f"rewards: {name} {error}; {remedy}") from error
    text = FUTURE + "\n".join(parts.values())
    files[f"{(module := f'{name}_{json_digest(text)[:12]}')}.py"] = text
    return f"{module}:{name}"


def _add_function(function: Any, name: str, parts: dict[str, str]) -> None:
    """Add a function of the script to {name: source}, behind all that it uses.

    Raises:
        ValueError: it cannot be frozen.
    """
    if not isinstance(function, FunctionType) or name == "<lambda>":
        kind = "lambda" if isinstance(function, FunctionType) else type(function).__name__
        raise ValueError(f"is a {kind}, which no `def` has made")
    if function.__closure__:
        raise ValueError(f"uses {', '.join(function.__code__.co_freevars)} of the function around {name} (a closure)")
    try:
        source, script = inspect.getsource(function), "".join(inspect.findsource(function)[0])
        source = f"if True:\n{source}" if source[0].isspace() else source  # not moved left: a text in it would change
        now, table = ast.parse(script), symtable.symtable(FUTURE + source, name, "exec")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"uses {name}, whose source cannot be read ({type(error).__name__})") from error
    # A script is compiled as a whole, a notebook's cell statement by statement.
    flags = function.__code__.co_flags & FUTURE_FLAGS
    each = (now, *(ast.Module([statement], []) for statement in now.body))
    units = [compile(unit, name, "exec", flags, dont_inherit=True) for unit in each]
    if not any(function.__code__ in _codes(unit) for unit in units):
        raise ValueError(f"uses {name}, whose source was edited since, or is that of a decorator")
    if outside := _names_read(table, []) - vars(builtins).keys():
        raise ValueError(f"uses {', '.join(sorted(outside))} in a decorator or a default, where {name} is defined")
    parts[name] = source
    for used in sorted(_names_read(table, table.get_children())):
        _add_used(used, function, parts)
    parts[name] = parts.pop(name)


def _add_used(name: str, function: FunctionType, parts: dict[str, str]) -> None:
    """Add what a function uses by a name that is not its own."""
    value = function.__globals__.get(name, builtins)
    if name in parts or (value is builtins and hasattr(builtins, name)):
        return
    if (line := _line(name, value)) is not None:
        parts[name] = f"{line}\n"
    elif isinstance(value, FunctionType) and value.__name__ == name and value.__globals__ is function.__globals__:
        _add_function(value, name, parts)
    else:
        kind = "which is not defined" if value is builtins else f"of type {type(value).__name__}"
        raise ValueError(f"uses {name}, {kind}: only imports, constants and functions of the script are kept with it")


def _line(name: str, value: Any) -> str | None:
    """Return the statement that gives a name its value: a module, a constant, or what a module holds; None for others."""
    if isinstance(value, ModuleType) and value is not builtins:
        return f"import {value.__name__} as {name}"
    if isinstance(value, re.Pattern):
        return f"{name} = __import__('re').compile({value.pattern!r}, {value.flags})"
    with contextlib.suppress(ValueError, SyntaxError):  # of what is no constant
        # A set in order: the same text in each process.
        text = f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, set) else repr(value)
        if type(value).__module__ == "builtins" and ast.literal_eval(text) == value:
            return f"{name} = {text}"
    return _import_line(name, value)


def _import_line(name: str, value: Any) -> str | None:
    """Return the statement that imports a value; None where no module but the script holds it."""
    home, original = sys.modules.get(str(getattr(value, "__module__", None))), getattr(value, "__name__", name)
    if home is None or home.__name__ in ("__main__", "builtins") or getattr(home, original, None) is not value:
        return None
    return f"from {home.__name__} import {original} as {name}"


def _codes(code: CodeType) -> list[CodeType]:
    return [code, *(found for inner in code.co_consts if isinstance(inner, CodeType) for found in _codes(inner))]


def _names_read(table: symtable.SymbolTable, below: Sequence[symtable.SymbolTable]) -> set[str]:
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_global() and (symbol.is_referenced() or symbol.is_declared_global())
    }
    return names.union(*(_names_read(inner, inner.get_children()) for inner in below))
