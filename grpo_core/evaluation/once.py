"""An evaluation of a run's policy that is made once: not where the run has it, nor where an earlier run has made the same."""

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_core.data.frozen import read_manifest
from grpo_core.errors import GrpoError
from grpo_core.evaluation.plan import is_evaluated
from grpo_core.evaluation.reuse import evaluated_once, evaluation_identity, keep_evaluation, use_kept
from grpo_core.policy.saved import list_checkpoints
from grpo_core.policy.sources.find import resolve_model
from grpo_core.run.child import read_process_state
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import last_event, read_records
from grpo_core.run.start_weights import config_here, start_weights

MODULE = "grpo_core.evaluation"
"""What evaluates, as a process."""
Evaluate = Callable[[Sequence[str], Path], None]
"""Runs MODULE with arguments, its output in a file."""


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
) -> None:
    """Evaluate the initial policy (`base`, saved after `step`) or the newest checkpoint's (`final`) on the held-out prompts.

    Nothing is done where nothing is held out (`data.eval_fraction: 0`), or where this policy has been evaluated before. An
    evaluation of the initial policy that an earlier run has made in all respects alike is used again, except by a
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
    """
    if read_manifest(run_dir.data).num_eval == 0 or is_evaluated(run_dir, policy, step):
        return
    arguments = [str(run_dir.path), "--policy", policy, "--set", set_name, "--step", str(step)]
    log_file = run_dir.log_file(f"evaluate-{policy}")
    # With a checkpoint, the model may be the run's own copy.
    is_kept = policy == "base" and not run_dir.original.exists() and not list_checkpoints(run_dir.checkpoints)
    identity = _identity(run_dir, set_name, step, digest) if is_kept else None
    if identity is None:
        evaluate(arguments, log_file)
        return
    with evaluated_once(identity, wait, report):
        if use_kept(run_dir, policy, identity):
            report(f"evaluation of {policy}: an earlier run has made the same one; its result is used again")
            return
        evaluate(arguments, log_file)
        keep_evaluation(run_dir, policy, identity)


def was_cut_short(run_dir: RunDir) -> bool:
    """Return whether a training process was killed after its training had ended: in the evaluation of its last policy.

    Where that cannot be known, it was not: what ended the process is then the news, and not that its journal cannot be read.
    """
    code = read_process_state(run_dir.process_file).returncode
    if code is None or code >= 0:
        return False
    try:
        last = last_event(read_records(run_dir.journal_file))
    except GrpoError:
        return False
    return last is not None and last.kind == "end" and last.data.get("status") != "failed"


def _identity(run_dir: RunDir, set_name: str, step: int, digest: Callable[[Path], str]) -> str | None:
    config = config_here(run_dir)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    return evaluation_identity(run_dir, folder, start_weights(config, folder, digest).policy, set_name, step)
