"""VLM-R1's published launch and ten rows of its data: imported, checked, and trained for three steps on a tiny Qwen2.5-VL."""

from pathlib import Path

import pytest
import torch
import yaml

from grpo_core.config import load_config
from grpo_core.data.prepare import prepare
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.training.__main__ import main
from tests.support.commands import grpo
from tests.support.vision_models import write_vision_model
from tests.support.vlm_r1 import write_launch


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_the_published_launch_is_imported_checked_and_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_vision_model(tmp_path / "Qwen2.5-VL-tiny", "qwen2_5_vl")
    script = write_launch(tmp_path, str(model), processes=1, more="--max_steps 3")
    data, configuration = tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    imported = grpo("import-config", str(script), "--data", str(data), "-o", str(configuration))
    assert imported.returncode == 0, imported.stderr
    values = yaml.safe_load(configuration.read_text())
    values["model"]["dtype"] = "float32"  # what a test on a CPU needs otherwise
    values["rollout"] |= {"max_completion_tokens": 6, "max_prompt_tokens": 300}
    values["tracking"]["also"] = []
    values["training"] |= {"threads": 1, "device": "cpu"}
    configuration.write_text(yaml.safe_dump(values))
    checked = grpo("check", str(configuration))
    assert checked.returncode == 0, checked.stdout + checked.stderr

    monkeypatch.delenv(LIFELINE_VARIABLE, raising=False)
    threads, run_dir, config = torch.get_num_threads(), RunDir(tmp_path / "run"), load_config(configuration)
    run_dir.create(config)
    manifest = prepare(config, run_dir.data)
    assert (manifest.num_train, manifest.num_eval, manifest.num_images) == (10, 0, 10)
    assert main([str(run_dir.path)]) == 0
    torch.set_num_threads(threads)
    steps = [record for record in read_journal(run_dir.journal_file) if record.kind == "step"]
    assert [record.step for record in steps] == [1, 2, 3]
    assert {"reward/box_iou/mean", "reward/box_format/mean"} <= steps[0].metrics.keys()
