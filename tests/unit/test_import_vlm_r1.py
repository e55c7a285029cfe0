"""A launch of VLM-R1 becomes a configuration, and its data one file of rows: images, prompts, answers and methods."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import load_config
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import import_config
from tests.support.commands import grpo
from tests.support.imports import convert, entry_of
from tests.support.vlm_r1 import ASKED, write_launch

BASE = {"num_generations": 8, "data_file_paths": "a.jsonl", "image_folders": "images", "model_name_or_path": "Qwen2.5-VL"}
MODULE = "is_reward_customized_from_vlm_module"
THINK = (
    "First output the thinking process in <think> </think> tags and then output the final answer in <answer> </answer> tags."
)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, *rows: Any) -> None:
    """Write rows as a JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(question: str = "<image>Which?", answer: Any = "B", **others: Any) -> dict[str, Any]:
    """Return a row in VLM-R1's form."""
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": 1, "image": "a.png", "conversations": turns, **others}


def joined(folder: Path, *rows: Any, **settings: Any) -> list[dict[str, Any]]:
    """Return the rows that are written of one data file in a folder."""
    write_rows(folder / "a.jsonl", *rows)
    given = {**BASE, "data_file_paths": str(folder / "a.jsonl"), "image_folders": str(folder / "images"), **settings}
    new = folder / "rows.jsonl"
    imported = convert(folder, given, "vlm-r1", rows=new)
    assert imported.rows is not None
    assert imported.rows.write(new) == len(rows)
    return read_rows(new)


def test_the_published_launch_becomes_a_configuration_and_its_ten_rows_one_file(tmp_path: Path) -> None:
    script, data, configuration = write_launch(tmp_path), tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    done = grpo("import-config", str(script), "--data", str(data), "-o", str(configuration))
    assert done.returncode == 0, done.stderr
    assert f"{data}: 10 rows" in done.stderr
    config = load_config(configuration)
    assert config.data.source == f"file:{data}"
    assert (config.data.max_image_pixels, config.model.freeze, config.data.eval_fraction) == (12_845_056, (), 0)
    assert [(reward.fn, reward.args) for reward in config.rewards] == [
        ("box_iou", {"coordinates": "input"}),
        ("box_format", {}),
    ]
    assert (config.rollout.num_prompts_per_step, config.rollout.group_size, config.loss.beta) == (16, 8, 0.04)
    rows = read_rows(data)
    assert len(rows) == 10
    assert {row["question"] for row in rows} == {f"{ASKED} {THINK} Output the final answer in JSON format."}
    assert [row["answer"] for row in rows[:3]] == ["[4, 8, 20, 24]", "[0, 0, 8, 8]", "[2, 2, 30, 30]"]
    assert [(data.parent / name).resolve() for row in rows for name in row["images"]] == [
        tmp_path / ("coco" if number < 5 else "coco/more") / f"image_{number}.png" for number in range(10)
    ]


def test_no_file_is_written_over(tmp_path: Path) -> None:
    script, data = write_launch(tmp_path), tmp_path / "rows.jsonl"
    data.write_text("mine\n")
    done = grpo("import-config", str(script), "--data", str(data))
    assert done.returncode != 0
    assert "is there already, and nothing was changed" in done.stderr
    assert data.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("task", "prompt"),
    [
        (None, f"Which? {THINK}"),
        ("gui", f"Which? {THINK}"),
        ("rec", f"Which? {THINK} Output the final answer in JSON format."),
        (
            "ic",
            "Which? First thinks about the reasoning process in the mind and then provides the user with the answer. The "
            "reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, "
            "i.e., <think> reasoning process here </think><answer> json format answer here </answer>",
        ),
        (
            "odLength",
            "First thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
            "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
            "reasoning process here </think><answer> answer here </answer>\nWhich?",
        ),
    ],
)
def test_a_row_asks_as_vlm_r1s_module_for_qwen_does(tmp_path: Path, task: str | None, prompt: str) -> None:
    assert joined(tmp_path, row(), task_type=task)[0]["question"] == prompt


def test_a_row_keeps_what_rewards_may_read(tmp_path: Path) -> None:
    many = row("<image>Compare <image> {question}", 7.5, image=["a.png", "more/../b.png"], kind="x", accu_reward_method="mcq")
    text = row("No image?", "no")
    del text["image"]
    first, second = joined(tmp_path, many, text, reward_method="yes_no")
    asked = f"Compare  {{question}} {THINK}"
    assert first == {
        "id": 1,
        "question": asked,
        "answer": "7.5",
        "images": ["images/a.png", "images/b.png"],
        "kind": "x",
        "accu_reward_method": "mcq",
    }
    assert (second["images"], second["accu_reward_method"]) == ([], "yes_no")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"vlm_r1_accuracy": {"method": "default"}, "format": {"pattern": r"<think>.*?</think>\s*<answer>.*?</answer>"}}),
        ({"reward_method": "all_match", "reward_funcs": "accuracy"}, {"vlm_r1_accuracy": {"method": "all_match"}}),
        ({"reward_method": "llm", "reward_funcs": ["accuracy"]}, {"accuracy (vlm-r1)": {}}),
        (
            {"reward_method": "weighted_sum", "reward_funcs": ["accuracy", "length"]},
            {"vlm_r1_accuracy": {"method": "weighted_sum"}, "vlm_r1_length": {"method": "weighted_sum"}},
        ),
        ({"reward_funcs": ["repetition"]}, {"repetition (vlm-r1)": {}}),
        ({MODULE: True, "task_type": "rec"}, {"box_iou": {"coordinates": "input"}, "box_format": {}}),
        ({MODULE: True, "task_type": "gui", "reward_funcs": ["accuracy"]}, {"accuracy (vlm-r1)": {}}),
        (
            {MODULE: True, "task_type": "rec", "reward_funcs": ["accuracy"], "model_name_or_path": "OpenGVLab/InternVL3-2B"},
            {"box_iou": {"coordinates": "image"}},
        ),
    ],
)
def test_rewards(tmp_path: Path, settings: dict[str, Any], expected: dict[str, Any]) -> None:
    rewards = convert(tmp_path, {**BASE, **settings}, "vlm-r1").values["rewards"]
    assert {reward["fn"]: reward.get("args", {}) for reward in rewards} == expected


def test_the_accuracy_of_an_older_script_is_another(tmp_path: Path) -> None:
    imported = convert(tmp_path, {"num_generations": 8, "dataset_name": "a.yaml", "image_root": "b"}, "vlm-r1")
    assert imported.missing_rewards == ("accuracy (vlm-r1)",)
    assert "box_iou is nearest to grpo_rec.py's" in entry_of(imported, "reward_funcs").remark


def test_a_method_for_each_file_is_in_the_rows(tmp_path: Path) -> None:
    for name in "ab":
        write_rows(tmp_path / f"{name}.jsonl", row())
    given = {
        **BASE,
        "data_file_paths": f"{tmp_path}/a.jsonl:{tmp_path}/b.jsonl",
        "image_folders": f"{tmp_path}:{tmp_path}",
        "reward_method": "mcq:yes_no",
        "reward_funcs": ["accuracy"],
    }
    assert "which the rows do not hold" in entry_of(convert(tmp_path, given, "vlm-r1"), "reward_funcs").remark
    new = tmp_path / "rows.jsonl"
    imported = convert(tmp_path, given, "vlm-r1", rows=new)
    assert "which --data writes into the rows" in entry_of(imported, "reward_funcs").remark
    assert imported.rows is not None
    imported.rows.write(new)
    assert [line["accu_reward_method"] for line in read_rows(new)] == ["mcq", "yes_no"]


@pytest.mark.parametrize(
    ("settings", "key", "fate", "targets"),
    [
        ({"max_pixels": 401_408}, "max_pixels", "mapped", {"data.max_image_pixels": 401_408}),
        ({}, "max_pixels", "mapped", {"data.max_image_pixels": 12_845_056}),
        ({"max_pixels": 9, "model_name_or_path": "InternVL3"}, "max_pixels", "dead", {}),
        ({"max_pixels": 10**9}, "max_pixels", "no_counterpart", {}),  # beyond what the key takes
        ({"freeze_vision_modules": True}, "freeze_vision_modules", "mapped", {"model.freeze": ["vision"]}),
        ({"freeze_vision_modules": True, "use_peft": True}, "freeze_vision_modules", "dead", {}),
        ({"min_pixels": 100}, "min_pixels", "no_counterpart", {}),
        ({}, "data_file_paths", "mapped", {"data.source": "file:a.jsonl"}),
        ({"data_file_paths": "a.jsonl:b.jsonl", "image_folders": "c:d"}, "data_file_paths", "no_counterpart", {}),
        ({"image_folders": "c"}, "image_folders", "no_counterpart", {}),
    ],
)
def test_what_becomes_of_a_key(tmp_path: Path, settings: dict[str, Any], key: str, fate: str, targets: dict[str, Any]) -> None:
    found = entry_of(convert(tmp_path, {**BASE, **settings}, "vlm-r1"), key)
    assert (found.fate, found.targets) == (fate, targets)
    assert "not have" not in found.remark


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"image_folders": "c:d"}, "image_folders: has 2 parts, data_file_paths 1; give one for each file (VLM-R1"),
        ({"reward_method": "mcq:mcq"}, "reward_method: has 2 parts, data_file_paths 1; give one for each file (VLM-R1"),
        ({"image_folders": None}, "data_file_paths, image_folders: --data writes the rows of these, and one of them"),
    ],
)
def test_settings_that_vlm_r1_refuses_or_that_name_no_rows(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(tmp_path, {**BASE, **settings}, "vlm-r1", rows=tmp_path / "rows.jsonl")
    assert str(caught.value).startswith(f"config {tmp_path / 'settings.yaml'}: {fault}")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ([1], "it is a list, not an object"),
        ({"id": 1}, "it has no `conversations` of a question and an answer"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "it has no `conversations`"),
        (row(question=3), "the question is 3, not text"),  # type: ignore[arg-type]
        (row(image={"bytes": ""}), "image is {'bytes': ''}, and a path or a list of paths is needed"),
        (row(image="../../a.png"), "image '../../a.png' lies outside of"),
        (row(image="/etc/passwd"), "image '/etc/passwd' lies outside of"),
    ],
)
def test_a_row_that_is_none_names_its_file_and_line(tmp_path: Path, line: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        joined(tmp_path, row(), line)
    assert str(caught.value).startswith(f"data_file_paths: {tmp_path / 'a.jsonl'}, line 2: {fault}")
    assert not (tmp_path / "rows.jsonl").exists()


def test_the_new_file_stands_above_the_images(tmp_path: Path) -> None:
    script = write_launch(tmp_path)
    new = tmp_path / "elsewhere" / "rows.jsonl"
    rows = import_config(script, rows=new).rows
    assert rows is not None
    with pytest.raises(ConfigError) as caught:
        rows.write(new)
    assert str(caught.value) == (
        f"data {new}: the images in {tmp_path}/coco do not lie below its folder; name a file in {tmp_path}/coco or above"
    )
    with pytest.raises(ConfigError, match=r"give a new name that ends in \.jsonl"):
        rows.write(tmp_path / "rows.csv")


def test_only_vlm_r1_has_rows_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data: .* has no effect on settings of TRL 1\.16; leave it out"):
        convert(tmp_path, {"num_generations": 8}, "trl", rows=tmp_path / "rows.jsonl")
