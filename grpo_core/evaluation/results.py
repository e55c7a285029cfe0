"""An evaluation in its run: eval/<policy>.parquet, an `eval` record, and last eval/<policy>.json."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_core.evaluation.statistics import Estimate
from grpo_core.machine.disk import whole_or_gone
from grpo_core.machine.jsonfile import build, read_json, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal


def table_file(run_dir: RunDir, policy: str) -> Path:
    """Return where the completions of an evaluation lie."""
    return run_dir.eval / f"{policy}.parquet"


def facts_file(run_dir: RunDir, policy: str) -> Path:
    """Return where the figures of an evaluation lie; while it is not there, the evaluation is not finished."""
    return run_dir.eval / f"{policy}.json"


def read_estimates(run_dir: RunDir, policy: str) -> dict[str, Estimate]:
    """Return the figures of a finished evaluation, by metric key.

    Raises:
        OSError, ValueError, LookupError: there is none, or its file was changed into something else.
    """
    return build(dict[str, Estimate], read_json(facts_file(run_dir, policy))["estimates"])


def write_evaluation(
    run_dir: RunDir,
    policy: str,
    facts: Mapping[str, Any],
    write_table: Callable[[Path], None],
    remarks: Mapping[str, Any] | None = None,
) -> None:
    """Write an evaluation down.

    Args:
        run_dir: of the run.
        policy: `base` or `final`.
        facts: `policy`, `set`, `step`, `num_prompts` and `estimates`, each with a `value`.
        write_table: writes every completion to a file.
        remarks: what the record holds beside them.

    Raises:
        DiskFullError, JournalError: it cannot be written; what could not be finished is gone.
    """
    run_dir.eval.mkdir(exist_ok=True)
    table, last = table_file(run_dir, policy), facts_file(run_dir, policy)
    with whole_or_gone(f"evaluation of {policy}", table):
        write_table(table)
    metrics = {key: estimate["value"] for key, estimate in facts["estimates"].items()}
    journal = Journal(run_dir.journal_file)
    try:
        journal.append("eval", facts["step"], {**facts, **(remarks or {}), "metrics": metrics})
    finally:
        journal.close()
    # Last: whoever finds it finds the whole evaluation.
    with whole_or_gone(f"evaluation of {policy}", last):
        write_json(last, facts)
