"""Settings of 60 public runs: every key in exactly one list, and every result valid or refused for a reason that is true."""

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import check_consistency, load_config
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import SYSTEMS, Imported, import_config
from grpo_core.interop.files import flatten_sections
from grpo_core.interop.report import render
from tests.public_files import label, public_files, write_file

RECORDS = public_files()
READABLE = [record for record in RECORDS if "refused" not in record["expected"]]


def convert(folder: Path, record: dict[str, Any]) -> Imported:
    """Import a record through a file."""
    return import_config(write_file(folder, record), record.get("format"), record.get("processes"))


def given_keys(record: dict[str, Any]) -> list[str]:
    """Return the keys that a record gives, found by another way than the import's: `shlex` for a script."""
    if "values" in record:
        values = record["values"]
        return list(flatten_sections(values)) if record["expected"]["system"] == "roll" else list(values)
    words = [word for line in record["command"] for word in shlex.split(line)]
    program = next(at for at, word in enumerate(words) if word.endswith(".py"))
    launcher = next(
        (word for word in words[:program] if word in ("torchrun", "accelerate", "python")), "a launcher that is not known"
    )
    names = [
        (at, word.lstrip("-").partition("=")[0].replace("-", "_"))
        for at, word in enumerate(words)
        if word.startswith("-") and not word[1:2].isdecimal()
    ]
    of_program = dict.fromkeys(name for at, name in names if at > program)
    return [*(f"{launcher} --{name}" for at, name in names if at < program), *of_program]


def test_there_are_sixty_from_four_systems() -> None:
    assert len({label(record) + str(record["commit"]) for record in RECORDS}) == 60
    assert Counter(record["expected"]["system"] for record in READABLE) == {"open-r1": 19, "vlm-r1": 11, "roll": 10, "trl": 9}


@pytest.mark.parametrize("record", READABLE, ids=label)
def test_every_key_is_in_exactly_one_list(record: dict[str, Any], tmp_path: Path) -> None:
    imported = convert(tmp_path, record)
    given = Counter(entry.key for entry in imported.entries if not entry.is_default)
    positional = {"train"} if record["repository"] == "Carlos-Mero/proofrl" else set()
    assert given == Counter(dict.fromkeys([*given_keys(record), *positional], 1))
    assert {entry.fate for entry in imported.entries} <= {"mapped", "no_counterpart", "dead", "unknown"}
    assert [entry.key for entry in imported.entries if entry.fate == "unknown"] == record["expected"]["unknown"]
    text = re.sub(r"\n#\s+", " ", render(imported))  # comments are wrapped
    assert [entry.key for entry in imported.entries if f" {entry.key} = " not in text] == []


@pytest.mark.parametrize("record", READABLE, ids=label)
def test_the_result_is_valid_or_check_names_the_rewards_to_write(record: dict[str, Any], tmp_path: Path) -> None:
    imported = convert(tmp_path, record)
    assert SYSTEMS[record["expected"]["system"]].title == imported.title
    missing = [name.rpartition(" (")[0] for name in imported.missing_rewards]
    assert missing == record["expected"]["missing"]
    written = tmp_path / "mine.yaml"
    written.write_text(render(imported))
    if not missing:
        assert load_config(written, {"tracking.experiment": imported.config.tracking.experiment}) == imported.config
        check_consistency(imported.config)
        return
    with pytest.raises(ConfigError) as caught:
        load_config(written)
    lines = str(caught.value).splitlines()
    assert [name for name in missing if f"'{name} (" not in str(caught.value)] == []
    assert [line for line in lines if "is neither built in" not in line or "write the function" not in line] == []
    # Without the rewards that are left to write, the rest is valid.
    check_consistency(imported.config)


@pytest.mark.parametrize("record", [record for record in RECORDS if record not in READABLE], ids=label)
def test_what_is_refused_is_refused_for_its_reason(record: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(tmp_path, record)
    assert record["expected"]["refused"] in str(caught.value)
    assert "\n" not in str(caught.value)
