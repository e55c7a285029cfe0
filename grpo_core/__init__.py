"""GRPO for language models: the algorithm, its data and its training process, without an orchestrator or a tracker.

Names are loaded when they are used, so that importing this package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_core.algorithm.advantages import group_relative_advantages
    from grpo_core.algorithm.kl import per_token_kl
    from grpo_core.algorithm.loss import Denominators, LossTerms, grpo_loss
    from grpo_core.config import RunConfig, load_config
    from grpo_core.errors import GrpoError
    from grpo_core.run.curves import Run
    from grpo_core.run.folder import RunDir
    from grpo_core.run.journal import Record, read_journal
    from grpo_core.training.from_python import resume_training, train

_HOMES = {
    "Denominators": "grpo_core.algorithm.loss",
    "GrpoError": "grpo_core.errors",
    "LossTerms": "grpo_core.algorithm.loss",
    "Record": "grpo_core.run.journal",
    "Run": "grpo_core.run.curves",
    "RunConfig": "grpo_core.config",
    "RunDir": "grpo_core.run.folder",
    "group_relative_advantages": "grpo_core.algorithm.advantages",
    "grpo_loss": "grpo_core.algorithm.loss",
    "load_config": "grpo_core.config",
    "per_token_kl": "grpo_core.algorithm.kl",
    "read_journal": "grpo_core.run.journal",
    "resume_training": "grpo_core.training.from_python",
    "train": "grpo_core.training.from_python",
}

__all__ = [
    "Denominators",
    "GrpoError",
    "LossTerms",
    "Record",
    "Run",
    "RunConfig",
    "RunDir",
    "group_relative_advantages",
    "grpo_loss",
    "load_config",
    "per_token_kl",
    "read_journal",
    "resume_training",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'grpo_core' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
