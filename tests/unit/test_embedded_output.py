"""What a failed server wrote is shown without secrets, and where the runs of a command can be seen is true."""

import tempfile

import pytest

from flows.stack.embedded import failure, sign_of_damage, written
from flows.stack.servers import HISTORY, runs_in_prefect
from tasks.process.context import EMBEDDED_VARIABLE, prefect_is_embedded


def test_output_is_shown_without_secrets_and_terminal_escapes() -> None:
    with tempfile.TemporaryFile() as log:
        log.write(
            b"uses grpo:top-secret at postgresql://someone:pa/ss-word@db/prefect\x1b[31m red \x1b]0;title\x07\nlast line\n\n"
        )
        log.flush()
        assert written(log, "grpo:top-secret") == "uses *** at postgresql://***@db/prefect red ]0;title\nlast line"


def test_an_exception_above_a_long_statement_is_shown() -> None:
    output = "\n".join(
        ["Traceback", "sqlalchemy.exc.SomeError: the cause", *(f"  column {number}" for number in range(30)), "end"]
    )
    message = failure("ended 2 times during its start", output)
    assert "the cause" in message
    assert "column 0" not in message
    assert "end\nStart the command again" in message


@pytest.mark.parametrize(
    ("line", "is_damage"),
    [
        ("sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) table flow already exists", True),
        ("sqlite3.DatabaseError: database disk image is malformed", True),
        ("sqlite3.OperationalError: database is locked", False),
        ("OSError: file already exists", False),
    ],
)
def test_damage_is_told_from_a_failure_that_another_start_mends(line: str, is_damage: bool) -> None:
    assert sign_of_damage(f"Traceback\n{line}\nlast line") == (line if is_damage else "")


def test_an_embedded_server_is_not_named_as_the_place_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:40001/api")
    monkeypatch.setenv(EMBEDDED_VARIABLE, "http://127.0.0.1:40001/api")
    assert prefect_is_embedded()
    assert runs_in_prefect() == HISTORY
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")  # a stack that was started meanwhile
    assert not prefect_is_embedded()
    assert runs_in_prefect() == "http://127.0.0.1:4200"
    monkeypatch.delenv("PREFECT_API_URL")
    assert runs_in_prefect() == HISTORY
