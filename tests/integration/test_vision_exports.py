"""A run of a model that reads images: what it answers to one prompt, and what of it other libraries load."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from grpo_core import RunDir, train
from grpo_core.config import apply_overrides, validate_config
from grpo_core.data.prepare import load_frozen
from grpo_core.errors import DataError
from grpo_core.evaluation.one_prompt import answers
from grpo_core.export.choice import ExportWish
from grpo_core.export.policy_folder import export_policy
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.machine.images import ImageFolder
from grpo_core.policy.loading import open_policy
from grpo_core.policy.saved import list_checkpoints
from grpo_core.rewards.base import completion_text
from grpo_core.run.preflight import CHECKED_VARIABLE
from grpo_core.run.provenance import config_here
from tests.conftest import build_values
from tests.support.image_rows import png, write_rows
from tests.support.vision_models import write_vision_model

pytestmark = pytest.mark.proof
ROWS = [
    {"question": f"what is {number}?", "answer": str(number), "images": [] if number % 4 == 0 else [f"{number}.png"]}
    for number in range(16)
]
ADAPTED = {"model.lora": {"rank": 2}, "optimizer.lr": 0.2}


def counted(completions: list[Any], **columns: Any) -> list[float]:
    """A reward in which any two completions hardly ever agree."""
    return [float(sum(map(ord, completion_text(one))) % 97) for one in completions]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model, rows, and a cache of images for all of it."""
    folder = tmp_path_factory.mktemp("vision_exports")
    write_vision_model(folder / "model", "llava")
    write_rows(folder / "rows", ROWS, {f"{number}.png": png(number) for number in range(16)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_CACHE", str(folder / "cache"))
        patch.setenv(CHECKED_VARIABLE, "1")
        yield folder


def trained(place: Path, name: str, overrides: dict[str, Any]) -> RunDir:
    data = {"data.source": f"file:{place / 'rows' / 'rows.jsonl'}", "data.eval_fraction": 0.5}
    few = {
        "training.steps": 2,
        "optimizer.lr": 0.02,
        "rewards": [{"fn": "tests.integration.test_vision_exports:counted"}],
        "rollout.max_prompt_tokens": 128,
        "rollout.max_completion_tokens": 8,
    }
    values = apply_overrides(build_values(place / "model"), {**data, **few, **overrides})
    train(validate_config(values), run_dir=place / name, progress=False)
    return RunDir(place / name)


@pytest.fixture(scope="module")
def full(place: Path) -> RunDir:
    return trained(place, "full", {})


@pytest.fixture(scope="module")
def adapted(place: Path) -> RunDir:
    return trained(place, "adapted", ADAPTED)


@pytest.mark.parametrize("name", ["full", "adapted"])
def test_prompts_with_and_without_an_image_are_answered_as_when_they_were_evaluated(
    request: pytest.FixtureRequest, name: str
) -> None:
    run_dir: RunDir = request.getfixturevalue(name)
    _, held_out = load_frozen(run_dir.data)
    tables = [pandas.read_parquet(run_dir.eval / f"{policy}.parquet").query("sample == -1") for policy in ("final", "base")]
    greedy = [table.set_index("prompt_id")["completion"] for table in tables]
    for has_image in (True, False):
        prompt = next(one for one in held_out if bool(one.images) is has_image and one.id in greedy[0].index)
        image = run_dir.data / "images" / prompt.images[0] if has_image else None
        found = list(answers(run_dir, ROWS[prompt.id]["question"], 1, image))
        assert [one.greedy for one in found] == [table[prompt.id] for table in greedy]


def test_another_image_is_another_question(full: RunDir, place: Path) -> None:
    asked = [next(answers(full, "what is it?", 1, place / "rows" / f"{number}.png")) for number in (1, 2, 1)]
    assert asked[0] == asked[2]
    assert (asked[0].greedy, asked[0].sampled) != (asked[1].greedy, asked[1].sampled)


@pytest.mark.parametrize(
    ("name", "why"),
    [("rows/none.png", "none.png': no such file"), ("rows", "is a folder"), ("rows/rows.jsonl", "is no image in one of the")],
)
def test_a_file_that_is_no_image_is_refused_by_its_name(full: RunDir, place: Path, name: str, why: str) -> None:
    with pytest.raises(DataError, match=rf"^--image .*{name}: .*{why}"):
        next(answers(full, "what is it?", 1, place / name))


@pytest.mark.parametrize("name", ["full", "adapted"])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_transformers_loads_an_export_with_its_processor_and_gives_the_policys_log_probabilities(
    request: pytest.FixtureRequest, place: Path, tmp_path: Path, name: str
) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    run_dir: RunDir = request.getfixturevalue(name)
    form = "merged" if name == "adapted" else None
    exported = export_policy(run_dir, ExportWish(form=form), tmp_path / "out")
    model = AutoModelForImageTextToText.from_pretrained(exported.folder, dtype="auto").eval()
    processor = AutoProcessor.from_pretrained(exported.folder)
    images = run_dir.data / "images"
    config = config_here(run_dir)
    policy = open_policy(list_checkpoints(run_dir.checkpoints)[-1] / "policy", config, images=images)
    start = open_policy(place / "model", validate_config(build_values(place / "model")), images=images)
    prompt = next(one for one in load_frozen(run_dir.data)[1] if one.images)
    settings, key = SamplingSettings(group_size=2, max_completion_tokens=6), RandomKey(seed=1, stream=Stream.EVAL, step=0)
    drawn = policy.sample([prompt], settings, key)
    picture = ImageFolder(images, 10**6).open(prompt.images[0]).image
    given = processor(text=[prompt.text], images=[picture], add_special_tokens=False, return_tensors="pt")
    assert given.pop("input_ids")[0].tolist() == list(prompt.token_ids)
    for row, ids, mask in zip(policy.logps(drawn), drawn.completion_ids, drawn.completion_mask, strict=True):
        tokens = torch.cat([torch.tensor(prompt.token_ids), ids[mask]]).unsqueeze(0)
        with torch.no_grad():
            logits = model(input_ids=tokens, pixel_values=given["pixel_values"]).logits[0, len(prompt.token_ids) - 1 : -1]
        found = logits.log_softmax(-1).gather(1, ids[mask].unsqueeze(1)).squeeze(1)
        assert float((found - row[mask]).abs().max()) < 5e-6
    assert float((start.logps(drawn) - policy.logps(drawn)).abs().max()) > 1e-3
