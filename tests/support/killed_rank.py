"""A rank that is killed in the middle of something: of a rollout, an update, a sync, of gathering or writing a checkpoint."""

import importlib
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.support.ranks import train

PLACES = {
    "rollout": (1, "grpo_core.policy.policy", "sample_completions", 4),
    "update": (1, "torch.optim", "AdamW.step", 4),
    "sync": (1, "grpo_core.policy.reference", "Reference.count_sync", 2),
    "gather": (1, "grpo_core.policy.checkpoint", "Contents.copied", 2),
    "file": (0, "grpo_core.policy.checkpoint", "save_weights", 3),
    "rename": (0, "grpo_core.policy.checkpoint", "_drop_others", 2),
}
"""{where: (rank, module, function in it, before which of its calls)}; all come after the first checkpoint."""


def train_until_killed(argument: str) -> int:
    """Be a rank of a training whose argument is `RUN_DIR where`."""
    run_dir, where = argument.rsplit(" ", 1)
    victim, module, name, calls = PLACES[where]
    if int(os.environ["RANK"]) == victim:
        *owners, function = name.split(".")
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, function, _deadly(getattr(owner, function), calls))
    return train(run_dir)


def _deadly(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    left = calls

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    return called
