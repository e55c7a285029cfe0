"""A run by hand whose prompts have images and whose reward is the overlap of boxes."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from PIL import Image, ImageDraw

from grpo_core.data.frozen_images import FILE
from grpo_core.data.prepare import MANIFEST_FILE
from grpo_core.machine.disk import sha256_of
from grpo_core.run.folder import RunDir
from tests.compared import write_compared

Box = tuple[int, int, int, int]
SETTINGS: dict[str, Any] = {"rewards": [{"fn": "box_iou"}], "rollout.group_size": 4}
GOLD: Box = (16, 24, 40, 48)
TEXTS = ("[16, 24, 40, 48]", "[20, 24, 40, 52] ?", "I see [8, 8, 20, 20]", "it is red")
"""Completions of a prompt: right; near, with more behind it; elsewhere; without a box."""
REWARDS = (1.0, 0.0, 0.0, 0.0)


def png(image: Image.Image, **options: Any) -> bytes:
    """Return an image as a PNG file."""
    image.save(file := io.BytesIO(), "PNG", **options)
    return file.getvalue()


def jpeg(image: Image.Image, **options: Any) -> bytes:
    """Return an image as a JPEG file."""
    image.save(file := io.BytesIO(), "JPEG", **options)
    return file.getvalue()


def shape_image(number: int, side: int = 64) -> bytes:
    """Return a red square where the gold box is, and a circle elsewhere, as a PNG file that differs from number to number."""
    image = Image.new("RGB", (side, side), (250, 250, 245 - number % 40))
    draw, scale = ImageDraw.Draw(image), side / 64
    left, top, right, bottom = (round(scale * one) for one in GOLD)
    draw.rectangle((left, top, right - 1, bottom - 1), fill="#cc2222")
    draw.ellipse((44 * scale, 4 * scale, 60 * scale, 20 * scale), fill=("#2255cc", "#118844", "#ddaa22")[number % 3])
    return png(image)


def noise_image(side: int, seed: int = 0) -> bytes:
    """Return random pixels as a PNG file of about 3 bytes a pixel."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return png(Image.fromarray(pixels), compress_level=0)


def keep_image(run_dir: RunDir, content: bytes) -> str:
    """Write an image where a run has those of its prompts; return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    (run_dir.data / "images").mkdir(exist_ok=True)
    (run_dir.data / "images" / digest).write_bytes(content)
    return digest


def keep_sizes(run_dir: RunDir, sizes: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
    """Write the list of a run's images, as if they had been frozen: {digest: {"size": ..., "input_size": ...}}."""
    lines = [json.dumps({"sha256": digest, **one, "is_resized": False}) + "\n" for digest, one in sizes.items()]
    (run_dir.data / FILE).write_text("".join(lines))
    manifest = json.loads((run_dir.data / MANIFEST_FILE).read_text())
    manifest |= {"images_sha256": sha256_of(run_dir.data / FILE), "processor": {"max_image_pixels": 1_000_000}}
    (run_dir.data / MANIFEST_FILE).write_text(json.dumps(manifest))


def write_pictured_table(
    run_dir: RunDir,
    step: int,
    images: Sequence[Sequence[str] | None],
    *,
    texts: Sequence[str] = TEXTS,
    rewards: Sequence[float] = REWARDS,
    answer: str = str(list(GOLD)),
) -> None:
    """Write the completions of a step: a group of `texts` a prompt, whose images are given as digests, None = no such cell."""
    rows = [
        {
            "step": step,
            "prompt_id": 100 + number,
            "prompt": f"Where is the red square? ({number})",
            "completion": text,
            "answer": answer,
            "reward": reward,
            "reward_box_iou": reward,
            "advantage": reward - sum(rewards) / len(rewards),
            "tokens": len(text),
            "truncated": False,
            "images": None if of_prompt is None else list(of_prompt),
        }
        for number, of_prompt in enumerate(images)
        for text, reward in zip(texts, rewards, strict=True)
    ]
    run_dir.completions.mkdir(exist_ok=True)
    pandas.DataFrame(rows).to_parquet(run_dir.completions_file(step), index=False)


def write_pictured(folder: Path, overrides: Mapping[str, Any] | None = None, prompts: int = 3, **options: Any) -> RunDir:
    """Write a run of 12 steps, of which the first and the last kept completions of prompts with an image each."""
    run_dir = write_compared(folder, {**SETTINGS, **(overrides or {})})
    images = [[keep_image(run_dir, shape_image(number))] for number in range(prompts)]
    for step in (1, 12):
        write_pictured_table(run_dir, step, images, **options)
    return run_dir
