"""The comparison of a sweep's runs, which its report links to."""

import logging
from dataclasses import dataclass

from grpo_core.compare.comparison import compare_sources
from grpo_core.compare.files import PAGE, write_comparison
from grpo_core.compare.runs import Source, begun_runs
from grpo_core.errors import cause
from grpo_core.sweep.folder import StoredSweep

logger = logging.getLogger(__name__)

FOLDER = "compare"
"""Inside the folder of the report."""


@dataclass(frozen=True, kw_only=True)
class SweepComparison:
    """What came of comparing a sweep's runs."""

    page: str | None = None
    """Place of the page, relative to the report's folder; None where there is none."""
    fault: str | None = None
    """Why the runs could not be compared, in one line; None where they were, and where no run has begun."""


def compare_sweep(stored: StoredSweep) -> SweepComparison:
    """Write the comparison of a sweep's runs into its report's folder.

    Raises:
        FolderError: the sweep's folder is not ours.
    """
    stored.dir.require_ours()
    if not begun_runs(stored.dir):
        return SweepComparison()
    try:
        comparison = compare_sources([Source(given=str(stored.dir.path), path=stored.dir.path)], f"Sweep {stored.name}: runs")
        write_comparison(comparison, stored.dir.report / FOLDER)
    except Exception as error:  # whatever is wrong with it: the report of a sweep does not depend on it
        logger.info("the comparison of %s failed", stored.dir.path, exc_info=True)
        return SweepComparison(fault=cause(error))
    return SweepComparison(page=f"{FOLDER}/{PAGE}")
