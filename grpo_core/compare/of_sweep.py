"""The comparison of a sweep's runs, which its report links to."""

from pathlib import Path

from grpo_core.compare.comparison import compare_sources
from grpo_core.compare.files import PAGE, write_comparison
from grpo_core.compare.runs import Source
from grpo_core.errors import GrpoError
from grpo_core.sweep.folder import StoredSweep

FOLDER = "compare"
"""Inside the folder of the report."""


def compare_sweep(stored: StoredSweep) -> str | None:
    """Write the comparison of a sweep's runs into its report's folder; return the page's place there.

    None where no run has begun, or none can be read: the report names the reasons.
    """
    stored.dir.require_ours()
    try:
        comparison = compare_sources([Source(given=str(stored.dir.path), path=stored.dir.path)], f"Sweep {stored.name}: runs")
    except GrpoError:
        return None
    folder: Path = stored.dir.report / FOLDER
    write_comparison(comparison, folder)
    return f"{FOLDER}/{PAGE}"
