"""The reward functions of a run, for a process that trains or evaluates: with the verdicts given before."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.rewards.base import Reward, load_rewards
from grpo_core.rewards.bounded import Verdicts
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_records


def open_rewards(config: RunConfig, run_dir: RunDir | None) -> tuple[tuple[Reward, ...], Verdicts]:
    """Import a run's reward functions, and read which verdicts were given.

    Raises:
        RewardError: a function cannot be imported.
        JournalError: a journal cannot be read.
    """
    return load_rewards(config.rewards), Verdicts(() if run_dir is None else _records(run_dir))


def _records(run_dir: RunDir) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a run, superseded ones included, and those of the run that it repeats."""
    for folder in (run_dir, RunDir(run_dir.original)):
        if folder.journal_file.exists():
            yield from (record.data for record in read_records(folder.journal_file))
