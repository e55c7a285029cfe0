"""The evaluation of a run's policy on its held-out prompts, made once: not where the run, or an earlier one, has made the same.

In a sweep the initial policies of all arms with one seed are one and the same: their figures and completions are kept in the
cache folder, under a digest of all that decides them (`evaluation_identity`). Whoever evaluates holds a lock: of runs which
start together one evaluates.
"""

import contextlib
import logging
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from grpo_core.config.names import BUILTIN_REWARDS
from grpo_core.data.prepare import files_digest, json_digest, read_manifest, tokenizer_digest
from grpo_core.errors import GrpoError
from grpo_core.evaluation.results import facts_file, table_file, write_evaluation
from grpo_core.machine.disk import durable, read_json, remove, write_json
from grpo_core.machine.gpus import gpus
from grpo_core.machine.hardware import core_count, kernel_variables, processor
from grpo_core.machine.locks import one_at_a_time
from grpo_core.machine.slots import slot_limit
from grpo_core.policy.saved import list_checkpoints, read_state
from grpo_core.policy.sources.cache import cache_folder
from grpo_core.policy.sources.find import resolve_model
from grpo_core.run.child import read_process_state
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.journal import Journal, last_event, read_journal, read_records
from grpo_core.run.provenance import config_here, installed_versions, policy_digest, start_weights

logger = logging.getLogger(__name__)

MODULE = "grpo_core.evaluation"
"""What evaluates, as a process."""
Evaluate = Callable[[Sequence[str], Path], None]
"""Runs MODULE with arguments, its output in a file."""
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
TRAINING_KEYS = {"seed", "device", "deterministic", "rollout_rows", "packed_weights"}
"""Of `training`; the initial policy is evaluated by one process, however many train it."""
PATIENCE = 6 * 3600.0
"""For another run's evaluation, which may be long; whoever waits for it can be cancelled."""
KEPT_FACTS, KEPT_TABLE = "kept.json", "completions.parquet"


def evaluate_if_needed(
    run_dir: RunDir,
    policy: str,
    set_name: str,
    step: int,
    *,
    evaluate: Evaluate,
    digest: Callable[[Path], str],
    wait: Callable[[], None],
    report: Callable[[str], None],
) -> str:
    """Evaluate the initial policy (`base`, saved after `step`) or the newest checkpoint's (`final`) on the held-out prompts.

    Nothing is done where nothing is held out, where this policy has been evaluated before, or where the training is to do it.
    An evaluation of the initial policy that an earlier run has made in all respects alike is used again, but by a
    reproduction, which is to repeat it.

    Args:
        run_dir: of the run, with its frozen prompts.
        policy: `base` or `final`.
        set_name: of the evaluation.
        step: after which the policy was saved.
        evaluate: runs the process.
        digest: returns the SHA-256 of the weights in a folder.
        wait: called again and again while another run makes the same evaluation; what it raises ends the waiting.
        report: takes a line about that wait, or about a result that is used again.

    Returns:
        The digest under which it is kept for other runs, nothing where it is not.
    """
    if not is_missing(run_dir, policy, step):
        return ""
    arguments = [str(run_dir.path), "--policy", policy, "--set", set_name, "--step", str(step)]
    log_file = run_dir.log_file(f"evaluate-{policy}")
    # With a checkpoint, the model may be the run's own copy.
    is_kept = policy == "base" and not run_dir.original.exists() and not list_checkpoints(run_dir.checkpoints)
    identity = evaluation_identity(run_dir, set_name, step, digest) if is_kept else None
    make = None if policy == "base" and is_of_training(run_dir) else partial(evaluate, arguments, log_file)
    make_once(run_dir, policy, identity or "", make, wait=wait, report=report)
    return identity or ""


def make_once(
    run_dir: RunDir,
    policy: str,
    identity: str,
    make: Callable[[], object] | None,
    *,
    wait: Callable[[], None],
    report: Callable[[str], None],
    journal: Journal | None = None,
) -> None:
    """Take an evaluation that is kept under a digest; else make it, and keep it there. Without a digest it is made.

    Args:
        run_dir: of the run.
        policy: `base` or `final`.
        identity: the digest.
        make: evaluates; None = somebody else will.
        wait: as in `evaluate_if_needed`.
        report: as in `evaluate_if_needed`.
        journal: of the run, where this process has it open.
    """
    if not identity:
        if make is not None:
            make()
        return
    kept = _folder(identity)
    # A training has a slot, for which whoever makes the same evaluation may be waiting.
    patience = 0.0 if journal is not None and slot_limit() else PATIENCE
    with one_at_a_time(kept.with_suffix(".lock"), "makes the same one", wait=wait, patience=patience, say=report):
        if kept.is_dir():
            copy, facts = partial(shutil.copyfile, kept / KEPT_TABLE), read_json(kept / KEPT_FACTS)
            write_evaluation(run_dir, policy, facts, copy, remarks={"reused": True}, journal=journal)
            report(f"evaluation of {policy}: an earlier run has made the same one; its result is used again")
        elif make is not None:
            make()
            keep_evaluation(run_dir, policy, identity)


def is_of_training(run_dir: RunDir) -> bool:
    """Return whether a run begins with its initial policy in one process that can evaluate it before the first step.

    Other engines, several processes and a server that samples on the same GPU leave that to a process of its own.
    """
    config = batch_limits(run_dir).applied(run_dir.read_config())
    is_alone = config.training.engine == "native" and config.training.processes == 1 and config.rollout.engine == "embedded"
    begins = not (list_checkpoints(run_dir.checkpoints) or run_dir.parent.exists())
    return is_alone and begins and run_dir.kind != "evaluation"


def is_missing(run_dir: RunDir, policy: str, step: int) -> bool:
    """Return whether something is held out, and what `is_evaluated` looks for is not there."""
    return read_manifest(run_dir.data).num_eval > 0 and not is_evaluated(run_dir, policy, step)


def is_evaluated(run_dir: RunDir, policy: str, step: int) -> bool:
    """Return whether a run's evaluation of `base` (saved after `step`) or of its newest checkpoint, `final`, is complete."""
    if policy == "final":
        checkpoints = list_checkpoints(run_dir.checkpoints)
        step = read_state(checkpoints[-1]).step if checkpoints else 0
    try:
        if read_json(facts_file(run_dir, policy))["step"] != step:
            return False
    except (OSError, ValueError, LookupError, TypeError):
        return False  # not there, or not all of it: it is evaluated again
    from grpo_core.run.curves import read_table

    # Its record may have been cut off, and whatever is read of the run later has to find it.
    evaluations = [record.data.get("policy") for record in read_journal(run_dir.journal_file) if record.kind == "eval"]
    return policy in evaluations and read_table(table_file(run_dir, policy)) is not None


def was_cut_short(run_dir: RunDir) -> bool:
    """Return whether a training process was killed after its training had ended: in the evaluation of its last policy.

    Where that cannot be known, it was not: what ended the process is then the news, and not that its journal cannot be read.
    """
    code = read_process_state(run_dir.process_file).returncode
    with contextlib.suppress(GrpoError):
        last = last_event(read_records(run_dir.journal_file))
        return code is not None and code < 0 and last is not None and last.kind == "end" and last.data["status"] != "failed"
    return False


def evaluation_identity(run_dir: RunDir, set_name: str, step: int, digest: Callable[[Path], str]) -> str | None:
    """Return a digest of everything that decides the evaluation of a run's initial policy on its held-out prompts.

    It covers weights, the model's other files, prompts, the settings and the seed of sampling and judging, this package's code,
    the versions of the packages that take part, and the hardware. Beta, group size, sync period and the like are not in it.

    Args:
        run_dir: of the run, with its configuration and prompts.
        set_name: of the evaluation.
        step: after which the policy was saved.
        digest: returns the SHA-256 of the weights in a folder.

    Returns:
        None where somebody else's code takes part, which is not known: a verifier of the user's, a model's own Python files,
        another interpreter.
    """
    config = batch_limits(run_dir).applied(config_here(run_dir), step)
    verifier = config.evaluation.verifier or config.rewards[0].fn
    if verifier not in BUILTIN_REWARDS or config.model.trust_remote_code or config.training.python is not None:
        return None
    folder, training = resolve_model(config.model.source), config.training
    return json_digest(
        {
            "set": (set_name, step),
            "prompts": read_manifest(run_dir.data).eval_sha256,
            "weights": policy_digest(start_weights(config, folder, digest)),
            "model": (tokenizer_digest(folder), config.model.dtype),
            "verifier": [
                reward.model_dump(mode="json", exclude={"weight"}) for reward in config.rewards if reward.fn == verifier
            ],
            "evaluation": config.evaluation.model_dump(mode="json", include=EVALUATION_KEYS),
            "rollout": config.rollout.model_dump(mode="json", include=ROLLOUT_KEYS),
            "training": training.model_dump(mode="json", include=TRAINING_KEYS),
            "threads": training.threads or core_count(),
            "code": files_digest(sorted(PACKAGE.rglob("*.py"))),
            "packages": dict.fromkeys(PACKAGES) | installed_versions(PACKAGES),
            "machine": (sys.version, platform.machine(), processor(), kernel_variables()),
            "gpus": None if training.device == "cpu" else gpus(),
        }
    )


def keep_evaluation(run_dir: RunDir, policy: str, identity: str) -> None:
    """Keep a finished evaluation of a run for others; where there is no room for it, a warning is logged."""
    folder = _folder(identity)
    try:
        remove(folder)
        with durable(folder) as kept:
            kept.mkdir()
            with durable(kept / KEPT_TABLE) as table:
                shutil.copyfile(table_file(run_dir, policy), table)
            write_json(kept / KEPT_FACTS, read_json(facts_file(run_dir, policy)))
    except (OSError, ValueError) as error:
        logger.warning("the evaluation is not kept for other runs: %s", error)


def _folder(identity: str) -> Path:
    return cache_folder() / "evaluations" / identity
