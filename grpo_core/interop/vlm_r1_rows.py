"""Rows of VLM-R1's data files become one JSONL file of ours, as `grpo_jsonl.py` reads them, with VLM-R1's prompt.

A row there: `{"image": "a.jpg" | [..], "conversations": [{"from": "human", "value": ..}, {"from": "gpt", "value": ..}]}`, its
images below the folder that the launch names for the file. Here: `question`, `answer`, `images`, `accu_reward_method`, and the
row's other keys. Images stay where they are: their paths are relative to the new file, in whose folder they have to lie.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo_core.errors import ConfigError, name_of, raised_as, shown
from grpo_core.machine.disk import write_whole

METHOD = "accu_reward_method"
"""Key of a row that goes before the method of its file."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One of VLM-R1's data files, with what the launch names for it."""

    path: Path
    images: Path
    """Folder of its images."""
    method: str
    """How its answers are scored, where a row does not say."""


@dataclass(frozen=True, kw_only=True)
class JoinedRows:
    """The data files of a launch."""

    files: tuple[DataFile, ...]
    prompt: str
    """What the model is asked, with `{question}` where the row's question stands."""

    def write(self, output: Path) -> int:
        """Write all rows into one new file; return how many.

        Raises:
            ConfigError: a file cannot be read or written, an image does not lie below the new file's folder, or a row is none
                of VLM-R1's.
        """
        if output.suffix != ".jsonl" or output.exists():
            fault = "is there already, and nothing was changed" if output.exists() else "is to hold one JSON object a line"
            raise ConfigError(f"data {output}: {fault}; give a new name that ends in .jsonl")
        folder = output.parent.resolve()
        folders = [file.images.expanduser().resolve() for file in self.files]
        if outside := [images for images in folders if not images.is_relative_to(folder)]:
            raise ConfigError(
                f"data {output}: the images in {name_of(str(outside[0]), 300)} do not lie below its folder; name a file in "
                f"{name_of(os.path.commonpath(folders), 300)} or above"
            )
        rows = [row for file in self.files for row in _rows(file, self.prompt, folder)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with raised_as(ConfigError, f"data {output}: cannot be written ({{cause}})", OSError):
            write_whole(output, text)
        return len(rows)


def _rows(file: DataFile, prompt: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as ours; `folder` is the one that their images' paths begin in."""
    with (
        raised_as(ConfigError, f"data_file_paths: {file.path} cannot be read ({{cause}})", OSError, UnicodeDecodeError),
        file.path.expanduser().open(encoding="utf-8-sig", newline="\n") as lines,
    ):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                with raised_as(ConfigError, f"data_file_paths: {file.path}, line {number}: {{cause}}", ValueError):
                    yield _row(from_json(line), file, prompt, folder)


def _row(row: Any, file: DataFile, prompt: str, folder: Path) -> dict[str, Any]:
    """Return a row as one of ours.

    Raises:
        ValueError: it is none of VLM-R1's, or one of its images lies outside.
    """
    if not isinstance(row, dict):
        raise ValueError(f"it is a {type(row).__name__}, not an object")
    turns = row.get("conversations")
    if (
        not isinstance(turns, list)
        or len(turns) < 2
        or not all(isinstance(turn, dict) and "value" in turn for turn in turns[:2])
    ):
        raise ValueError("it has no `conversations` of a question and an answer, each with a `value`")
    question, answer = (turn["value"] for turn in turns[:2])
    if not isinstance(question, str):
        raise ValueError(f"the question is {shown(question)}, not text")
    images = row.get("image", [])
    paths = images if isinstance(images, list) else [images]
    if not all(isinstance(path, str) for path in paths):
        raise ValueError(f"image is {shown(images)}, and a path or a list of paths is needed")
    others = {key: value for key, value in row.items() if key not in ("conversations", "image")}
    return {
        **others,
        "question": prompt.replace("{question}", question.replace("<image>", "")),
        "answer": _answer(answer),
        "images": [_from(folder, file.images, path) for path in paths],
        METHOD: row.get(METHOD, file.method),
    }


def _answer(value: Any) -> str:
    """Return a gold answer without its tags; a number or a list, such as a box, as JSON has it."""
    return value.replace("<answer>", "").replace("</answer>", "").strip() if isinstance(value, str) else json.dumps(value)


def _from(folder: Path, images: Path, path: str) -> str:
    """Return the path of an image as seen from a folder.

    Raises:
        ValueError: it leads out of the folder.
    """
    whole = Path(os.path.normpath(images.expanduser().resolve() / path))
    if not whole.is_relative_to(folder):
        raise ValueError(f"image {shown(path)} lies outside of {folder}, where the new file is")
    return str(whole.relative_to(folder))
