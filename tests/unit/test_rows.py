"""Where rows come from: files, data sets of a hub, reasoning-gym; what cannot be taken as it stands is refused by line."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from grpo_core.config import DataConfig
from grpo_core.data.sources import read_rows
from grpo_core.errors import DataError

ROWS = [{"question": f"{a} + {b} =", "answer": str(a + b), "level": f"level {a}"} for a in range(5) for b in range(4)]


@pytest.fixture(autouse=True)
def own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of a hub, which may be folders, are kept in a cache of the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_rows(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path, index=False, row_group_size=4)
    else:
        pandas.DataFrame(rows).to_csv(path, index=False)
    return path


def read(source: object, count: int | None = None, **values: Any) -> list[dict[str, Any]]:
    return read_rows(DataConfig(source=str(source), **values), count)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_a_file_of_any_format_and_a_data_set_of_a_hub_give_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / "set" / f"train{suffix}")
    sources = [f"file:{path}", *([f"hub:{path.parent}"] if suffix != ".csv" else [])]  # which makes numbers of the text there
    for source in sources:
        assert read(source) == ROWS
        assert [read(source, count) for count in (1, 3, len(ROWS), 99)] == [ROWS[:count] for count in (1, 3, len(ROWS), 99)]
        assert [read(source, count, size=2) for count in (None, 1, 3)] == [ROWS[:2], ROWS[:1], ROWS[:2]]


def test_a_missing_value_changes_no_type_of_a_table_and_the_rest_is_read_as_it_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "set" / "train.parquet"
    path.parent.mkdir()
    fields = {"level": [7, None], "is_hard": [True, None], "steps": [[1, None], None], "day": [datetime(2026, 1, 2), None]}
    facts = {"facts": [{"parts": 3}, {"parts": None}], "share": [0.5, None]}
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": [1, 2], **fields, **facts}), path)
    first = {"level": 7, "is_hard": True, "steps": [1, None], "day": "2026-01-02 00:00:00", "facts": {"parts": 3}, "share": 0.5}
    last = {**dict.fromkeys(first), "facts": {"parts": None}}
    expected = [{"question": "a", "answer": 1, **first}, {"question": "b", "answer": 2, **last}]
    for source in (f"file:{path}", f"hub:{path.parent}"):
        found = read(source)
        assert found == read(source, 2) == expected
        assert [type(row["answer"]) for row in found] == [int, int]
        assert [type(found[0][key]) for key in ("level", "is_hard")] == [int, bool]
        assert [type(item) for item in found[0]["steps"]] == [int, type(None)]


def test_jsonl_values_stay_what_they_are(tmp_path: Path) -> None:
    rows = [
        {"question": "a\u2028b", "answer": 7, "modified": "2026-01-01", "share": 0.1234567890123456, "tags": ["x"]},
        {"question": "c", "answer": None, "extra": {"big": 2**80}},
    ]
    assert read(f"file:{write_rows(tmp_path / 'rows.jsonl', rows)}") == rows


def test_a_csv_file_may_have_a_byte_order_mark_empty_lines_and_long_quoted_fields(tmp_path: Path) -> None:
    text = "x" * 200_000 + '\n""quoted""'
    (tmp_path / "rows.csv").write_text(f'\ufeffquestion,answer\n\n"{text}",\n\n')
    assert read(f"file:{tmp_path / 'rows.csv'}") == [{"question": text.replace('""', '"'), "answer": ""}]


def test_a_procedural_task_is_a_function_of_its_seed_and_as_many_as_asked_for() -> None:
    task = "reasoning_gym:chain_sum"
    assert read(task, size=5) == read(task, size=5) != read(task, size=5, seed=1)
    assert {"question", "answer", "metadata"} <= read(task, size=5)[0].keys()
    assert len(read(task, 3)) == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"source": "file:/nowhere/rows.jsonl"}, "no such file"),
        ({"source": "file:/nowhere/rows.txt"}, ".txt suffix; readable are .csv, .jsonl, .parquet"),
        ({"source": "file:/nowhere/rows"}, "no suffix"),
        ({"source": "hub:text"}, "is a format of files"),  # of whatever lies in the current folder
        ({"source": "hub:imagefolder"}, "is a format of files"),
        ({"source": "reasoning_gym:chain_sum", "task_args": {"min_terms": 5, "max_terms": 2}}, "chain_sum refuses them"),
        ({"source": "reasoning_gym:chain_sum", "task_args": {"min_terms": "two"}}, "chain_sum refuses them"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        read(size=2, **values)
    assert str(caught.value).startswith("data.task_args " if "task_args" in values else "data.source ")
    assert said in str(caught.value)


def test_a_data_set_of_a_hub_without_the_split_is_refused_with_both_keys(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set" / "train.jsonl")
    with pytest.raises(DataError, match=r"data\.hub_split proof.*file:<path>"):
        read(f"hub:{path.parent}", hub_split="proof")


@pytest.mark.parametrize("is_switched_off", [True, False])
def test_offline_a_data_set_of_a_hub_is_one_message_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_switched_off: bool
) -> None:
    places = [(huggingface_hub.constants, "ENDPOINT"), (datasets.config, "HF_ENDPOINT")]
    for module, endpoint in places:  # port 9 of this machine: nobody listens
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", is_switched_off)
        monkeypatch.setattr(module, endpoint, "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(DataError, match=r"hub:nobody/nothing .*cannot be loaded: the hub cannot be reached .*file:<path>"):
        read("hub:nobody/nothing")
    assert time.monotonic() - began < 10
    assert [record.getMessage() for record in caplog.records if "Retry" in record.getMessage()] == []
    assert [module.HF_HUB_OFFLINE for module, _ in places] == [is_switched_off] * 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b"", "holds no rows"),
        ("rows.csv", b"question,answer\n", "holds no rows"),
        ("rows.jsonl", b'{"question": "a"}\n\n{"question": \n', "line 3: "),
        ("rows.jsonl", b"[1]\n", "line 1 is a list, not an object"),
        ("rows.jsonl", b"\xff\n", "cannot be read as .jsonl"),
        ("rows.jsonl", b"[" * 100_000 + b"\n", "line 1: "),
        ("rows.jsonl", b'{"question": "\\ud83d"}\n', "line 1: unexpected end of hex escape"),
        ("rows.jsonl", b'{"question": "a", "tags": ' + b"[" * 250 + b"]" * 250 + b"}\n", "line 1: recursion limit"),
        ("rows.parquet", b"PAR?", "cannot be read as .parquet"),
        ("rows.csv", b'question,answer\n"a,1\n', "cannot be read as .csv"),
        # pandas takes the first field of each row for an index, and shifts the others under the wrong names.
        ("rows.csv", b"question,answer\n1 + 1 =,2,3\n", "line 2 has 3 fields, the header has 2"),
        ("rows.csv", b"question,answer\n1 + 1 =,2\n1 + 2 =\n", "line 3 has 1 fields"),
        ("rows.csv", b"question,question\na,b\n", "two columns are called 'question'"),
    ],
)
def test_a_file_that_cannot_be_taken_as_it_stands_is_refused_with_the_line(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(f"file:{tmp_path / name}")
    assert said in str(caught.value)
