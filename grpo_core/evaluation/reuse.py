"""Evaluations of initial policies that are kept: in a sweep, those of all arms with one seed are one and the same.

The figures and the table of completions are kept in the cache folder, under a digest of all that decides them
(`evaluation_identity`). Whoever evaluates holds a lock, so that runs which start together evaluate once.
"""

import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.names import BUILTIN_REWARDS
from grpo_core.data.frozen import read_manifest
from grpo_core.data.prepare import files_digest, json_digest, tokenizer_digest
from grpo_core.evaluation.results import facts_file, table_file, write_evaluation
from grpo_core.machine.disk import durable, flush
from grpo_core.machine.gpus import gpus
from grpo_core.machine.hardware import core_count, kernel_variables, processor
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.machine.locks import one_at_a_time
from grpo_core.policy.sources.cache import cache_folder
from grpo_core.run.folder import RunDir
from grpo_core.run.pass_sizes import batch_limits
from grpo_core.run.provenance import installed_versions

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
"""`grpo_core`, all of whose code takes part."""
PACKAGES = (
    "latex2sympy2-extended",
    "math-verify",
    "numpy",
    "pandas",
    "peft",
    "pyarrow",
    "reasoning-gym",
    "safetensors",
    "scipy",
    "sympy",
    "tokenizers",
    "torch",
    "transformers",
)
"""What completes, judges, counts and writes."""
ROLLOUT_KEYS = {"max_completion_tokens", "temperature", "top_p", "top_k"}
"""Of `rollout`: those by which an evaluation samples."""
EVALUATION_KEYS = {"pass_score", "num_prompts", "samples", "k"}
PATIENCE_SECONDS = 6 * 3600.0
"""For another run's evaluation, which may be long; whoever waits for it can be cancelled."""
KEPT_FACTS, KEPT_TABLE = "kept.json", "completions.parquet"


def evaluation_identity(run_dir: RunDir, folder: Path, weights: str, set_name: str, step: int) -> str | None:
    """Return a digest of everything that decides the evaluation of a model folder on a run's held-out prompts.

    It covers weights, the model's other files, prompts, the settings and the seed of sampling and judging, this package's code,
    the versions of the packages that take part, and the hardware. Beta, group size, sync period and the like are not in it.

    Args:
        run_dir: of the run, with its configuration and prompts.
        folder: of the model.
        weights: SHA-256 of its weights.
        set_name: of the evaluation.
        step: after which the policy was saved.

    Returns:
        None where somebody else's code takes part, which is not known: a verifier of the user's, a model's own Python files,
        another interpreter.
    """
    config = batch_limits(run_dir).applied(run_dir.read_config(), step)
    verifier = config.evaluation.verifier or config.rewards[0].fn
    if verifier not in BUILTIN_REWARDS or config.model.trust_remote_code or config.training.python is not None:
        return None
    return json_digest(
        {
            "set": (set_name, step),
            "prompts": read_manifest(run_dir.data).eval_sha256,
            "weights": weights,
            "model": tokenizer_digest(folder),
            "settings": _settings(config, verifier),
            "code": files_digest(sorted(PACKAGE.rglob("*.py"))),
            "packages": dict.fromkeys(PACKAGES) | installed_versions(PACKAGES),
            "machine": (sys.version, platform.machine(), processor(), kernel_variables()),
            "gpus": None if config.training.device == "cpu" else gpus(),
        }
    )


def _settings(config: RunConfig, verifier: str) -> dict[str, Any]:
    training = config.training
    return {
        "verifier": [reward.model_dump(mode="json", exclude={"weight"}) for reward in config.rewards if reward.fn == verifier],
        "evaluation": config.evaluation.model_dump(mode="json", include=EVALUATION_KEYS),
        "rollout": config.rollout.model_dump(mode="json", include=ROLLOUT_KEYS),
        "dtype": config.model.dtype,
        "training": (training.seed, training.device, training.deterministic, training.rollout_rows, training.packed_weights),
        "threads": training.threads or core_count(),
    }


def evaluated_once(
    identity: str, wait: Callable[[], None], say: Callable[[str], None] = logger.warning, patience: float = PATIENCE_SECONDS
) -> AbstractContextManager[None]:
    """Keep everybody else from the same evaluation while inside, if the cache folder can be written.

    Args:
        identity: of the evaluation.
        wait: called again and again while another process makes it; what it raises ends the waiting.
        say: takes a line that names that process, when the wait becomes long.
        patience: seconds until the wait is given up, and the evaluation made twice.
    """
    lock = _folder(identity).with_name(f".{identity}.lock")
    return one_at_a_time(lock, "makes the same evaluation", wait=wait, patience=patience, say=say)


def keep_evaluation(run_dir: RunDir, policy: str, identity: str) -> None:
    """Keep a finished evaluation of a run for others; where there is no room for it, a warning is logged."""
    folder = _folder(identity)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            with durable(Path(scratch) / KEPT_TABLE) as partial_table:
                shutil.copyfile(table_file(run_dir, policy), partial_table)
            facts = read_json(facts_file(run_dir, policy))
            kept = {"table": files_digest([Path(scratch) / KEPT_TABLE]), "facts": facts, "facts_sha256": json_digest(facts)}
            write_json(Path(scratch) / KEPT_FACTS, kept)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(scratch, folder)
            flush(folder.parent)
            Path(scratch).mkdir()  # what the context manager expects to remove
    except (OSError, ValueError) as error:
        logger.warning("the evaluation is not kept for other runs: %s", error)


def use_kept(run_dir: RunDir, policy: str, identity: str) -> bool:
    """Write an evaluation that was kept into a run, as if it had been made there; False where there is none, or not all of it.

    The record of the journal says `reused: true`.
    """
    folder = _folder(identity)
    try:
        kept = read_json(folder / KEPT_FACTS)
        facts = kept["facts"]
        if files_digest([folder / KEPT_TABLE]) != kept["table"] or json_digest(facts) != kept["facts_sha256"]:
            return False
    except (OSError, ValueError, LookupError, TypeError):
        return False
    write_evaluation(run_dir, policy, facts, partial(shutil.copyfile, folder / KEPT_TABLE), remarks={"reused": True})
    return True


def _folder(identity: str) -> Path:
    return cache_folder() / "evaluations" / identity
