"""`make vllm` on a machine that has no vLLM: it downloads about 1 GB and takes minutes and 3.3 GB of disk."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_core.generation.vllm.opening import VllmServer
from tests.vllm.conftest import ROOT, settings_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def make(folder: Path) -> None:
    """Make the environment, or bring it up to date."""
    command = [sys.executable, "-m", "grpo_core.generation.vllm.environment", str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder.parent, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{folder / 'bin' / 'python'} has vLLM and the plugin" in done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not there yet, and is not kept as other temporary folders of pytest are."""
    yield tmp_path / "environment"
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


def test_an_environment_is_made_once_and_a_server_starts_with_it(model_folder: Path, folder: Path, tmp_path: Path) -> None:
    make(folder)
    make(folder)  # brings it up to date

    server = VllmServer(replace(settings_of(model_folder, tmp_path / "vllm.log"), python=folder / "bin" / "python"), 4)
    try:
        client = server.start()
        client.open_model(64)
        assert client.weight_version() == "default"
    finally:
        server.stop()
