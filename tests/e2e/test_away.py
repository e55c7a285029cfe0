"""What is only shown in Prefect is given up in seconds where its server has died, and the flow goes on."""

import time

import pytest
from prefect.artifacts import create_markdown_artifact
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tasks.process.prefect_outage import prefect_may_be_away

pytestmark = pytest.mark.proof


def test_what_is_shown_waits_seconds_for_a_server_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    settings = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 10}
    with temporary_settings(settings), prefect_may_be_away():
        create_markdown_artifact("text", key="report")
    assert "Prefect did not take" in caplog.text
    assert time.monotonic() - began < 30
