"""Rows with images in files, and what a tiny model's processor makes prompts of."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from grpo_core.config import RunConfig, validate_config
from grpo_core.data.endings import end_tokens_of
from grpo_core.data.prepare import load_encoder
from grpo_core.data.prompts import build_prompts
from grpo_core.data.sources import read_rows
from grpo_core.data.splitting import PromptSplit
from tests.support.vision_models import picture

ENCODERS: dict[Path, Any] = {}


def as_file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return an image as a file."""
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return file.getvalue()


def png(number: int) -> bytes:
    """Return the file of an image, always the same one of a number."""
    return as_file(picture(number))


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]], files: Mapping[str, bytes] | None = None) -> Path:
    """Write rows as JSON lines, or as a table where they hold bytes, and files beside them; return where the rows are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if not any(map(_has_bytes, rows)):
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / "rows.jsonl"
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(map(dict, rows))), folder / "rows.parquet")
    return folder / "rows.parquet"


def _has_bytes(value: Any) -> bool:
    if isinstance(value, Mapping | list):
        return any(map(_has_bytes, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, bytes)


def config_of(model: Path, source: Path, **data: Any) -> RunConfig:
    """Return a configuration of TRL's columns."""
    keys = {"source": f"file:{source}", "prompt_column": "prompt", "eval_fraction": 0.0, **data}
    return validate_config({"data": keys, "model": {"source": str(model)}, "rollout": {"max_prompt_tokens": 900}})


def split_of(model: Path, source: Path, most: int = 900, **data: Any) -> PromptSplit:
    """Return the prompts of a file for a model; its processor is loaded once."""
    config = config_of(model, source, **data)
    if model not in ENCODERS:
        ENCODERS[model] = load_encoder(config, model)
    (tokenizer, encoder), own = ENCODERS[model], load_folder(config)
    encoder = type(encoder)(encoder.processor, own, not config.data.chat_template)
    rows = read_rows(config.data, with_images=True)
    return build_prompts(rows, config.data, tokenizer, most, end_tokens_of(model, tokenizer), encoder=encoder)


def load_folder(config: RunConfig) -> Any:
    """Return where images of rows are kept."""
    from grpo_core.data.row_images import kept_images

    return kept_images(config.data)
