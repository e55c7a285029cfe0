"""An evaluation in its run: eval/<policy>.parquet, an `eval` record, and last eval/<policy>.json.

Its figures are called `eval/<set>/...`, after the evaluation set.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from grpo_core.evaluation.statistics import Estimate
from grpo_core.machine.disk import durable, durable_folder, whole_or_gone
from grpo_core.machine.jsonfile import build, read_json, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal, Record

HELD_OUT = "heldout"
"""The evaluation set that every run has: the held-out split of its own data."""
HELD_OUT_SAMPLE = "heldout_sample"
"""The first `evaluation.every_num_prompts` of it: what is evaluated during training has a name, hence curves, of its own."""


def set_name(source: str) -> str:
    """Return the name of a data source as an evaluation set: part of a metric key, and never one of the names above.

    >>> set_name("reasoning_gym:chain_sum"), set_name("file:some/GSM8K-test.jsonl"), set_name("hub:openai/gsm8k")
    ('chain_sum', 'gsm8k_test', 'gsm8k')
    """
    kind, _, name = source.partition(":")
    last = Path(name).stem if kind == "file" else name.rsplit("/", maxsplit=1)[-1]
    found = re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_") or "data"
    return f"{found}_data" if found in (HELD_OUT, HELD_OUT_SAMPLE) else found


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


def evaluations_after(history: Sequence[Record], step: int) -> dict[str, Record]:
    """Return {evaluation set: its newest record} of the policy after a step; one of another step says nothing of it."""
    return {str(record.data.get("set")): record for record in history if record.kind == "eval" and record.step == step}


def write_evaluation(
    run_dir: RunDir,
    policy: str,
    facts: Mapping[str, Any],
    write_table: Callable[[Path], object],
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
    durable_folder(run_dir.eval)
    table, last = table_file(run_dir, policy), facts_file(run_dir, policy)
    last.unlink(missing_ok=True)  # of an earlier policy, whose table is about to go
    with whole_or_gone(f"evaluation of {policy}", table), durable(table) as partial:
        write_table(partial)
    metrics = {key: estimate["value"] for key, estimate in facts["estimates"].items()}
    with closing(Journal(run_dir.journal_file)) as journal:
        journal.append("eval", facts["step"], {**facts, **(remarks or {}), "metrics": metrics})
    # Last: whoever finds it finds the whole evaluation.
    with whole_or_gone(f"evaluation of {policy}", last):
        write_json(last, facts)
