"""A name that somebody gave a flow run is the run's for every reader: Prefect, MLflow, Python."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from flows import naming
from grpo_core import Run
from grpo_core.config import apply_overrides
from grpo_core.run.folder import RunDir
from tasks.process import given_name
from tasks.run.evaluation_run import open_evaluation
from tasks.run.reproduction import open_reproduction
from tasks.run.setup import open_run
from tasks.tracking import open_tracking
from tests.compared import write_compared

NAME = "lower beta, as Ada asked"
GENERATED = "β=0.04 G=4 sync=2 seed=0 tiny"
Called = Callable[[str], None]


@pytest.fixture
def called(tmp_path: Path, tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Called:
    """Return a function that makes this process a deployment's, whose flow run has a name."""
    (tmp_path / "configs").mkdir()
    values = apply_overrides(tiny_values, {"tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
    (tmp_path / "configs" / "tiny.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)

    def call(name: str) -> None:
        run_id = f"flow run {name}"
        monkeypatch.setattr(given_name, "deployed_flow_run", lambda: run_id)
        monkeypatch.setattr(given_name, "flow_run", SimpleNamespace(id=run_id, name=name))

    return call


@pytest.mark.parametrize("overrides", [{}, {"tracking.run_name": "of the configuration"}], ids=["alone", "with-an-override"])
def test_every_reader_agrees_and_the_given_name_comes_first(
    called: Called, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, str]
) -> None:
    called(NAME)
    monkeypatch.setattr(naming, "flow_run", SimpleNamespace(parameters={"config": "tiny", "overrides": overrides}))
    path = open_run.fn("tiny", overrides, None)
    assert naming.name_training() == NAME
    assert Run(path).name == NAME
    assert RunDir(path).read_config().tracking.run_name == NAME
    assert open_tracking.fn(path).name == NAME


def test_a_name_that_prefect_invented_is_nobodys(called: Called) -> None:
    called("agile-otter")
    path = open_run.fn("tiny", {}, None)
    assert Run(path).name == GENERATED
    assert open_tracking.fn(path).name == GENERATED


def test_evaluations_and_reproductions_have_the_name_that_they_were_given(called: Called, tmp_path: Path) -> None:
    called(NAME)
    first = write_compared(tmp_path / "runs" / "first", steps=2).path
    source = RunDir(open_run.fn("tiny", {}, None)).read_config().model.source
    for plan in (open_evaluation.fn(source, "tiny", {}, None).run_path, open_reproduction.fn(str(first), {}, None)):
        assert Run(plan).name == NAME


def test_a_password_in_a_given_name_is_not_stored(called: Called) -> None:
    called("as in https://ada:secret@example.org/x")
    path = open_run.fn("tiny", {}, None)
    assert "secret" not in RunDir(path).config_file.read_text()
