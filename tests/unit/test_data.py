"""Data preparation: sources, mapping, templates, splitting, freezing, and the order of prompts."""

import copy
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
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
from grpo_core.data.frozen import freeze, load_frozen, read_manifest
from grpo_core.data.prepare import prepare
from grpo_core.data.prompts import PromptSplit, build_prompts, prompts_of_step
from grpo_core.data.sources import first_rows, read_rows
from grpo_core.errors import DataError
from grpo_core.types import Prompt

ROWS = [{"question": f"{a} + {b} =", "answer": str(a + b), "level": f"level {a}"} for a in range(5) for b in range(4)]
GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k" / "train.jsonl"


def write_rows(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    frame = pandas.DataFrame(rows)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.fixture
def split(tiny_tokenizer: Any) -> Callable[..., PromptSplit]:
    """Return a function that makes prompts of rows with the tiny tokenizer."""

    def make(rows: list[dict[str, Any]] = ROWS, max_prompt_tokens: int = 128, **values: Any) -> PromptSplit:
        return build_prompts(rows, DataConfig(source="file:rows.jsonl", **values), tiny_tokenizer, max_prompt_tokens)

    return make


# Sources


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_a_file_of_any_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    assert read_rows(DataConfig(source=f"file:{write_rows(tmp_path / f'rows{suffix}')}")) == ROWS


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_hub_data_set_gives_the_same_rows_as_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    write_rows(tmp_path / "set" / f"train{suffix}")
    assert read_rows(DataConfig(source=f"hub:{tmp_path / 'set'}")) == ROWS


def test_lists_dates_and_records_of_a_table_are_read_as_they_are_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    fields = {"parts": [{"gold": ["1", "2"]}], "numbers": [[1, 2], [3]], "day": datetime(2026, 1, 2)}
    path = write_rows(tmp_path / "set" / "train.parquet", [{**row, **fields} for row in ROWS])
    expected = [{**row, **fields, "day": "2026-01-02 00:00:00"} for row in ROWS]
    for source in (f"file:{path}", f"hub:{path.parent}"):
        assert read_rows(DataConfig(source=source)) == first_rows(DataConfig(source=source), len(ROWS)) == expected


def test_a_missing_value_changes_no_type_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / "train.parquet"
    fields = {"level": [7, None], "is_hard": [True, None], "steps": [[1, None], None], "day": [datetime(2026, 1, 2), None]}
    facts = {"facts": [{"parts": 3}, {"parts": None}], "share": [0.5, None]}
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": [1, 2], **fields, **facts}), path)
    first = {"level": 7, "is_hard": True, "steps": [1, None], "day": "2026-01-02 00:00:00", "facts": {"parts": 3}, "share": 0.5}
    last = {**dict.fromkeys(first), "facts": {"parts": None}}
    expected = [{"question": "a", "answer": 1, **first}, {"question": "b", "answer": 2, **last}]
    for source in (f"file:{path}", f"hub:{path.parent}"):
        found = read_rows(DataConfig(source=source))
        assert found == expected
        assert [type(row["answer"]) for row in found] == [int, int]
        assert type(found[0]["level"]) is int
        assert [type(item) for item in found[0]["steps"]] == [int, type(None)]


def test_a_hub_data_set_without_the_split_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_rows(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"data\.hub_split proof.*file:<path>"):
        read_rows(DataConfig(source=f"hub:{tmp_path}", hub_split="proof"))


@pytest.mark.parametrize("name", ["text", "csv", "json", "parquet", "imagefolder"])
def test_a_format_of_files_is_no_data_set_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "secret.txt").write_text("canary\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"hub:{name}: is a format of files"):
        read_rows(DataConfig(source=f"hub:{name}"))


def test_a_hub_data_set_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"hub:{tmp_path}/none.*cannot be loaded"):
        read_rows(DataConfig(source=f"hub:{tmp_path}/none"))


@pytest.mark.parametrize("is_switched_off", [True, False])
def test_offline_a_hub_data_set_is_one_message_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_switched_off: bool
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_switched_off)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", is_switched_off)
    # Port 9 of this machine: nobody listens.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(DataError, match=r"hub:nobody/nothing .*cannot be loaded: the hub cannot be reached .*file:<path>"):
        read_rows(DataConfig(source="hub:nobody/nothing"))
    assert time.monotonic() - began < 10
    assert [record.getMessage() for record in caplog.records if "Retry" in record.getMessage()] == []
    assert huggingface_hub.constants.HF_HUB_OFFLINE is is_switched_off
    assert datasets.config.HF_HUB_OFFLINE is is_switched_off


def test_jsonl_values_stay_what_they_are(tmp_path: Path) -> None:
    rows = [
        {"question": "a\u2028b", "answer": 7, "modified": "2026-01-01", "share": 0.1234567890123456, "tags": ["x"]},
        {"question": "c", "answer": None, "extra": {"big": 2**80}},
    ]
    assert read_rows(DataConfig(source=f"file:{write_rows(tmp_path / 'rows.jsonl', rows)}")) == rows


def test_a_procedural_task_is_a_function_of_its_seed() -> None:
    config = DataConfig(source="reasoning_gym:chain_sum", size=5)
    assert read_rows(config) == read_rows(config)
    assert read_rows(config) != read_rows(config.model_copy(update={"seed": 1}))
    assert {"question", "answer", "metadata"} <= read_rows(config)[0].keys()


def test_the_size_bounds_the_rows(tmp_path: Path) -> None:
    assert read_rows(DataConfig(source=f"file:{write_rows(tmp_path / 'rows.csv')}", size=3)) == ROWS[:3]
    assert len(read_rows(DataConfig(source="reasoning_gym:chain_sum", size=3))) == 3


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("file:/nowhere/rows.jsonl", "no such file"),
        ("file:/nowhere/rows.txt", r".txt suffix; readable are .csv, .jsonl, .parquet"),
        ("file:/nowhere/rows", "no suffix"),
        ("file:~nobody-of-that-name/rows.csv", "cannot be a file"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused(source: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        read_rows(DataConfig(source=source))
    assert source in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("task_args", [{"no_such_argument": 1}, {"min_terms": 5, "max_terms": 2}, {"min_terms": "two"}])
def test_arguments_that_a_task_refuses_are_named(task_args: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"data\.task_args .*chain_sum refuses them"):
        read_rows(DataConfig(source="reasoning_gym:chain_sum", task_args=task_args, size=2))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=r"holds no rows|No columns"):
        read_rows(DataConfig(source=f"file:{tmp_path / name}"))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\n")
    with pytest.raises(DataError, match="holds no rows"):
        read_rows(DataConfig(source=f"file:{tmp_path / 'rows.csv'}"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", b'{"question": "a"}\n{"question": \n'),
        ("rows.jsonl", b"[1]\n"),
        ("rows.jsonl", b"\xff\n"),
        ("rows.parquet", b"PAR?"),
        ("rows.csv", b'question,answer\n"a,1\n'),
        ("rows.jsonl", b"[" * 100_000 + b"\n"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as"):
        read_rows(DataConfig(source=f"file:{tmp_path / name}"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        # pandas takes the first field of each row for an index, and shifts the others under the wrong names.
        ("rows.csv", b"question,answer\n1 + 1 =,2,3\n", "line 2 has 3 fields, the header has 2"),
        ("rows.csv", b"question,answer\n1 + 1 =,2\n1 + 2 =\n", "line 3 has 1 fields"),
        ("rows.csv", b"question,question\na,b\n", "two columns are called 'question'"),
        ("rows.jsonl", b'{"question": "a"}\n\n{"question": \n', "line 3: "),
        ("rows.jsonl", b'{"question": "\\ud83d"}\n', "line 1 holds half of a surrogate pair"),
        ("rows.jsonl", b'{"question": "a", "tags": ' + b"[" * 60 + b"]" * 60 + b"}\n", "line 1 is nested too deeply"),
    ],
)
def test_a_row_that_cannot_be_taken_as_it_stands_is_refused_with_its_line(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_rows(DataConfig(source=f"file:{tmp_path / name}"))
    assert said in str(caught.value)


def test_a_csv_file_may_have_a_byte_order_mark_empty_lines_and_long_quoted_fields(tmp_path: Path) -> None:
    text = "x" * 200_000 + '\n""quoted""'
    (tmp_path / "rows.csv").write_text(f'\ufeffquestion,answer\n\n"{text}",\n\n')
    assert read_rows(DataConfig(source=f"file:{tmp_path / 'rows.csv'}")) == [
        {"question": text.replace('""', '"'), "answer": ""}
    ]


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    columns = [pyarrow.array(["a"]), pyarrow.array(["b"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["question"] * 2), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="question"):
        read_rows(DataConfig(source=f"file:{tmp_path / 'rows.parquet'}"))


# From rows to prompts


def test_a_prompt_is_the_question_under_the_chat_template(split: Callable[..., PromptSplit], tiny_tokenizer: Any) -> None:
    prompt = split(eval_fraction=0).train[3]
    assert prompt.id == 3
    assert prompt.content == ({"role": "user", "content": "0 + 3 ="},)
    assert prompt.text == "<|user|>0 + 3 =<|end|><|assistant|>"
    assert len(prompt.token_ids) == 7 + 3
    assert tiny_tokenizer.convert_tokens_to_string(tiny_tokenizer.convert_ids_to_tokens(prompt.token_ids)) == prompt.text
    assert prompt.columns == {"level": "level 0", "answer": "3"}


def test_system_prompt_and_examples_become_earlier_turns(split: Callable[..., PromptSplit]) -> None:
    prompt = split(eval_fraction=0, system_prompt="Be brief", examples=(("1 + 1 =", "2"), ("2 + 2 =", "4"))).train[0]
    assert prompt.text == (
        "<|system|>Be brief<|end|><|user|>1 + 1 =<|end|><|assistant|>2<|end|><|user|>2 + 2 =<|end|><|assistant|>4<|end|>"
        "<|user|>0 + 0 =<|end|><|assistant|>"
    )
    assert [turn["role"] for turn in prompt.content] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_without_the_chat_template_the_prompt_is_plain_text(split: Callable[..., PromptSplit]) -> None:
    prompt = split(eval_fraction=0, chat_template=False, system_prompt="Add", examples=(("1 + 1 =", "2"),)).train[0]
    assert prompt.content == prompt.text == "Add\n\n1 + 1 =\n2\n\n0 + 0 ="


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_chat_messages_in_the_prompt_column_are_taken_over(
    split: Callable[..., PromptSplit], tmp_path: Path, suffix: str
) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "2 + 2 ="}]
    path = write_rows(tmp_path / f"rows{suffix}", [{"question": turns, "answer": "4"}])
    rows = read_rows(DataConfig(source=f"file:{path}"))
    prompt = split(rows, eval_fraction=0, system_prompt="Be brief").train[0]
    assert prompt.content == ({"role": "system", "content": "Be brief"}, *turns)
    assert prompt.text.endswith("<|assistant|>yes<|end|><|user|>2 + 2 =<|end|><|assistant|>")


def test_chat_messages_without_a_template_are_refused(split: Callable[..., PromptSplit]) -> None:
    with pytest.raises(DataError, match=r"data\.chat_template: off needs text prompts"):
        split([{"question": [{"role": "user", "content": "hi"}], "answer": "4"}], chat_template=False)


@pytest.mark.parametrize(
    "value", ["", None, 7, [], ["hi"], [{"role": "user"}], [{"role": "user", "content": None}], [{"role": 1, "content": "hi"}]]
)
def test_a_prompt_that_is_neither_text_nor_messages_is_refused_with_its_row(
    split: Callable[..., PromptSplit], value: Any
) -> None:
    with pytest.raises(DataError, match=r"data\.prompt_column 'question', row 1: expected text or a list of chat messages"):
        split([ROWS[0], {"question": value, "answer": "4"}])


def test_messages_that_the_template_refuses_are_refused_with_their_row(tiny_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"data\.chat_template: .* refuses the messages of row 0 .*roles must alternate"):
        build_prompts(ROWS, DataConfig(source="file:rows.jsonl"), tokenizer, 100)


@pytest.mark.parametrize("key", ["prompt_column", "answer_column"])
def test_a_missing_column_is_refused_with_the_columns_that_are_there(split: Callable[..., PromptSplit], key: str) -> None:
    with pytest.raises(DataError) as caught:
        split(**{key: "problem"})
    assert f"data.{key}: no column 'problem'" in str(caught.value)
    assert "'question', 'answer', 'level'" in str(caught.value)


def test_other_column_names_can_be_mapped(split: Callable[..., PromptSplit]) -> None:
    prompt = split(eval_fraction=0, prompt_column="level", answer_column="question").train[1]
    assert prompt.text == "<|user|>level 0<|end|><|assistant|>"
    assert prompt.columns == {"answer": "0 + 1 ="}


def test_without_an_answer_column_rewards_get_no_answer(split: Callable[..., PromptSplit]) -> None:
    assert split([{"question": "hi"}], eval_fraction=0, answer_column=None).train[0].columns == {}


@pytest.mark.parametrize("empty", [None, float("nan"), "", "  "])
def test_an_empty_answer_is_refused_with_its_row(split: Callable[..., PromptSplit], empty: Any) -> None:
    with pytest.raises(DataError, match=r"data\.answer_column 'answer': is empty in 1 of 2 rows, the first is row 1; remove"):
        split([ROWS[0], {"question": "hi", "answer": empty}])


def test_the_gold_answer_is_what_follows_the_last_marker(split: Callable[..., PromptSplit]) -> None:
    rows = [{"question": "hi", "answer": "say #### 1 and #### 42 \n"}]
    assert split(rows, eval_fraction=0, answer_after="####").train[0].columns["answer"] == "42"


def test_an_answer_without_the_marker_is_refused_with_its_row(split: Callable[..., PromptSplit]) -> None:
    with pytest.raises(DataError, match=r"data\.answer_after '####': not in the answer of row 0"):
        split(answer_after="####")


@pytest.mark.skipif(not GSM8K.exists(), reason=f"GSM8K is not on this machine ({GSM8K})")
def test_gsm8k_questions_and_gold_answers_are_read(split: Callable[..., PromptSplit]) -> None:
    config = DataConfig(source=f"file:{GSM8K}", answer_after="####", size=200)
    result = split(read_rows(config), max_prompt_tokens=2000, answer_after="####", eval_fraction=0)
    assert [prompt.columns["answer"] for prompt in result.train[:3]] == ["72", "10", "5"]
    assert result.train[0].text.startswith("<|user|>Natalia sold clips to 48 of her friends in April")
    assert len(result.train) == 200


def test_prompts_that_are_too_long_are_dropped_and_counted(split: Callable[..., PromptSplit]) -> None:
    rows = [*ROWS, {"question": "x" * 50, "answer": "1"}, {"question": "x" * 51, "answer": "1"}]
    result = split(rows, max_prompt_tokens=53, eval_fraction=0)
    assert result.num_too_long == 1
    assert len(result.train) == len(ROWS) + 1


def test_nothing_but_too_long_prompts_is_refused_with_the_bound(split: Callable[..., PromptSplit]) -> None:
    with pytest.raises(DataError, match=r"no prompt is left of 20 rows; 20 have more than rollout\.max_prompt_tokens 4 tokens"):
        split(max_prompt_tokens=4)


# The split


def test_train_and_eval_share_no_text_and_eval_has_each_text_once(split: Callable[..., PromptSplit]) -> None:
    result = split([*ROWS, *ROWS, *ROWS], eval_fraction=0.25)
    train, held_out = [prompt.text for prompt in result.train], [prompt.text for prompt in result.eval]
    assert set(train) & set(held_out) == set()
    assert len(held_out) == len(set(held_out)) == 5
    assert len(train) == 45
    assert result.num_duplicates == 10


def test_the_split_does_not_depend_on_the_order_of_rows(split: Callable[..., PromptSplit]) -> None:
    there, back = split(ROWS, eval_fraction=0.25), split(ROWS[::-1], eval_fraction=0.25)
    assert {prompt.text for prompt in there.eval} == {prompt.text for prompt in back.eval}


def test_another_seed_holds_out_other_prompts(split: Callable[..., PromptSplit]) -> None:
    assert {p.text for p in split(eval_fraction=0.25).eval} != {p.text for p in split(eval_fraction=0.25, seed=1).eval}


def test_more_eval_prompts_contain_the_fewer(split: Callable[..., PromptSplit]) -> None:
    few, many = split(eval_fraction=0.1), split(eval_fraction=0.5)
    assert {prompt.text for prompt in few.eval} < {prompt.text for prompt in many.eval}


@pytest.mark.parametrize(("rows", "fraction"), [(ROWS[:4], 0.1), (ROWS[:1], 0.9)])
def test_a_split_that_leaves_a_side_empty_is_refused(
    split: Callable[..., PromptSplit], rows: list[dict[str, Any]], fraction: float
) -> None:
    with pytest.raises(DataError, match=rf"data\.eval_fraction: {fraction} of {len(rows)} distinct prompts"):
        split(rows, eval_fraction=fraction)


# Freezing


def test_frozen_prompts_are_read_back_as_they_were(split: Callable[..., PromptSplit], tmp_path: Path) -> None:
    rows = [*ROWS, {"question": "a\u2028b\x85c\nd", "answer": "é", "level": None}]
    result = split(rows, eval_fraction=0.25)
    manifest = freeze(result, "file:rows.jsonl", tmp_path / "data")
    assert load_frozen(tmp_path / "data") == (result.train, result.eval)
    assert read_manifest(tmp_path / "data") == manifest
    assert (manifest.num_train, manifest.num_eval) == (16, 5)


def test_plain_text_prompts_are_read_back_as_they_were(split: Callable[..., PromptSplit], tmp_path: Path) -> None:
    result = split(chat_template=False)
    freeze(result, "file:rows.jsonl", tmp_path)
    assert load_frozen(tmp_path) == (result.train, result.eval)


@pytest.mark.parametrize("name", ["train.jsonl", "eval.jsonl"])
def test_a_changed_file_is_refused_by_its_digest(split: Callable[..., PromptSplit], tmp_path: Path, name: str) -> None:
    freeze(split(), "file:rows.jsonl", tmp_path)
    content = (tmp_path / name).read_text()
    (tmp_path / name).write_text(content.replace('"answer": "', '"answer": "1', 1))
    with pytest.raises(DataError, match=f"{name}: SHA-256 is .* the frozen prompts were changed"):
        load_frozen(tmp_path)


@pytest.mark.parametrize(
    "manifest", [b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"source": "x", "num_train": 1}', b'{"train_sha256": 5}']
)
def test_a_damaged_manifest_of_the_data_is_refused(split: Callable[..., PromptSplit], tmp_path: Path, manifest: bytes) -> None:
    freeze(split(), "file:rows.jsonl", tmp_path)
    facts = json.loads((tmp_path / "manifest.json").read_text())
    damaged = json.dumps({**facts, **json.loads(manifest)}).encode() if b"sha256" in manifest else manifest
    (tmp_path / "manifest.json").write_bytes(damaged)
    with pytest.raises(DataError, match=r"no readable manifest\.json"):
        load_frozen(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"content": 5}, "no frozen prompt .*content"),
        ({"id": True}, "no frozen prompt .*id"),
    ],
)
def test_a_frozen_line_that_is_no_prompt_is_refused_whatever_its_digest(
    split: Callable[..., PromptSplit], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    freeze(split(), "file:rows.jsonl", tmp_path)
    first, *others = (tmp_path / "eval.jsonl").read_text().split("\n")
    content = "\n".join([json.dumps({**json.loads(first), **changes}), *others])
    (tmp_path / "eval.jsonl").write_text(content)
    facts = json.loads((tmp_path / "manifest.json").read_text())
    facts["eval_sha256"] = hashlib.sha256(content.encode()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=said):
        load_frozen(tmp_path)


def test_a_folder_without_frozen_data_is_refused(split: Callable[..., PromptSplit], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json.*was the data prepared"):
        load_frozen(tmp_path)
    freeze(split(), "file:rows.jsonl", tmp_path)
    (tmp_path / "eval.jsonl").unlink()
    with pytest.raises(DataError, match=r"eval\.jsonl: cannot be read"):
        load_frozen(tmp_path)


def test_the_digest_is_a_function_of_the_data_seed(tiny_config: Callable[..., Any], tmp_path: Path) -> None:
    digests = [
        prepare(tiny_config({"data.seed": seed, "training.seed": training_seed}), tmp_path / str(index)).digest
        for index, (seed, training_seed) in enumerate([(0, 0), (0, 9), (1, 0)])
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_prepared_data_can_be_scored_by_its_task(tiny_config: Callable[..., Any], tmp_path: Path) -> None:
    from grpo_core.rewards.base import load_rewards, score

    config = tiny_config()
    prepare(config, tmp_path)
    train, _ = load_frozen(tmp_path)
    scored = score(load_rewards(config.rewards[:1]), train[:4], [prompt.columns["answer"] for prompt in train[:4]])
    assert scored.total == (1.0, 1.0, 1.0, 1.0)


# The order


def numbered(count: int) -> list[Prompt]:
    empty = Prompt(id=0, content="", text="", token_ids=(), columns={})
    return [replace(empty, id=index) for index in range(count)]


@pytest.mark.parametrize(("count", "per_step"), [(7, 3), (3, 7), (5, 5), (1, 2)])
def test_each_pass_over_the_prompts_is_a_permutation(count: int, per_step: int) -> None:
    steps = range(1, 3 * count + 1)
    ids = [prompt.id for step in steps for prompt in prompts_of_step(numbered(count), per_step, seed=5, step=step)]
    passes = [ids[start : start + count] for start in range(0, len(ids), count)]
    assert len(passes) == 3 * per_step
    assert all(sorted(one) == list(range(count)) for one in passes)


def test_a_run_can_enter_the_order_at_any_step() -> None:
    prompts = numbered(7)
    forwards = {step: prompts_of_step(prompts, 3, seed=5, step=step) for step in range(1, 20)}
    backwards = {step: prompts_of_step(prompts, 3, seed=5, step=step) for step in range(19, 0, -1)}
    assert forwards == backwards


def test_passes_and_seeds_differ_in_their_order() -> None:
    prompts = numbered(20)
    first, second = (prompts_of_step(prompts, 20, seed=5, step=step) for step in (1, 2))
    assert first != second
    assert first != prompts_of_step(prompts, 20, seed=6, step=1)
