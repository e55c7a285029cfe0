"""The evaluation process: `python -m grpo_core.evaluation RUN_DIR --policy base|final [--set NAME] [--step N]`.

Writes eval/<policy>.json (figures with intervals), eval/<policy>.parquet (every completion), and an `eval` record.
"""

import argparse
import logging
import sys
from pathlib import Path

from grpo_core.errors import GrpoError, ModelError
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.machine.process import exit_with_lifeline, gc_paused
from grpo_core.run.child import import_as_at_start
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.provenance import config_here, find_model


def main(arguments: list[str] | None = None) -> int:
    """Evaluate one policy of RUN_DIR; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpo_core.evaluation", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder of a run")
    parser.add_argument(
        "--policy", choices=("base", "final"), required=True, help="the initial policy, or the newest checkpoint's"
    )
    parser.add_argument("--set", default=HELD_OUT, dest="name", help="name of the evaluation set in metric keys")
    parser.add_argument("--step", type=int, default=0, help="step after which the initial policy was saved, if it was")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    exit_with_lifeline()
    try:
        _evaluate(RunDir(options.run_dir), options.policy, options.name, options.step)
    except GrpoError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return error.exit_code
    return 0


def _evaluate(run_dir: RunDir, policy: str, name: str, step: int) -> None:
    with gc_paused():
        from grpo_core.evaluation.runner import evaluate_run, open_evaluator
        from grpo_core.policy.device import held_device, pick_device
        from grpo_core.policy.saved import list_checkpoints, read_state, stored_initial

    run_dir.require_ours()
    import_as_at_start(run_dir)
    config = config_here(run_dir)
    if policy == "base":
        folder, initial = find_model(run_dir), stored_initial(run_dir.checkpoints)
    else:
        checkpoints = list_checkpoints(run_dir.checkpoints)
        if not checkpoints:
            raise ModelError(f"run dir {run_dir.path}: has no checkpoint to evaluate; was a step finished?")
        step, folder, initial = read_state(checkpoints[-1]).step, checkpoints[-1] / "policy", None
    config = batch_limits(run_dir).applied(config, step)
    with held_device(pick_device(config.training.device)):
        evaluate_run(run_dir, open_evaluator(config, folder, run_dir, initial), policy=policy, name=name, step=step)


if __name__ == "__main__":
    sys.exit(main())
