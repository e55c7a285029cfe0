"""A run whose vLLM server cannot be had is refused before there is anything of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.server import PYTHON_VARIABLE
from tasks.run.setup import open_run

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def config(tmp_path: Path, tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    values = {**tiny_values, "model": {**tiny_values["model"], "dtype": "float32"}}
    values["rollout"] = {**tiny_values["rollout"], "engine": "vllm"}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    return "tiny.yaml"


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({}, r"rollout\.vllm\.python: \.venv-vllm/bin/python is not there; `make vllm` makes an environment"),
        ({"rollout.vllm.python": "/bin/sh"}, r"rollout\.vllm\.python: /bin/sh has no vllm and no grpo_vllm"),
        ({"rollout.vllm.mode": "colocate"}, r"training\.python: \S+ has no vllm and no grpo_vllm; `make vllm ARGS=--trainer`"),
        ({"rollout.vllm.url": NOWHERE}, rf"{NOWHERE}/v1/models: no answer"),
    ],
)
def test_nothing_is_made_for_a_run_without_its_server(config: str, tmp_path: Path, overrides: Any, why: str) -> None:
    with pytest.raises(SamplerError, match=why):
        open_run.fn(config, overrides, tmp_path / "run")
    assert not (tmp_path / "run").exists()
