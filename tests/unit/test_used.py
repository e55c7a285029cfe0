"""A folder with which a run began and that is gone is named by whoever looks for it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ModelError
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import find_model


@pytest.mark.parametrize("kind", ["run", "reproduction"])
def test_without_a_copy_of_its_own_the_folder_that_is_gone_is_named(kind: Any, tmp_path: Path, tiny_config: Any) -> None:
    start, run_dir = tmp_path / "first" / "policy", RunDir(tmp_path / "runs" / "second")
    start.mkdir(parents=True)
    run_dir.create(tiny_config({"model.source": str(start)}), kind=kind)
    facts = {"data_digest": "d", "model_digest": "m", "folders": {"model.source": str(start)}}
    noted = run_dir if kind == "run" else RunDir(run_dir.original)
    noted.path.mkdir(exist_ok=True)
    noted.provenance_file.write_text(json.dumps(facts))
    shutil.rmtree(start)
    with pytest.raises(ModelError, match=rf"When this run began it was {start}, which is gone: put it back"):
        find_model(run_dir)
