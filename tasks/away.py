"""Prefect as a view: what is only shown there must not end what it shows."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def prefect_may_be_away() -> Iterator[None]:
    """Log instead of raising where Prefect cannot take an event or an artifact."""
    try:
        yield
    except Exception:
        logger.warning("Prefect did not take an event or artifact", exc_info=True)
