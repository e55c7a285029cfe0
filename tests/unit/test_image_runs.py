"""Images on their way into a run: given from Python, looked at before a start, frozen, copied into a repetition."""

import json
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.data.guess import guess
from grpo_core.data.prepare import freeze, load_frozen, prepare
from grpo_core.machine.images import decode
from grpo_core.run.folder import RunDir
from grpo_core.run.rehearsal import look_at_data
from grpo_core.run.reproduction import copy_prompts, refuse_unfit
from grpo_core.training.given import given_settings
from tests.conftest import write_model
from tests.support.image_rows import as_file, config_of, png, split_of, write_rows
from tests.support.vision_models import picture, write_vision_model

ASKED = {"prompt": [{"role": "user", "content": "which?"}], "answer": "a"}
FILES = {f"{number}.png": png(number) for number in range(6)}
ROWS = [{"prompt": f"question {number}?", "answer": "a", "images": [f"{number}.png"]} for number in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    return write_vision_model(tmp_path_factory.mktemp("models") / "llava", "llava")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep images of rows in a folder of the test."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))


def _as_images() -> list[dict[str, Any]]:
    turned, clear = picture(1), Image.new("P", (4, 4))
    turned.getexif()[0x0112] = 6
    clear.info["transparency"] = 0
    return [{**ASKED, "images": [picture(0), turned]}, {**ASKED, "images": [clear]}, {**ASKED, "images": None}]


def _as_data_set() -> Any:
    import datasets

    features = datasets.Features(
        prompt=datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
        answer=datasets.Value("string"),
        image=datasets.Image(),
    )
    rows = {"prompt": [ASKED["prompt"]] * 2, "answer": ["a"] * 2, "image": [{"bytes": png(n), "path": None} for n in (0, 1)]}
    return datasets.Dataset.from_dict(rows, features=features)


def _as_frame() -> Any:
    import pandas

    return pandas.DataFrame([{**ASKED, "image": png(0)}, {**ASKED, "image": {"bytes": png(1), "path": None}}])


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        (_as_images, [[(40, 40), (56, 96)], [(4, 4)], []]),
        (_as_data_set, [[(40, 40)], [(96, 56)]]),
        (_as_frame, [[(40, 40)], [(96, 56)]]),
    ],
    ids=["Pillow", "data set", "data frame"],
)
def test_rows_with_images_are_given_from_python(
    model: Path, tmp_path: Path, data: Callable[[], Any], sizes: list[list[tuple[int, int]]]
) -> None:
    settings, files = given_settings(data=data())
    for name, content in files.items():
        (tmp_path / "given" / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (tmp_path / "given" / name).write_text(content)
        else:
            shutil.copy(content, tmp_path / "given" / name)
    changes = {**settings, "data.eval_fraction": 0.0, "model.source": str(model)}
    config = validate_config(apply_overrides(RunConfig().model_dump(mode="json"), changes))
    split = split_of(model, tmp_path / "given" / config.data.source.removeprefix("file:"))
    assert split.images is not None
    found = split.images.folder
    assert [[found.open(digest).size for digest in prompt.images] for prompt in split.train] == sizes


def test_paths_in_rows_from_python_are_read_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(png(0))
    rows = [{"prompt": "which?", "answer": "a", "images": ["sub/a.png", "/etc/passwd", "gone.png", "nginx"]}]
    _, files = given_settings(data=rows)
    assert Path(files.pop("sub/a.png")).read_bytes() == png(0)
    (text,) = files.values()
    assert json.loads(str(text)) == rows[0]
    missing = [{"prompt": "which?", "answer": "a", "photo": {"bytes": None, "path": "gone.png"}}]
    assert len(given_settings(data=missing)[1]) == 1


def test_rows_of_text_are_given_from_python_as_before() -> None:
    rows = [{"prompt": "1 + 1 =", "answer": "2", "raw": b"x", "facts": {"bytes": None, "path": None}}]
    settings, files = given_settings(data=rows)
    assert list(files) == [settings["data.source"].removeprefix("file:")]
    (text,) = files.values()
    assert json.loads(str(text)) == {**rows[0], "raw": "b'x'"}


def by_size(completions: list[Any], image_sizes: Any, images: Any, answer: Any, **_: Any) -> list[float]:
    """Return the share of gold answers; it fails unless it gets the sizes of images."""
    assert all(max(several[0]) >= max(images[row][0].size) for row, several in enumerate(image_sizes))
    return [float(str(gold) in str(one)) for one, gold in zip(completions, answer, strict=True)]


def _looked(config: RunConfig) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for kind, content in look_at_data(config, []):
        found.setdefault(kind, []).append(content)
    return found


def test_a_model_of_text_is_not_trained_on_rows_with_images_without_a_word(tmp_path: Path) -> None:
    config = config_of(write_model(tmp_path / "model"), write_rows(tmp_path / "rows", ROWS, FILES))
    (found,) = [text for text in _looked(config)["warnings"] if "reads text alone" in text]
    assert "column 'images' is left out" in found


def test_a_look_before_the_start_tells_of_images(model: Path, tmp_path: Path) -> None:
    config = config_of(model, write_rows(tmp_path / "rows", ROWS, FILES), max_image_pixels=2000, eval_fraction=0.34)
    rewards = [{"fn": f"{__name__}:by_size"}]
    config = validate_config({**config.model_dump(mode="json"), "rewards": rewards})
    found = _looked(config)
    assert "faults" not in found
    note = "images: 6 in the first 6 prompts, 2 of them made smaller; 16 of the tokens of a prompt stand for them"
    assert note in found["notes"]


def test_a_look_before_the_start_refuses_a_bad_image(model: Path, tmp_path: Path) -> None:
    files = {**FILES, "3.png": FILES["3.png"][:100]}
    config = config_of(model, write_rows(tmp_path / "rows", ROWS, files))
    with pytest.raises(ValueError, match=r"data.image_column 'images', row 3: it cannot be read as an image"):
        _looked(config)


def test_a_look_takes_images_of_a_model_that_is_not_here(tmp_path: Path) -> None:
    config = config_of(Path("somebody/a-model"), write_rows(tmp_path / "rows", ROWS, FILES))
    config = validate_config({**config.model_dump(mode="json"), "rewards": [{"fn": f"{__name__}:by_size"}]})
    assert "faults" not in _looked(config)


def test_columns_of_rows_with_images_are_guessed(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows", ROWS, FILES)
    data, longest = guess(f"file:{source}", str(model))
    assert (data.prompt_column, data.answer_column, data.image_column, data.chat_template) == ("prompt", "answer", None, True)
    assert longest == 16 + len("user: question 0?assistant: ")


def test_no_image_is_in_what_prefect_keeps(model: Path, tmp_path: Path) -> None:
    split = split_of(model, write_rows(tmp_path / "rows", ROWS, FILES))
    assert len(pickle.dumps(split)) < len(FILES["0.png"])
    freeze(pickle.loads(pickle.dumps(split)), "file:x", tmp_path / "data")
    assert load_frozen(tmp_path / "data")[0] == split.train


def test_a_repetition_has_the_images_of_its_original(model: Path, tmp_path: Path) -> None:
    config = config_of(model, write_rows(tmp_path / "rows", ROWS, FILES))
    original, repeated = RunDir(tmp_path / "one"), RunDir(tmp_path / "two")
    for run_dir in (original, repeated):
        run_dir.create(config)
    prepare(config, original.data)
    copy_prompts(original, repeated)
    shutil.rmtree(original.data / "images")
    shutil.rmtree(tmp_path / "cache")
    assert len(load_frozen(repeated.data)[0]) == 6
    with pytest.raises(ValueError, match="an image of the frozen prompts cannot be read"):
        refuse_unfit("one", original)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_memory_of_four_thousand_images_is_that_of_a_few(model: Path, tmp_path: Path) -> None:
    """Decoded they are 480 MB, as files 400 MB."""
    import pyarrow
    from pyarrow import parquet

    image, filler, several = as_file(Image.new("RGB", (200, 200), (7, 8, 9))), bytes(100_000), 10
    assert decode(image, 10**6).size == (200, 200)
    (tmp_path / "rows").mkdir()
    schema = pyarrow.schema({"prompt": pyarrow.string(), "answer": pyarrow.string(), "images": pyarrow.list_(pyarrow.binary())})
    with parquet.ParquetWriter(tmp_path / "rows" / "rows.parquet", schema) as writer:
        for number in range(0, 4_000, several):
            images = [image + filler + str(one).encode() for one in range(number, number + several)]
            row = {"prompt": f"{number}?", "answer": "a", "images": images}
            writer.write_table(pyarrow.Table.from_pylist([row], schema=schema))
    split_of(model, write_rows(tmp_path / "few", [{**ASKED, "image": png(0)}] * 2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    manifest = prepare(config_of(model, tmp_path / "rows" / "rows.parquet"), tmp_path / "data")
    assert manifest.num_images == 4_000
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 250e6
