"""A comparison that is written again while its runs train."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_core.compare.comparison import RunComparison, compare_sources
from grpo_core.compare.files import write_comparison
from grpo_core.compare.runs import Source, find_sources, is_worked_on
from grpo_core.run.folder import RunDir
from grpo_core.run.process_state import process_runs

LOOK_SECONDS = 5.0
"""Between two looks at the runs' journals."""
RELOAD_SECONDS = 10.0
"""Between two times that the page loads itself."""

Show = Callable[[RunComparison], None]


def is_under_way(given: Sequence[Source], comparison: RunComparison) -> bool:
    """Return whether a run of a comparison can get longer by itself, or one of the sweeps that were given can begin a run."""
    return not comparison.have_ended or any(is_worked_on(source.path) for source in given)


def watch_runs(given: Sequence[Source], first: RunComparison, folder: Path, show: Show) -> None:
    """Write a comparison each time that a run has new figures, until a KeyboardInterrupt or all runs and sweeps have ended.

    The last page that is written, also after an interrupt, loads itself no more.

    Args:
        given: folders of runs and sweeps; a run that a sweep begins later is taken in.
        first: the comparison as it is now.
        folder: where to.
        show: is given each comparison that was written.

    Raises:
        KeyboardInterrupt: as it came, once the last page is written.
        GrpoError: a comparison cannot be made or written.
    """
    comparison = first
    shown: list[tuple[str, int, str]] | None = None
    compared: list[object] | None = None
    try:
        while is_under_way(given, comparison):
            if (now := _progress(comparison)) != shown:
                write_comparison(comparison, folder, reload_seconds=RELOAD_SECONDS, pictures=shown is None)
                show(comparison)
                shown = now
            time.sleep(LOOK_SECONDS)
            if (traces := _traces(given)) != compared:
                comparison, compared = compare_sources(given), traces
        comparison = compare_sources(given)  # a run whose process ended between two looks may have written its last records
    except KeyboardInterrupt:
        write_comparison(comparison, folder)
        raise
    write_comparison(comparison, folder)


def _progress(comparison: RunComparison) -> list[tuple[str, int, str]]:
    """Return what changes when the page must: the runs, how many records each has, and its state."""
    runs = [(str(one.run.path), len(one.run.records), one.run.state) for one in comparison.runs]
    return runs + [(one.source.given, 0, one.fault) for one in comparison.unread]


def _traces(given: Sequence[Source]) -> list[object]:
    """Return what changes when the runs do, without reading a journal: their files, and who works on them."""
    sources, notes = find_sources(given)
    return [*notes, *(_trace(source) for source in sources)]


def _trace(source: Source) -> object:
    run_dir = RunDir(source.path.expanduser())
    stamps = [_stamp(file) for file in (run_dir.config_file, run_dir.journal_file)]
    return source, stamps, process_runs(run_dir.process_file), is_worked_on(run_dir.path)


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return the size of a file and when it was written; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
