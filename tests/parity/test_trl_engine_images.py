"""Whole runs with images against TRL's GRPOTrainer, the witness of the native engine."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_core.backends.trl import run_steps
from grpo_core.errors import TrainingError
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.policy.processor import load_processor
from grpo_core.run.journal import Journal, Record, read_journal
from grpo_core.training.__main__ import main
from grpo_core.training.ending import StopRequest
from grpo_core.training.session import FRESH, open_session
from tests.support.scripted import ScriptedSampler
from tests.support.vision_models import picture, write_vision_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*rollout_func.*"),
    pytest.mark.timeout(300),
]
END = 1
"""`<eos>`."""
NOT_COMPARED = ("time/", "perf/")


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv(LIFELINE_VARIABLE, raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def write_rows(folder: Path, images: tuple[int, ...] = (1, 2)) -> Path:
    """Write twelve questions, each about as many images as `images` says, in turn."""
    folder.mkdir()
    rows, number = [], 0
    for index in range(12):
        names = []
        for _ in range(images[index % len(images)]):
            names.append(f"{number}.png")
            picture(number).save(folder / names[-1])
            number += 1
        rows.append({"question": f"what is {index}?", "answer": str(index), "images": names})
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_shy_model(folder: Path, kind: str) -> Path:
    """Write a tiny model that hardly ever draws the token that stands for an image."""
    write_vision_model(folder, kind)
    processor = load_processor(folder)
    assert processor is not None
    weights = load_file(folder / "model.safetensors")
    (head,) = [name for name in weights if name.endswith(("lm_head.weight",))]
    weights[head][processor.placeholder_id] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def settings(model: Path, rows: Path, **more: Any) -> dict[str, Any]:
    """Return what differs from the tiny run."""
    return {
        "model.source": str(model),
        "data.source": f"file:{rows}",
        "data.task_args": {},
        "data.size": None,
        "rewards": [{"fn": "length", "args": {"max_characters": 4}}],
        "rollout.num_prompts_per_step": 2,
        "rollout.max_completion_tokens": 6,
        "rollout.max_prompt_tokens": 512,
        "training.steps": 2,
        "reference.sync_steps": 1,
        "evaluation.num_prompts": 1,
        "evaluation.verifier": None,
        **more,
    }


def trained(tiny_run: Any, overrides: dict[str, Any], name: str) -> list[Record]:
    """Return the journal of a run."""
    run_dir = tiny_run(overrides, name)
    assert main([str(run_dir.path)]) == 0
    return read_journal(run_dir.journal_file)


@pytest.mark.parametrize(
    ("kind", "seed", "more"),
    [
        ("llava", 1, {}),
        pytest.param("idefics3", 2, {}, marks=pytest.mark.proof),
        pytest.param("qwen2_5_vl", 1, {}, marks=pytest.mark.proof),
        pytest.param("llava", 1, {"model.freeze": ["vision"]}, marks=pytest.mark.proof),
    ],
)  # seeds of which no token that stands for an image is drawn
def test_two_steps_with_images_journal_the_same_figures_on_both_engines(
    tiny_run: Any, tmp_path: Path, kind: str, seed: int, more: dict[str, Any]
) -> None:
    model, rows = write_shy_model(tmp_path / kind, kind), write_rows(tmp_path / "rows")
    options = settings(model, rows, **{"training.seed": seed, **more})
    native, theirs = (trained(tiny_run, {**options, "training.engine": engine}, engine) for engine in ("native", "trl"))
    assert [record.kind for record in native] == [record.kind for record in theirs]
    assert [record.step for record in native if record.kind == "step"] == [1, 2]
    for ours, other in zip(native, theirs, strict=True):
        if ours.kind == "step":
            assert ours.metrics.keys() == other.metrics.keys()
            compared = {key: value for key, value in ours.metrics.items() if not key.startswith(NOT_COMPARED)}
            assert compared == pytest.approx({key: other.metrics[key] for key in compared}, rel=2e-4, abs=2e-6)


@pytest.mark.parametrize(
    ("kind", "images", "fault"),
    [
        ("paligemma", (1,), "trl does not take images of a paligemma model"),
        ("llava_onevision", (1,), "trl does not take images of a llava_onevision model"),
        ("llava", (1, 0), "trl takes no prompts without images among others"),
    ],
)
def test_what_trl_cannot_do_is_refused_before_the_first_step(
    tiny_run: Any, tmp_path: Path, kind: str, images: tuple[int, ...], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_vision_model(tmp_path / kind, kind)
    run_dir = tiny_run(settings(model, write_rows(tmp_path / "rows", images), **{"training.engine": "trl"}))
    assert main([str(run_dir.path)]) == 1
    assert fault in capsys.readouterr().err
    assert [record for record in read_journal(run_dir.journal_file) if record.kind == "step"] == []


def test_a_drawn_token_that_stands_for_an_image_ends_the_run_with_its_row(tiny_run: Any, tmp_path: Path) -> None:
    model = write_vision_model(tmp_path / "llava", "llava")
    processor = load_processor(model)
    assert processor is not None
    placeholder = processor.placeholder_id

    def script(step: int, prompt_id: int, index: int) -> list[int]:
        return [7, placeholder, END] if index == 2 else [7, END]

    run_dir = tiny_run(settings(model, write_rows(tmp_path / "rows"), **{"training.engine": "trl"}))
    with contextlib.closing(Journal(run_dir.journal_file)) as journal:
        session = open_session(run_dir, journal, StopRequest(run_dir.stop_file, None))
        scripted = replace(session, sampler=ScriptedSampler(script, [END]))
        with pytest.raises(
            TrainingError, match=rf"2 of 8 completions of step 1: they hold token {placeholder}, .*completion 2"
        ):
            run_steps(scripted, FRESH)
