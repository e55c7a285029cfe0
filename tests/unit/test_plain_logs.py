"""Log records of flows hold no password and nothing that acts, in message, arguments and traceback."""

import io
import logging
from collections.abc import Iterator

import pytest

from tasks.plain_logs import use_plain_logs


@pytest.fixture
def written() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger, and what it writes."""
    before = logging.getLogRecordFactory()
    use_plain_logs()
    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(stream))
    yield logger, stream
    logging.setLogRecordFactory(before)


def test_arguments_and_tracebacks_are_shown_as_text(written: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = written
    try:
        try:
            raise OSError("no answer from http://me:s3cret@host\x1b[2J")
        except OSError as error:
            raise ValueError("outer \u202e") from error
    except ValueError:
        logger.warning("%s is away, %d tries", "postgresql://me:s3cret@db/x\x9b1m", 3, exc_info=True)
    text = stream.getvalue()
    assert text.startswith("postgresql://***@db/x\\x9b1m is away, 3 tries\nTraceback (most recent call last):\n")
    assert "OSError: no answer from http://***@host\\x1b[2J\n" in text
    assert "ValueError: outer \\u202e\n" in text
    assert "s3cret" not in text
    assert all(line.isprintable() for line in text.splitlines())
