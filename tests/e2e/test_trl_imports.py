"""TRL scripts run with their import line changed: the configuration is that of `grpo import-config` for the same settings."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core import Run
from grpo_core.config import validate_config
from grpo_core.config.origin import flatten
from grpo_core.interop.conversion import HELD_OUT, import_config
from tests.e2e.test_coming_from_trl import NAMES, ROOT, files_of, script_of, write_problems

PUBLIC = ROOT / "tests" / "data" / "trl_public"
OF_TRL = {"prompt_column": "prompt", "answer_column": None, "chat_template": False}
pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


def smaller(text: str, model: Path) -> str:
    """Return a script or its settings for the tiny model, few steps and short completions."""
    text = re.sub(r'"?Qwen/[\w.-]+"?', lambda found: f'"{model}"', text)
    for key, value in (("max_steps", 2), ("warmup_steps", 1), ("max_completion_length", 8)):
        text = re.sub(rf"\b({key}(?:=|: ))(?!30\b)\d+", rf"\g<1>{value}", text)
    return text


def expected(settings: str, data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the leaves of the configuration that `import-config` makes of settings, with a section `data`."""
    (folder / "settings.yaml").write_text(settings)
    return flatten(validate_config({**import_config(folder / "settings.yaml").values, "data": data}))


IN_CI = ("countdown", "synced")
"""A public script, and one with a reference that moves."""
CASES = [*NAMES, *sorted(path.stem for path in PUBLIC.glob("*.py"))]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in IN_CI)) for name in CASES])
def test_a_script_is_converted_by_its_import_line(name: str, tmp_path: Path, tiny_model_dir: Path) -> None:
    if name in NAMES:
        script, files = script_of(name), files_of(name)
        settings, data = files["settings.yaml"], yaml.safe_load(files["data.yaml"])["data"]
    else:
        script, settings = ((PUBLIC / f"{name}.{kind}").read_text() for kind in ("py", "yaml"))
        data = {**OF_TRL, **({"answer_column": "answer"} if name == "quickstart" else {})}
    assert script.count("from trl import GRPOConfig, GRPOTrainer\n") == 1
    write_problems(tmp_path)
    changed = script.replace("from trl import", "from grpo_core.trl import")
    (tmp_path / "script.py").write_text(smaller(changed, tiny_model_dir))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"TRL's settings that do nothing here, or something else:\n  {HELD_OUT}" in done.stderr
    assert "output_dir = " in done.stderr
    (path,) = (path for path in tmp_path.glob("runs/*") if (path / "journal.jsonl").exists())
    run, leaves = Run(path), expected(smaller(settings, tiny_model_dir), {**data, "source": "file:rows.jsonl"}, tmp_path)
    assert run.state == "finished"
    own = {"data.source", *(key for key in leaves if re.fullmatch(r"rewards\.\d+\.fn", key))}
    assert {key: value for key, value in flatten(run.config).items() if key not in own} == {
        key: value for key, value in leaves.items() if key not in own
    }
    assert len(run.config.rewards) == len(re.findall(r"^def \w+\(completions, ", script, re.MULTILINE))
    if "save_model" in script:
        assert (tmp_path / "runs" / "qwen-r1-aha-moment" / "model.safetensors").exists()
