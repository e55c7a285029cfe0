"""What a caller in Python gives: functions are frozen with what they use or refused by name, rows are those of a file."""

import ast
import functools
import json
import linecache
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core import RunConfig
from grpo_core.data.prepare import read_prompts
from grpo_core.errors import ConfigError, DataError
from grpo_core.rewards.simple import length_reward
from grpo_core.training.given import given_settings

CELL = '''
import re as patterns
from math import sqrt
import numpy as np

NUMBER, UNITS, Texts = patterns.compile(r"-?\\d+", patterns.I), {"m", "km", "mm"}, list[str]

def last(text: Texts):
    """A number."""
    found = patterns.findall(NUMBER, text)  # compiled in another way where its import is compiled with it
    return found[-1] if found else None

def right(completions: Texts, answer, bonus=0.5, **columns) -> list[float]:
    def one(text: str, gold: str) -> float:
        return float(last(text) == gold) + bonus * any(unit in text for unit in UNITS)
    return [sqrt(one(text, gold)) + float(np.sign(0)) for text, gold in zip(completions, answer)]

def other(completions, **columns):
    return [float(len(UNITS)) for _ in completions]
'''


def run_cell(source: str) -> dict[str, Any]:
    """Run a notebook's cell as IPython does: statement by statement, its source in `linecache`, as the module `__main__`."""
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for statement in ast.parse(source).body:
        exec(compile(ast.Module([statement], []), name, "exec"), namespace)
    return namespace


def frozen(function: Any) -> tuple[str, str]:
    """Return (name in the configuration, text of the module) of a function."""
    settings, files = given_settings(function)
    (text,) = files.values()
    return settings["rewards"][0]["fn"], text


def test_a_function_of_a_cell_is_frozen_with_what_it_uses_and_nothing_else(tmp_path: Path) -> None:
    function = run_cell(CELL)["right"]
    name, text = frozen(function)
    module = name.partition(":")[0]
    assert re.fullmatch(r"right_[0-9a-f]{12}:right", name)
    assert "def other" not in text
    (tmp_path / f"{module}.py").write_text(text)
    arguments = {"completions": ["3 4", "4 3", "3 km", ""], "answer": ["4", "4", "3", "1"]}
    program = f"import json; from {module} import right; print(json.dumps(right(**{arguments})))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == function(**arguments) == [1.0, 0.0, math.sqrt(1.5), 0.0]


def test_the_name_says_which_source_it_was() -> None:
    first, again = (frozen(run_cell(CELL)["right"])[0] for _ in range(2))
    changed = frozen(run_cell(CELL.replace("last(text) == gold", "last(text) != gold"))["right"])[0]
    helper = frozen(run_cell(CELL.replace("found[-1]", "found[0]"))["right"])[0]
    assert first == again
    assert len({first, changed, helper}) == 3


def test_a_function_inside_of_another_keeps_its_text_as_it_is() -> None:
    def indented(completions: list[str], **_: Any) -> list[str]:
        return [
            """two
        lines"""
            for _ in completions
        ]

    namespace: dict[str, Any] = {}
    exec(frozen(indented)[1], namespace)
    assert namespace["indented"]([""]) == indented([""])


def test_functions_of_modules_and_names_stay_as_they_are() -> None:
    given: list[Any] = [length_reward, "math_answer", {"fn": "mine:f", "weight": 0.5}]
    settings, files = given_settings(given)
    assert settings["rewards"] == [
        {"fn": "grpo_core.rewards.simple:length_reward"},
        {"fn": "math_answer"},
        {"fn": "mine:f", "weight": 0.5},
    ]
    assert files == {}


class Scorer:
    """A reward that is an object."""

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [1.0 for _ in completions]

    score = __call__


def of_cell(*lines: str) -> Callable[[], Any]:
    """Return a function that returns `f` of a cell with these lines."""
    return lambda: run_cell("\n".join((*lines, "")))["f"]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "closure": (
        of_cell("def make(x):", "    def f(**c):", "        return [x]", "    return f", "f = make(1)"),
        "f uses x of the function around f",
    ),
    "lambda": (of_cell("f = lambda **columns: [1.0]"), "<lambda> is a lambda"),
    "method": (lambda: Scorer().score, "__call__ is a method"),
    "object": (Scorer, "Scorer is a Scorer"),
    "builtin": (lambda: len, "len is a builtin_function_or_method"),
    "partial": (lambda: functools.partial(print), "partial is a partial"),
    "uses an object": (
        of_cell("import io", "log = io.StringIO()", "def f(**c):", "    return [log.write('')]"),
        "f uses log, of type StringIO",
    ),
    "uses nothing": (of_cell("def f(**c):", "    return [missing]"), "f uses missing, which is not defined"),
    "through another": (
        of_cell("t = object()", "def g():", "    return t", "def f(**c):", "    return [g()]"),
        "f uses t, of type object",
    ),
    "a default": (of_cell("s = 2", "def f(x=s, **c):", "    return [x]"), "f uses s in a decorator or a default"),
    "decorated": (
        of_cell("import functools", "@functools.cache", "def f(**c):", "    return [1.0]"),
        "f is a _lru_cache_wrapper",
    ),
    "no source": (lambda: eval("exec('def f(**c): return [1.0]', d := {}) or d")["f"], "f uses f, whose source cannot be read"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_frozen_is_refused_by_name_with_the_way_on(kind: str) -> None:
    make, why = REFUSED[kind]
    with pytest.raises(ConfigError) as caught:
        given_settings([make()])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"rewards: {why}")
    assert re.search(r"; put it into a file, my_rewards\.py, and pass rewards=\['my_rewards:\w+'\]$", line)


def test_a_script_that_was_edited_since_it_began_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f(completions, **columns):\n    return [0.5 for _ in completions]\n")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), namespace)
    assert "0.5" in frozen(namespace["f"])[1]
    script.write_text(script.read_text().replace("0.5", "0.75"))
    with pytest.raises(ConfigError, match="f uses f, whose source was edited since"):
        given_settings(namespace["f"])


ROWS = [
    {"prompt": f"{a} + {b} =\u2028é", "answer": a + b, "level": {"digits": [1, a]}, "note": None if a else "x"}
    for a in range(5)
    for b in range(5)
]


def test_rows_a_dataset_and_a_data_frame_give_the_prompts_of_the_file(
    tmp_path: Path, tiny_config: Callable[..., RunConfig]
) -> None:
    import datasets
    import pandas

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    own = {"data.source": f"file:{file}", "data.task_args": {}, "data.size": None, "rewards": [{"fn": "exact_answer"}]}
    expected = read_prompts(tiny_config({**own, "data.prompt_column": "prompt", "data.chat_template": False}))
    assert expected.train[0].columns["answer"] in range(9)
    for given in (ROWS, iter(ROWS), tuple(ROWS), datasets.Dataset.from_list(ROWS), pandas.DataFrame(ROWS)):
        settings, files = given_settings("exact_answer", given)
        ((name, text),) = files.items()
        (tmp_path / name).write_text(text)
        assert settings["data.source"] == f"file:{name}"
        assert read_prompts(tiny_config({**settings, "data.source": f"file:{tmp_path / name}"})) == expected


def test_a_column_prompt_is_read_as_trl_reads_it() -> None:
    messages = [{"role": "user", "content": "1 + 1 ="}]
    plain, chat, own = (
        given_settings(data=[row])[0]
        for row in ({"prompt": "1"}, {"prompt": messages, "answer": [2]}, {"question": "1", "answer": "2"})
    )
    assert (plain["data.prompt_column"], plain["data.chat_template"], plain["data.answer_column"]) == ("prompt", False, None)
    assert (chat["data.prompt_column"], chat["data.chat_template"], chat["data.answer_column"]) == ("prompt", True, None)
    assert not {"data.prompt_column", "data.chat_template"} & own.keys()
    assert own["data.answer_column"] == "answer"


@pytest.mark.parametrize("data", ["rows.jsonl", 3, [], [1, 2], {"train": [{"prompt": "1"}]}, [["prompt"]]])
def test_what_are_no_rows_is_refused_in_one_line(data: Any) -> None:
    with pytest.raises(DataError, match=r"^data: expected rows \(dicts, .*\), got .*data\.source=file:rows\.jsonl\)$"):
        given_settings(data=data)


def test_a_loaded_model_is_refused_with_the_way_on(tiny_model: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model: is a loaded LlamaForCausalLM; give the folder or the hub id"):
        given_settings(model=tiny_model)
