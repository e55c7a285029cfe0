"""The verb of the `grpo` command that writes an experiment to start from."""

import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Annotated

import typer

from flows.terminal import echo
from grpo_core.errors import ConfigError, name_of, raised_as
from grpo_core.run.resuming import path_argument

STARTER = Path(__file__).parents[1] / "starter"
NUM_ROWS = 1000
OPENING = "State the final answer to the following arithmetic problem: "
"""One token of the model scratch:sums, which knows nothing but sums behind it."""


def init(
    name: Annotated[Path, typer.Argument(help="Folder to write, below the working folder; it must not exist yet.")],
) -> None:
    """Write an experiment that runs as it is: a commented configuration, reward functions and rows of data."""
    module = _module_of(name)
    with raised_as(ConfigError, f"{name_of(str(name), 300)}: cannot be written ({{cause}})", OSError):
        name.mkdir(parents=True)
        _write(name, module)
    for file, what in (
        ("config.yaml", "the settings that matter, each with its meaning"),
        ("rewards.py", "the reward functions"),
        ("rows.jsonl", f"{NUM_ROWS} prompts with their answers"),
    ):
        echo(f"{name / file}  {what}")
    echo(f"start with: grpo train {path_argument(name / 'config.yaml')}")


def _write(folder: Path, module: str) -> None:
    import jinja2

    template = jinja2.Template((STARTER / "config.yaml.j2").read_text(encoding="utf-8"), keep_trailing_newline=True)
    text = template.render(
        folder=folder,
        command_path=path_argument(folder / "config.yaml"),
        rows=json.dumps(f"file:{folder / 'rows.jsonl'}", ensure_ascii=False),  # JSON text is YAML text
        module=module,
    )
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    shutil.copyfile(STARTER / "rewards.py", folder / "rewards.py")
    rows = "".join(json.dumps(row) + "\n" for row in _rows())
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")


def _rows() -> list[dict[str, str]]:
    """Return distinct sums of three one-digit numbers: the same ones each time."""
    numbers, rows = random.Random(0), dict[str, str]()
    while len(rows) < NUM_ROWS:
        first, *others = (numbers.randint(0, 9) for _ in range(3))
        terms = [number * numbers.choice((1, -1)) for number in others]
        problem = f"{first}" + "".join(f" {'+' if term >= 0 else '-'} {abs(term)}" for term in terms)
        rows[f"{OPENING}{problem} ="] = str(first + sum(terms))
    return [{"question": question, "answer": answer} for question, answer in rows.items()]


def _module_of(folder: Path) -> str:
    """Return the name under which Python imports the reward functions of a folder below the working folder.

    Raises:
        ConfigError: it cannot, or would import something else of that name.
    """
    given = name_of(str(folder), 300)
    if folder.is_absolute() or not folder.parts or ".." in folder.parts:
        raise ConfigError(f"{given}: give a name, or a path below the working folder, from which the rewards are imported")
    for part in folder.parts:
        if not part.replace("_", "a").replace("-", "a").isalnum():
            raise ConfigError(
                f"{given}: a folder of a Python module has letters, digits, - and _ in its name, got {name_of(part)}"
            )
    found = importlib.util.find_spec(folder.parts[0])
    if found is not None and found.origin is not None:
        raise ConfigError(f"{given}: Python has a module of that name, which would be imported instead; give another name")
    return ".".join((*folder.parts, "rewards"))
