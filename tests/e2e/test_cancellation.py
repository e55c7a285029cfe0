"""A flow process notices that its run is cancelled even where no signal comes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, get_client
from prefect.states import Cancelling, Running

from tasks.process.child import run_child
from tasks.process.context import FLOW_RUN_VARIABLE
from tasks.process.prefect_outage import RunCancelledError

pytestmark = pytest.mark.proof


@flow(name="somebody-elses")
def some_flow() -> None:
    """A flow whose runs are only looked at."""


@pytest.fixture
def flow_run_id(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of a running flow run, which this process takes for its own."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(some_flow, state=Running())
    monkeypatch.setenv(FLOW_RUN_VARIABLE, str(run.id))
    monkeypatch.setattr("tasks.process.prefect_outage.ASK_SECONDS", 0.2)
    monkeypatch.setattr("tasks.process.prefect_outage.GRACE_SECONDS", 0.5)
    return str(run.id)


def test_a_child_is_stopped_when_the_api_says_cancelling(flow_run_id: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "child_module.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('stopped', flush=True)))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = time.monotonic()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Cancelling())
    with pytest.raises(RunCancelledError, match="Prefect had not delivered it"):
        run_child("child_module", [], tmp_path / "log", state_file=tmp_path / "state")
    assert time.monotonic() - started > 0.5
    assert json.loads((tmp_path / "state").read_text())["returncode"] == 0
    assert "stopped" in (tmp_path / "log").read_text()
