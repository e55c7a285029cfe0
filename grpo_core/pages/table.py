"""A table of a page: headings with units, cells as people read them."""

from dataclasses import dataclass

WORDY = frozenset(
    [
        *("levels", "between", "minus arm", "knob", "outcome", "state", "why", "run dir", "MLflow run"),
        *("run", "folder", "figure", "here", "against"),
    ]
)
"""Headings of columns of words."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a page."""

    caption: str
    head: tuple[str, ...]
    units: tuple[str, ...]
    """One per column; empty where a column has none."""
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()
    """Rows to stress."""

    @property
    def texts(self) -> frozenset[int]:
        """Columns of words, which stand left; figures stand right."""
        return frozenset(index for index, name in enumerate(self.head) if name in WORDY or index == 0)
