"""The final evaluation in the training process: the model is there, and a process of its own would load torch and it again.

It is what `python -m grpo_core.evaluation RUN_DIR --policy final` makes, bit for bit, and nothing depends on it: whoever wants
the evaluation and does not find it starts that process.
"""

import gc
import logging
from collections.abc import Callable

from grpo_core.data.frozen import read_manifest
from grpo_core.errors import cause
from grpo_core.evaluation.of_run import evaluate_policy_of, record_evaluation
from grpo_core.evaluation.plan import is_evaluated
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.evaluation.runner import Evaluator
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.run.folder import RunDir

logger = logging.getLogger(__name__)


def evaluate_last(run_dir: RunDir, evaluator: Evaluator, step: int, release: Callable[[], object]) -> None:
    """Evaluate the policy with which a training has ended; an error is logged.

    Nothing is done where nothing is held out, where it is evaluated already, or where the newest checkpoint is another policy.

    Args:
        run_dir: of the training, whose journal is closed.
        evaluator: of the policy as it is in memory.
        step: the last one.
        release: called when no more is computed; gives the device back.
    """
    try:
        checkpoints = list_checkpoints(run_dir.checkpoints)
        is_saved = bool(checkpoints) and step_of(checkpoints[-1]) == step
        if not is_saved or read_manifest(run_dir.data).num_eval == 0 or is_evaluated(run_dir, "final", step):
            return
        for parameter in evaluator.policy.parameters():
            parameter.grad = None
        gc.collect()  # optimizer and schedule refer to each other
        result = evaluate_policy_of(run_dir, evaluator, HELD_OUT)
        release()
        record_evaluation(run_dir, result, policy="final", name=HELD_OUT, step=step)
    except Exception as error:  # noqa: BLE001  (the training is done, whatever a reward function or a disk does now)
        text = "the evaluation of the final policy failed and will be made again, in a process of its own (%s: %s)"
        logger.warning(text, type(error).__name__, cause(error))
