"""Rows with images as prompts: TRL's columns and parts, VLM-R1's rows, tables; the split, what is frozen, what rewards get."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grpo_core.config import RewardConfig
from grpo_core.data.prepare import data_identity, freeze, frozen_images, load_frozen, prepare, read_manifest, split_of_frozen
from grpo_core.data.splitting import PromptSplit
from grpo_core.errors import DataError
from grpo_core.machine.images import decode
from grpo_core.rewards.base import load_rewards, score
from tests.support.image_rows import as_file, config_of, png, split_of, write_rows
from tests.support.vision_models import KINDS, write_vision_model

FILES = {f"{number}.png": png(number) for number in range(6)}
DIGESTS = [hashlib.sha256(content).hexdigest() for content in FILES.values()]
ASKED = {"prompt": [{"role": "user", "content": "which?"}], "answer": "a"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the folder of a tiny model of a kind."""
    folder, made = tmp_path_factory.mktemp("models"), dict[str, Path]()

    def model(kind: str = "llava") -> Path:
        if kind not in made:
            made[kind] = write_vision_model(folder / kind, kind)
        return made[kind]

    return model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep images of rows in a folder of the test."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))


Made = Callable[..., PromptSplit]


@pytest.fixture
def made(models: Callable[[str], Path], tmp_path: Path) -> Made:
    """Return a function that makes prompts of rows."""

    def make(rows: list[dict[str, Any]], kind: str = "llava", **data: Any) -> PromptSplit:
        return split_of(models(kind), write_rows(tmp_path / "rows", rows, FILES), **data)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_of_a_prompt_is_tokens_of_each_kind_of_model(made: Made, kind: str) -> None:
    images = (None, ["0.png"], ["1.png", "2.png"])
    for chat_template in (True, False):
        rows = [{**ASKED, "prompt": ASKED["prompt"] if chat_template else "which?", "images": several} for several in images]
        split = made(rows, kind, chat_template=chat_template)
        assert [prompt.images for prompt in split.train] == [(), (DIGESTS[0],), (DIGESTS[1], DIGESTS[2])]
        lengths = [len(prompt.token_ids) for prompt in split.train]
        assert lengths[0] < min(lengths[1:])
        assert [prompt.text.count(KINDS[kind].place) for prompt in split.train] == [0, 1, 2]
        assert "answer" in split.train[2].columns
        assert not {"images", "image"} & set(split.train[2].columns)


def test_images_go_before_the_text_of_the_first_user_message(made: Made) -> None:
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "two"},
    ]
    examples = (("how many?", "2"),)
    (prompt,) = made([{"prompt": turns, "answer": "a", "images": ["0.png", "1.png"]}], examples=examples).train
    assert prompt.text == (
        "user: how many?assistant: 2system: be briefuser: <image><image>oneassistant: yesuser: twoassistant: "
    )
    parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "one"}]
    assert prompt.content[3] == {"role": "user", "content": parts}


def test_parts_of_a_message_name_the_places_themselves(made: Made) -> None:
    place, other = {"type": "image"}, {"type": "image", "text": None}
    parts = [{"type": "text", "text": "is "}, place, {"type": "text", "text": " like "}, other, {"type": "text", "text": "?"}]
    (prompt,) = made([{"prompt": [{"role": "user", "content": parts}], "answer": "a", "images": ["1.png", "0.png"]}]).train
    assert prompt.text == "user: is <image> like <image>?assistant: "
    assert prompt.images == (DIGESTS[1], DIGESTS[0])
    (plain,) = made([{"prompt": [{"role": "user", "content": parts[:1]}], "answer": "a"}]).train
    assert plain.content == ({"role": "user", "content": "is "},)


@pytest.mark.parametrize(
    "value",
    [
        "0.png",
        ["0.png"],
        FILES["0.png"],
        [FILES["0.png"]],
        {"bytes": FILES["0.png"], "path": "x"},
        {"bytes": None, "path": "0.png"},
    ],
    ids=["path", "list", "bytes", "list of bytes", "struct", "struct of a path"],
)
@pytest.mark.parametrize("column", ["image", "images", "photo"])
def test_an_image_is_the_same_whatever_way_it_comes(made: Made, value: Any, column: str) -> None:
    rows = [{**ASKED, column: value}, {**ASKED, column: value}]
    split = made(rows, image_column=column if column == "photo" else None)
    assert [prompt.images for prompt in split.train] == [(DIGESTS[0],)] * 2
    assert split.train[0].columns == {"answer": "a"}


def test_images_of_a_table_of_datasets_are_the_files_that_were_put_in(made: Made, tmp_path: Path, models: Any) -> None:
    import datasets

    table = {"prompt": ["one?", "two?"], "answer": ["1", "2"], "images": [[{"bytes": FILES["0.png"], "path": None}], []]}
    features = datasets.Features(
        prompt=datasets.Value("string"), answer=datasets.Value("string"), images=datasets.List(datasets.Image())
    )
    datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / "table.parquet")
    split = split_of(models("llava"), tmp_path / "table.parquet")
    assert [prompt.images for prompt in split.train] == [(DIGESTS[0],), ()]


def test_a_row_of_vlm_r1_is_a_prompt_and_its_tagged_answer(made: Made) -> None:
    row = {
        "id": 7,
        "image": ["0.png", "1.png"],
        "conversations": [
            {"from": "human", "value": "Look <image> where<image> is it?"},
            {"from": "gpt", "value": "<answer>[1, 2, 3, 4]</answer>"},
        ],
        "accu_reward_method": "mcq",
    }
    for column in ("question", "prompt"):
        (prompt,) = made([row], prompt_column=column).train
        assert prompt.text == "user: <image><image>Look  where is it?assistant: "
        assert prompt.columns == {"id": 7, "accu_reward_method": "mcq", "answer": "<answer> [1, 2, 3, 4] </answer>"}
        assert prompt.images == (DIGESTS[0], DIGESTS[1])


def test_a_template_that_reads_parts_alone_gets_parts(made: Made, tmp_path: Path, models: Any) -> None:
    from tests.support.image_rows import ENCODERS

    made([{**ASKED, "images": ["0.png"]}])
    tokenizer = ENCODERS[models("llava")][0]
    before = tokenizer.chat_template
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.role }}:{% for part in message.content | selectattr('type', 'equalto', "
        "'image') %}<image>{% endfor %}{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
        "{% endfor %};{% endfor %}"
    )
    try:
        rows = [{**ASKED, "images": ["0.png"]}, ASKED]
        found = made(rows, system_prompt="be brief").train
        assert [prompt.text for prompt in found] == ["system:be brief;user:<image>which?;", "system:be brief;user:which?;"]
        assert found[1].content == ({"role": "system", "content": "be brief"}, {"role": "user", "content": "which?"})
    finally:
        tokenizer.chat_template = before


def test_a_prompt_that_is_too_long_with_its_images_is_left_out_and_counted(made: Made) -> None:
    rows = [{**ASKED, "images": ["0.png"] * count or None} for count in (0, 1, 2, 3)]
    split = made(rows, most=64)
    assert [len(prompt.images) for prompt in split.train] == [0, 1, 2]
    assert split.num_too_long == 1
    assert all(len(prompt.token_ids) <= 64 for prompt in split.train)


def _asking(count: int, pictures: Callable[[int], list[str]]) -> list[dict[str, Any]]:
    return [{"prompt": f"question {number}?", "answer": "a", "images": pictures(number)} for number in range(count)]


def test_no_image_is_on_both_sides(made: Made) -> None:
    rows = _asking(36, lambda number: [f"{number % 6}.png"])
    split = made(rows, eval_fraction=0.34)
    sides = [{digest for prompt in side for digest in prompt.images} for side in (split.train, split.eval)]
    assert not sides[0] & sides[1]
    assert (len(split.train), len(split.eval), len(sides[1])) == (24, 12, 2)
    ranked = sorted(DIGESTS, key=lambda digest: hashlib.sha256(f"0\n{digest}".encode()).digest())
    assert sides[1] == set(ranked[:2])
    again = made(rows[::-1], eval_fraction=0.34)
    assert {digest for prompt in again.eval for digest in prompt.images} == sides[1]


def test_prompts_that_share_images_through_others_stay_together(made: Made) -> None:
    rows = _asking(5, lambda number: [f"{number}.png", f"{number + 1}.png"]) + _asking(5, lambda _: [])
    split = made(rows, eval_fraction=0.5)
    assert {len({prompt.images for prompt in side if prompt.images}) for side in (split.train, split.eval)} == {0, 5}
    with pytest.raises(DataError, match=r"data.eval_fraction: 0.5 of 5 distinct prompts is 2, and the smallest of 1 groups"):
        made(rows[:5], eval_fraction=0.5)


def test_the_same_text_with_another_image_is_another_prompt(made: Made) -> None:
    rows = [{"prompt": "what?", "answer": "a", "images": [f"{number % 4}.png"]} for number in range(8)]
    split = made(rows, eval_fraction=0.25)
    assert (len(split.train), len(split.eval), split.num_duplicates) == (6, 1, 1)


def test_text_is_split_as_without_images(made: Made) -> None:
    rows = [{"prompt": f"question {number}?", "answer": "a"} for number in range(20)]
    texts = [f"user: question {number}?assistant: " for number in range(20)]
    held_out = sorted(texts, key=lambda text: hashlib.sha256(f"0\n{text}".encode()).digest())[:5]
    assert {prompt.text for prompt in made(rows, eval_fraction=0.25).eval} == set(held_out)


@pytest.fixture
def frozen(made: Made, tmp_path: Path) -> Path:
    """Return a folder with frozen prompts of six images, of which two had to be made smaller."""
    rows = _asking(6, lambda number: [f"{number}.png"])
    split = made(rows, eval_fraction=0.34, max_image_pixels=2000)
    freeze(split, "file:rows.jsonl", tmp_path / "data")
    train, held_out = load_frozen(tmp_path / "data")
    assert repr((train, held_out)) == repr((split.train, split.eval))
    return tmp_path / "data"


def test_prompts_without_images_among_others_are_counted(made: Made, tmp_path: Path) -> None:
    rows = _asking(4, lambda number: [f"{number}.png"] if number else [])
    manifest = freeze(made(rows), "file:rows.jsonl", tmp_path / "data")
    assert "3 images, 1 prompts without" in str(manifest)


def test_the_manifest_tells_of_images(frozen: Path, tmp_path: Path) -> None:
    manifest = read_manifest(frozen)
    assert (manifest.num_train, manifest.num_eval, manifest.num_images, manifest.num_resized) == (4, 2, 6, 2)
    assert str(manifest) == "4 prompts to train on, 2 held out; 6 images, 2 made smaller"
    assert {file.name for file in (frozen / "images").iterdir()} == set(DIGESTS)
    assert manifest.processor is not None
    assert {"class", "backend", "pillow", "max_image_pixels"} == set(manifest.processor)
    assert manifest.images_sha256 == hashlib.sha256((frozen / "images.jsonl").read_bytes()).hexdigest()
    lines = map(json.loads, (frozen / "images.jsonl").read_text().splitlines())
    first = next(line["sha256"] for line in lines if line["is_resized"])
    image = decode((frozen / "images" / first).read_bytes(), 2000).image
    assert manifest.pixels_sha256 == hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()
    kept = (tmp_path / "cache" / "images" / first).stat()
    assert (frozen / "images" / first).stat().st_ino == kept.st_ino


def _spoil(folder: Path, how: str, digest: str) -> None:
    file = folder / "images" / digest
    content = file.read_bytes()
    file.unlink()
    if how == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("how", ["changed", "missing"])
@pytest.mark.parametrize("digest", DIGESTS)
def test_a_changed_or_missing_image_is_refused_with_its_digest(frozen: Path, how: str, digest: str) -> None:
    _spoil(frozen, how, digest)
    with pytest.raises(DataError, match=digest):
        load_frozen(frozen)


def test_a_changed_list_of_images_is_refused(frozen: Path) -> None:
    text = (frozen / "images.jsonl").read_text()
    (frozen / "images.jsonl").write_text(text.replace("[40, 40]", "[41, 40]"))
    with pytest.raises(DataError, match=r"images.jsonl: SHA-256 is .* the frozen images were changed"):
        load_frozen(frozen)


def test_another_pillow_is_refused_with_the_digest(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = map(json.loads, (frozen / "images.jsonl").read_text().splitlines())
    resized = next(line["sha256"] for line in lines if line["is_resized"])
    right = Image.Image.resize
    load_frozen(frozen)
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, _: right(self, size, Image.Resampling.BILINEAR))
    with pytest.raises(DataError, match=rf"{resized}: its pixels have SHA-256 \w+ with Pillow"):
        load_frozen(frozen)


def test_another_library_that_resizes_is_refused(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.data.frozen_images.image_libraries", lambda: {"backend": "torchvision", "pillow": "1"})
    with pytest.raises(DataError, match="prepared with pil, and transformers would resize them with torchvision here"):
        load_frozen(frozen)


def test_prompts_with_images_are_frozen_again_elsewhere(frozen: Path, tmp_path: Path) -> None:
    split = split_of_frozen(frozen)
    held_out = PromptSplit(**{**vars(split), "train": ()})
    manifest = freeze(held_out, "file:rows.jsonl", tmp_path / "evaluation")
    assert (manifest.num_images, manifest.num_train, manifest.num_eval) == (2, 0, 2)
    assert load_frozen(tmp_path / "evaluation") == ((), split.eval)


def test_the_manifest_of_text_is_what_it_was(made: Made, tmp_path: Path) -> None:
    freeze(made([ASKED]), "file:rows.jsonl", tmp_path / "data")
    written = json.loads((tmp_path / "data" / "manifest.json").read_text())
    old = ("source", "train_sha256", "eval_sha256", "num_train", "num_eval", "num_too_long", "num_duplicates")
    assert tuple(written) == old
    assert json.loads((tmp_path / "data" / "train.jsonl").read_text()).keys() == {
        "id",
        "content",
        "text",
        "token_ids",
        "columns",
    }
    assert frozen_images(tmp_path / "data") is None


def test_the_identity_of_data_is_also_that_of_its_images(models: Callable[[str], Path], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows", [{**ASKED, "images": ["0.png"]}] * 2, FILES)
    config = config_of(models("llava"), source)
    before = data_identity(config, models("llava"))
    assert data_identity(config, models("llava")) == before
    (tmp_path / "rows" / "0.png").write_bytes(FILES["1.png"])
    assert data_identity(config, models("llava")) != before


def test_data_are_prepared_for_a_model_that_reads_images(models: Callable[[str], Path], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows", _asking(6, lambda number: [f"{number}.png"]), FILES)
    config = config_of(models("qwen2_5_vl"), source, eval_fraction=0.34)
    manifest = prepare(config, tmp_path / "data")
    assert manifest.num_images == 6
    assert prepare(config, tmp_path / "data") == manifest


def a_reward(
    prompts: list[Any], completions: list[Any], images: Any, image_sizes: Any, input_sizes: Any, answer: Any
) -> list[float]:
    """Return the pixels of the first image of each prompt; 0 without any."""
    sizes = [[image.size for image in several] for several in images]
    assert sizes == [[tuple(size) for size in several] for several in image_sizes]
    assert len(prompts) == len(completions) == len(answer) == len(input_sizes)
    return [1000.0 * several[0][0] + several[0][1] if several else 0.0 for several in input_sizes]


def no_images(completions: list[Any], **columns: Any) -> list[float]:
    """Return 1 where nothing of images is handed on."""
    return [float(not {"images", "image_sizes", "input_sizes"} & set(columns))] * len(completions)


@pytest.fixture
def scored(made: Made, tmp_path: Path) -> Callable[..., list[float]]:
    """Return a function that scores three prompts with a reward function, twice each."""

    def run(fn: str, kind: str) -> list[float]:
        split = made(_asking(3, lambda number: [f"{number}.png"] if number else []), kind)
        freeze(split, "file:rows.jsonl", tmp_path / kind)
        rewards = load_rewards([RewardConfig(fn=f"{__name__}:{fn}")], frozen_images(tmp_path / kind))
        prompts = [prompt for prompt in split.train for _ in range(2)]
        return list(score(rewards, prompts, ["x"] * 6).total)

    return run


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("llava", (96056, 30064)),
        ("gemma3", (32032, 32032)),
        ("qwen2_5_vl", (84056, 28056)),
        ("qwen3_vl", (96064, 32064)),
        ("internvl", (96056, 30064)),
    ],
)
def test_a_reward_function_gets_images_and_both_sizes(scored: Any, kind: str, sizes: tuple[int, int]) -> None:
    assert scored("a_reward", kind) == [0, 0, sizes[0], sizes[0], sizes[1], sizes[1]]


def test_a_reward_function_that_does_not_name_them_gets_none(scored: Any) -> None:
    assert scored("no_images", "llava") == [1.0] * 6


def test_a_cropped_image_has_no_size_of_input_unless_all_of_it_is_seen() -> None:
    from types import SimpleNamespace

    import torch

    from grpo_core.data.encoding import input_sizes

    images = [Image.new("RGB", size) for size in ((40, 40), (64, 48), (33, 32))]
    tensors = {"pixel_values": torch.zeros(3, 3, 32, 32)}
    for edge, wanted in ((32, [(32, 32), (64, 48), (33, 32)]), (36, [(40, 40), (64, 48), (33, 32)])):
        own = SimpleNamespace(do_center_crop=True, size={"shortest_edge": edge})
        assert input_sizes(SimpleNamespace(image_processor=own), tensors, images) == wanted


def test_the_cache_forgets_what_nobody_used_for_a_week(frozen: Path, tmp_path: Path) -> None:
    import os
    import time

    from grpo_core.machine.images import ImageFolder

    cache, week = ImageFolder(tmp_path / "cache" / "images", 10**6), 7 * 24 * 3600
    (cache.path / ".left.1.2.partial").write_bytes(b"x")
    for file in cache.path.iterdir():
        os.utime(file, (0, time.time() - week - 60))
    cache.add(FILES["0.png"])
    cache.clean()
    assert [file.name for file in cache.path.iterdir()] == [DIGESTS[0]]
    load_frozen(frozen)  # has names of its own


def test_the_identity_of_made_pictures_brings_them_back(models: Callable[[str], Path], tmp_path: Path) -> None:
    config = config_of(models("llava"), tmp_path / "none.jsonl")
    config = config.model_copy(update={"data": config.data.model_copy(update={"source": "shapes:box", "size": 3})})
    data_identity(config, models("llava"))
    assert len(list((tmp_path / "cache" / "images").iterdir())) == 3


def test_an_image_in_a_column_of_another_name_is_not_trained_on_blindly(made: Made, tmp_path: Path, models: Any) -> None:
    import pandas

    source = tmp_path / "photos.parquet"
    pandas.DataFrame([{**ASKED, "photo": FILES["0.png"]}]).to_parquet(source)
    with pytest.raises(DataError, match=r"row 0: column 'photo' holds an image; set data.image_column=photo"):
        split_of(models("llava"), source)


def test_rotated_files_are_measured_upright(made: Made, tmp_path: Path, models: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {"turned.jpg": as_file(Image.new("RGB", (96, 60)), "JPEG", exif=exif)}
    split = split_of(models("llava"), write_rows(tmp_path / "rows", [{**ASKED, "image": "turned.jpg"}] * 2, files))
    assert split.images is not None
    assert [sizes.size for sizes in split.images.sizes.values()] == [(60, 96)]
