"""The model made from nothing that answers questions about pictures, and the rows that ask them."""

import hashlib
import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grpo_core.config import DataConfig, load_config
from grpo_core.data.prepare import read_prompts
from grpo_core.data.shapes import shapes_rows
from grpo_core.data.sources import read_rows
from grpo_core.errors import DataError
from grpo_core.policy.sources import shapes
from grpo_core.policy.sources.find import is_made, lacks_chat_template, load_tokenizer, resolve_model, weights_digest
from grpo_core.policy.sources.shapes import IGNORED, build_processor, build_tokenizer, pixel_values_of, supervised_batch


def digest(png: bytes) -> str:
    return hashlib.sha256(png).hexdigest()


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def extent(picture: Image.Image, colour: str) -> list[int]:
    """The smallest box around the pixels of a colour, as `[left, top, right, bottom]`."""
    down, across = np.where((np.asarray(picture) == shapes.COLOURS[colour]).all(axis=2))
    return [int(across.min()), int(down.min()), int(across.max()) + 1, int(down.max()) + 1]


def test_an_answer_is_where_the_colour_is_in_the_picture() -> None:
    rows = shapes_rows("box", 100, seed=3)
    for row in rows:
        *_, colour, kind = row["question"].removesuffix("?").split()
        picture = opened(row["image"]["bytes"])
        assert picture.size == (64, 64)
        left, top, right, bottom = extent(picture, colour)
        assert row["answer"] == str([left, top, right, bottom])
        filled = (np.asarray(picture)[top:bottom, left:right] == shapes.COLOURS[colour]).all(axis=2).mean()
        expected = {"square": (1, 1), "circle": (0.7, 0.85), "triangle": (0.45, 0.6)}[kind]
        assert expected[0] <= filled <= expected[1]
    assert {row["question"].split()[-1] for row in rows} == {"square?", "circle?", "triangle?"}


def test_colours_and_numbers_of_shapes_are_those_in_the_picture() -> None:
    for row in shapes_rows("count", 40, seed=0):
        colours = {*map(tuple, np.asarray(opened(row["image"]["bytes"])).reshape(-1, 3).tolist())} - {shapes.GROUND}
        assert (row["question"], row["answer"]) == ("how many shapes are there?", str(len(colours)))
    for row in shapes_rows("colour", 40, seed=0):
        assert row["question"] in {f"what colour is the {kind}?" for kind in shapes.KINDS}
        assert extent(opened(row["image"]["bytes"]), row["answer"])


def test_rows_are_a_function_of_task_and_seed_and_more_rows_begin_with_the_same() -> None:
    rows = shapes_rows("box", 30, seed=5)
    assert rows == shapes_rows("box", 50, seed=5)[:30]
    assert rows != shapes_rows("box", 30, seed=6)
    read = read_rows(DataConfig(source="shapes:box", size=30, seed=5), count=10)
    assert [(row["question"], row["answer"]) for row in read] == [(row["question"], row["answer"]) for row in rows[:10]]
    assert len(shapes_rows("box", 1, seed=0)[0]["image"]["bytes"]) < 3000
    assert len(read_rows(DataConfig(source="shapes:count"))) == 2000
    with pytest.raises(DataError, match="shapes:where: no such task; there are box, count, colour"):
        shapes_rows("where", 1, seed=0)


def test_a_picture_has_the_same_bytes_everywhere() -> None:
    """Drawn and written without a library whose output could change: this digest holds on every machine."""
    pictures = b"".join(row["image"]["bytes"] for row in shapes_rows("box", 20, seed=0))
    assert digest(pictures) == "4aec012a15b5291625d50e04b05c4221231228f7f6cdb7972805b6f4bc5dd810"


def test_pictures_that_are_held_out_are_never_drawn_for_the_warm_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_numbers = random.Random(1)
    taught = [digest(shapes.png_of(shapes.draw_example(random_numbers)[0])) for _ in range(300)]
    assert not any(shapes.is_held_out([one]) for one in taught)
    monkeypatch.setattr(shapes, "WARM_UP_STEPS", 1)
    monkeypatch.setattr(shapes, "BATCH_SIZE", 2)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    config = load_config("shapes_tiny_cpu", {"data.size": 300})
    split = read_prompts(config)
    assert config.data.seed == shapes.HOLD_OUT_SEED
    assert len(split.eval) >= 25
    assert all(len(prompt.images) == 1 and shapes.is_held_out(prompt.images) for prompt in split.eval)
    assert not {prompt.images for prompt in split.eval} & {prompt.images for prompt in split.train}
    assert {one for prompt in split.train for one in prompt.images} <= {
        digest(row["image"]["bytes"]) for row in shapes_rows("box", 300, config.data.seed)
    }


def test_the_processor_gives_what_the_warm_start_was_given() -> None:
    rows = shapes_rows("box", 6, seed=1)
    texts = [f"<image>\n{row['question']}" for row in rows]
    processed = build_processor()(text=texts, images=[opened(row["image"]["bytes"]) for row in rows], return_tensors="pt")
    random_numbers = random.Random("box 1")
    scenes = []
    for _ in rows:
        scenes.append(shapes.draw_scene(random_numbers))
        random_numbers.choice(scenes[-1])
    given = pixel_values_of(map(shapes.picture_of, scenes))
    assert torch.allclose(processed["pixel_values"], given, atol=1e-6)
    ids, labels = supervised_batch([(row["question"], f"{row['answer']} ?") for row in rows], build_tokenizer())
    prompt = processed["input_ids"].shape[1]
    assert torch.equal(processed["input_ids"], ids[:, :prompt])
    assert (labels[:, :prompt] == IGNORED).all()
    taught = [build_tokenizer().decode(row[row != IGNORED]) for row in labels]
    assert taught == [f"{row['answer']} ?<|end|>" for row in rows]


def test_every_question_and_answer_comes_back_from_its_tokens() -> None:
    tokenizer = build_tokenizer()
    for task in ("box", "count", "colour"):
        for row in shapes_rows(task, 100, seed=2):
            for text in (row["question"], row["answer"], f"{row['answer']} ?"):
                ids = tokenizer(text)["input_ids"]
                assert tokenizer.decode(ids) == text
                assert tokenizer.unk_token_id not in ids


def test_the_model_is_made_the_same_each_time_and_can_be_loaded_without_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaForConditionalGeneration

    monkeypatch.setattr(shapes, "WARM_UP_STEPS", 3)
    monkeypatch.setattr(shapes, "BATCH_SIZE", 8)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    assert not is_made("scratch:shapes")
    torch.manual_seed(3)
    expected, threads = torch.rand(4), torch.get_num_threads()
    torch.manual_seed(3)
    folder = resolve_model("scratch:shapes")
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads
    assert is_made("scratch:shapes")
    assert lacks_chat_template("scratch:shapes")
    assert load_tokenizer(folder).eos_token_id == 1
    model = LlavaForConditionalGeneration.from_pretrained(folder)
    assert type(AutoModelForImageTextToText.from_pretrained(folder)) is type(model)
    assert model.num_parameters() < 300_000
    processor = AutoProcessor.from_pretrained(folder)
    assert type(processor.image_processor).__name__ == "CLIPImageProcessorPil"
    (row,) = shapes_rows("box", 1, seed=0)
    picture = opened(row["image"]["bytes"])
    inputs = processor(text=[f"<image>{row['question']}"], images=[picture], return_tensors="pt")
    made = build_processor()(text=[f"<image>{row['question']}"], images=[picture], return_tensors="pt")
    assert {name: value.tolist() for name, value in inputs.items()} == {name: value.tolist() for name, value in made.items()}
    assert model(**inputs).logits.shape == (1, 16 + 6, len(build_tokenizer()))
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "again"))
    assert weights_digest(resolve_model("scratch:shapes")) == weights_digest(folder)
