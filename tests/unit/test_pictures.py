"""Completions of prompts with images: kept by digest, shown small and once, with the boxes where the reward has them."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from grpo_core.compare.samples import images_of, side_by_side
from grpo_core.run.boxes import predicted_box
from grpo_core.run.curves import Run
from grpo_core.run.folder import RunDir
from grpo_core.run.pictures import SIDE, draw_boxes, small_picture
from grpo_core.run.samples import read_groups, samples_table
from grpo_core.training.batch import Rollouts, TrainingBatch, completions_table
from grpo_core.types import Prompt
from tests.support.pages import Page
from tests.support.pictured import (
    GOLD,
    REWARDS,
    TEXTS,
    jpeg,
    keep_image,
    keep_sizes,
    noise_image,
    shape_image,
    write_pictured,
    write_pictured_table,
)
from tests.unit.test_compare import compared
from tests.unit.test_run_page import HOSTILE, data_of

BOXES = [(16.0, 24.0, 40.0, 48.0), (20.0, 24.0, 40.0, 52.0), (8.0, 8.0, 20.0, 20.0), None]
"""Of `TEXTS`, read by hand."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_pictured(tmp_path_factory.mktemp("pictured") / "one")


def image_of(source: str) -> Image.Image:
    """Return the image in a data address."""
    kind, _, data = source.partition(";base64,")
    assert kind == "data:image/webp"
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


# The tables


def batch_of(*images: tuple[str, ...]) -> TrainingBatch:
    """A prompt with each tuple of images, two completions of a token each."""
    number = 2 * len(images)
    mask, zeros = torch.ones(number, 1, dtype=torch.bool), torch.zeros(number)
    prompts = [
        Prompt(id=at, content="", text="", token_ids=(1,), columns={"answer": "1"}, images=one) for at, one in enumerate(images)
    ]
    rollouts = Rollouts(
        prompts=tuple(prompts),
        group_size=2,
        texts=("a",) * number,
        completion_ids=torch.ones(number, 1, dtype=torch.long),
        completion_mask=mask,
        loss_mask=mask,
        truncated=~mask[:, 0],
        sampling_per_token_logps=torch.zeros(number, 1),
        rewards=zeros.double(),
        rewards_by_function={"exact_answer": zeros.double()},
        group_advantages=zeros,
    )
    return TrainingBatch(rollouts=rollouts, advantages=zeros, ref_logps=torch.zeros(number, 1), old_logps=None)


def test_a_table_has_digests_only_in_a_step_whose_prompts_have_images() -> None:
    text, mixed = completions_table(3, batch_of((), ())), completions_table(4, batch_of(("a" * 64, "b" * 64), ()))
    assert list(text.columns)[-3:] == ["tokens", "truncated", "weights"]
    assert list(mixed.columns) == [*text.columns, "images"]
    assert list(mixed["images"]) == [["a" * 64, "b" * 64]] * 2 + [[]] * 2


def test_completions_of_a_run_have_lists_of_digests_and_none_where_a_step_has_no_images(tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    for step, images in ((2, ()), (3, ("c" * 64,))):
        completions_table(step, batch_of(images)).to_parquet(run_dir.completions_file(step), index=False)
    found = Run(run_dir.path).completions
    digest = small_digest(run_dir)
    assert dict(zip(found["step"], found["images"], strict=True)) == {1: [digest], 2: [], 3: ["c" * 64], 12: [digest]}


def small_digest(run_dir: RunDir) -> str:
    """Return the digest of the first image of a run."""
    return read_groups(run_dir, 12)[0].images[0]


def test_groups_hold_images_and_boxes_and_the_table_for_people_stays_text(run_dir: RunDir) -> None:
    groups = read_groups(run_dir, 12)
    assert [len(set(group.images)) for group in groups] == [1, 1, 1]
    assert [group.box for group in groups] == [tuple(map(float, GOLD))] * 3
    assert [one.box for one in groups[1].completions] == BOXES
    assert [one.reward for one in groups[1].completions] == list(REWARDS)
    assert "images" not in samples_table(run_dir, 12)


@pytest.mark.parametrize(
    ("coordinates", "expected"),
    [
        ("image", (100.0, 200.0, 300.0, 400.0)),
        ("thousandths", (20.0, 10.0, 60.0, 20.0)),  # of 200 x 50 pixels
        ("input", (200.0, 200.0, 600.0, 400.0)),  # of 100 x 50, half as wide
    ],
)
def test_a_predicted_box_is_in_pixels_of_the_image_whatever_its_numbers_count(
    tmp_path: Path, coordinates: str, expected: tuple[float, ...]
) -> None:
    reward = {"fn": "box_iou", "args": {"coordinates": coordinates}}
    run_dir = write_pictured(tmp_path / "one", {"rewards": [reward]}, prompts=1, texts=["[100, 200, 300, 400]"] * 4)
    keep_sizes(run_dir, {keep_image(run_dir, shape_image(0)): {"size": (200, 50), "input_size": (100, 50)}})
    (group,) = read_groups(run_dir, 12)
    assert group.completions[0].box == expected
    assert group.box == GOLD  # pixels of the file, whatever the others are


def test_nothing_is_drawn_where_it_is_not_known_what_a_box_is_of(tmp_path: Path) -> None:
    reward = {"fn": "box_iou", "args": {"coordinates": "input"}}
    without_sizes = write_pictured(tmp_path / "sizes", {"rewards": [reward]}, prompts=1)
    of_texts = write_pictured(tmp_path / "texts", {"rewards": [{"fn": "exact_answer"}]}, prompts=1)
    table = pandas.read_parquet(of_texts.completions_file(12)).rename(columns={"reward_box_iou": "reward_exact_answer"})
    table.to_parquet(of_texts.completions_file(12), index=False)
    several = write_pictured(tmp_path / "several", prompts=1)
    write_pictured_table(several, 12, [[small_digest(several)] * 2])
    for run_dir in (without_sizes, of_texts, several):
        (group,) = read_groups(run_dir, 12)
        assert group.images
        assert (group.box, {one.box for one in group.completions}) == (None, {None})


@pytest.mark.parametrize(
    ("completion", "box"),
    [
        ("<think>[1, 2, 3, 4]</think><answer>[5, 6, 7, 8]</answer>", (5, 6, 7, 8)),
        ("<answer>none</answer> [1, 2, 3, 4]", (1, 2, 3, 4)),
        ("[1.5,-2 , 3,4]?", (1.5, -2, 3, 4)),
        ("[1, 2, 3]", None),
        ("[1e9, 2, 3, 4]", None),
        ("[" * 10_000 + "1, 2, 3, 4", None),
        ("[9999999999, 1, 2, 3]", None),
    ],
)
def test_the_box_of_a_completion_is_the_one_it_answers_with_else_its_first(
    completion: str, box: tuple[float, ...] | None
) -> None:
    assert predicted_box(completion, (1.0, 1.0)) == box


# The page of a run


def test_a_page_has_each_image_once_with_the_boxes_and_figures_of_the_table(run_dir: RunDir) -> None:
    samples = data_of(run_dir)["samples"]
    digests = {digest for step in (1, 12) for group in read_groups(run_dir, step) for digest in group.images}
    assert samples["pictures"].keys() == digests
    assert (len(digests), samples["left_out"]) == (3, 0)
    for digest, picture in samples["pictures"].items():
        assert (picture["width"], picture["height"]) == (64, 64)
        original = Image.open(run_dir.data / "images" / digest).convert("RGB")
        assert image_of(picture["src"]).convert("RGB").tobytes() == original.tobytes()  # small ones as they are
        assert run_dir.page.read_text().count(picture["src"]) == 1
    table = pandas.read_parquet(run_dir.completions_file(12))
    for number, card in enumerate(samples["steps"][-1]["groups"]):
        of_prompt = table[table["prompt_id"] == 100 + number]
        assert [card["images"]] * 4 == [list(cell) for cell in of_prompt["images"]]
        assert card["box"] == list(GOLD)
        assert [row[1] for row in card["rows"]] == list(of_prompt["completion"]) == list(TEXTS)
        assert [row[4] for row in card["rows"]] == list(of_prompt["reward"])
        assert [row[9] for row in card["rows"]] == [box and list(box) for box in BOXES]


def test_an_image_is_shown_as_a_viewer_shows_it_and_thirty_megabytes_are_shown_small(tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    content = noise_image(3200)
    assert len(content) > 30e6
    lying = Image.new("RGB", (400, 200), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # a viewer turns it by 90 degrees
    digests = [keep_image(run_dir, one) for one in (content, jpeg(lying, exif=exif))]
    write_pictured_table(run_dir, 12, [[one] for one in digests])
    big, upright = (data_of(run_dir)["samples"]["pictures"][one] for one in digests)
    assert (big["width"], big["height"], max(image_of(big["src"]).size) <= SIDE) == (3200, 3200, True)
    assert len(big["src"]) < 20_000
    assert (upright["width"], upright["height"], image_of(upright["src"]).size) == (200, 400, (128, 256))
    assert run_dir.page.stat().st_size < 200_000


def test_a_page_of_many_photographs_stays_small_shows_the_last_step_first_and_counts_the_rest(tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    coarse = np.random.default_rng(0).integers(0, 256, (70, 12, 12, 3), dtype=np.uint8)
    photographs = [Image.fromarray(one).resize((400, 400), Image.Resampling.BICUBIC) for one in coarse]
    digests = [[keep_image(run_dir, jpeg(one))] for one in photographs]
    for step in (1, 6, 12):
        write_pictured_table(run_dir, step, digests[:40] if step == 12 else digests[40:])
    samples = data_of(run_dir)["samples"]
    there, shown = (
        samples["pictures"],
        [{one for card in step["groups"] for one in card["images"]} for step in samples["steps"]],
    )
    assert sum(len(one["src"]) for one in there.values()) <= 160_000
    assert len(there) + samples["left_out"] == len(set.union(*shown))
    assert samples["left_out"] > 30
    assert len(there) / 2 <= len(shown[-1] & there.keys()) < len(there)
    assert digests[0][0] in there
    assert digests[40][0] in there


def test_no_file_but_an_image_of_the_run_is_shown_and_nothing_acts(tmp_path: Path) -> None:
    run_dir = write_pictured(tmp_path / "one", prompts=1)
    changed, text = keep_image(run_dir, shape_image(7)), keep_image(run_dir, b"<svg onload=alert(1)>")
    (run_dir.data / "images" / changed).write_bytes(shape_image(8))
    name = "<img src=x onerror=document.title='attacked'>.png"
    (run_dir.data / "images" / name).write_bytes(shape_image(9))
    cells = [[changed], [text], ["d" * 64], [name, "../../config.json", "/etc/passwd", "D" * 64, "e" * 63 + "\n"], None]
    write_pictured_table(run_dir, 12, cells, texts=(HOSTILE, *TEXTS[1:]))
    samples = data_of(run_dir)["samples"]
    assert [samples["pictures"][one] for one in (changed, text, "d" * 64)] == [{}, {}, {}]
    assert [card.get("images") for card in samples["steps"][-1]["groups"]] == [[changed], [text], ["d" * 64], None, None]
    page = run_dir.page.read_text()
    assert "passwd" not in page
    assert "document.title='attacked'>.png" not in page
    found = Page(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == 2
    assert not re.search("<svg onload", page)


# The comparison


def test_a_comparison_has_each_image_once_for_all_runs_also_where_one_has_lost_it(tmp_path: Path) -> None:
    runs = [write_pictured(tmp_path / name, {"loss.beta": beta}) for name, beta in (("zero", 0.0), ("one", 0.1))]
    write_pictured_table(runs[1], 12, [group.images for group in read_groups(runs[0], 12)], texts=TEXTS[::-1])
    for digest in {group.images for group in read_groups(runs[0], 12)}:
        (runs[0].data / "images" / digest[0]).unlink()
    sides = compared(*(run.path for run in runs)).runs
    sets, notes = side_by_side(sides)
    found = images_of(sides, sets)
    assert (notes, len(found["pictures"]), found["left_out"]) == ([], 3, 0)
    assert all(image_of(one["src"]).size == (64, 64) for one in found["pictures"].values())
    cards = sets[0]["steps"][-1]["cards"]
    assert [card["images"][0] in found["pictures"] for card in cards] == [True] * 3
    assert [row[0][7] for row in cards[0]["rows"]] == [box and list(box) for box in BOXES]
    assert [row[1][7] for row in cards[0]["rows"]] == [box and list(box) for box in BOXES[::-1]]


# Drawings


def test_boxes_are_drawn_where_they_are_gold_yellow_and_predicted_blue(run_dir: RunDir) -> None:
    picture = small_picture(run_dir, small_digest(run_dir))
    assert picture is not None
    beyond = (-1e9, -1e9, 1e9, 1e9)
    drawn = draw_boxes(replace(picture, size=(128, 128)), (32, 48, 80, 96), [(90, 90, 20, 20), (4, 100, 28, 124), beyond])
    image = Image.open(io.BytesIO(drawn)).convert("RGB")
    assert image.size == (256, 256)  # tiny ones are enlarged, so that lines are to be seen
    pixel = {at: image.getpixel(at) for at in ((60, 130), (100, 200), (40, 40), (8, 220), (30, 200), (128, 128))}
    yellow, blue, red = (255, 208, 0), (10, 95, 208), (204, 34, 34)
    for at, colour in {(60, 130): yellow, (8, 220): blue, (30, 200): blue, (40, 40): blue, (128, 128): red}.items():
        assert np.abs(np.subtract(pixel[at], colour)).max() < 60, at
