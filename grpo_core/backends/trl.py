"""The same run on TRL's GRPOTrainer: `training.engine: trl`, a second implementation behind one configuration and one journal.

Who does what. Here: prompts and their order, sampling (the same random numbers as the native engine's, through TRL's
`rollout_func`), reward functions, optimizer and schedule objects, the KL panel, journal, evaluation, checkpoints. TRL: the
weighted sum of rewards, advantages, reference log-probabilities, loss, backward pass, gradient clipping, the update loop over
epochs and minibatches, and the synchronisation of the reference. So what the two engines disagree in is the algorithm.

What TRL cannot do is refused by `config/limits.py`. Two things differ by TRL's design: rows are shuffled before they are
cut into minibatches, by another generator; and with several minibatches `token-mean` divides by their mean number of tokens.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_core.backends.trl_observer import ROWS, Observer, as_trl_prompt
from grpo_core.errors import TrainingError
from grpo_core.interop.trl_export import trl_arguments
from grpo_core.policy.saved import TrainingState
from grpo_core.training.session import Session
from grpo_core.training.step import prompts_for


def train_on_trl(session: Session, state: TrainingState) -> tuple[TrainingState, str | None]:
    """Run all steps on TRL; return the last counters and why the run was stopped early, if it was.

    Raises:
        TrainingError: the model has dropout that TRL does not switch off.
    """
    stopped = session.stop.reason()
    if state.step >= session.config.training.steps or stopped is not None:
        return state, stopped if state.step < session.config.training.steps else None
    _refuse_dropout(session.policy.model)
    observer = Observer(session)
    with warnings.catch_warnings():  # those that are no news to a user of this project
        warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")  # tested here, for this version
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)  # TRL's own call
        build_trainer(session, observer).train()
        session.policy.model.eval()
        session.begin_checkpoint(observer.state)
    return observer.state, observer.stopped if observer.state.step < session.config.training.steps else None


def build_trainer(session: Session, observer: "Observer") -> "ObservedTrainer":
    """Return TRL's trainer for a session; from now on the session's reference is the one that TRL synchronises."""
    config = session.config
    width = max(len(prompt.token_ids) for prompt in session.train_prompts)
    on_cpu = session.policy.device.type == "cpu"
    arguments = trl_arguments(config, prompt_width=width, on_cpu=on_cpu, output=session.run_dir.path / "trl")
    rows = [
        {"prompt": as_trl_prompt(prompt.content)}
        for step in range(1, config.training.steps + 1)
        for prompt in prompts_for(session, step)
    ]
    trainer = ObservedTrainer(
        observer,
        model=session.policy.model,
        reward_funcs=[_reward(observer, reward.name) for reward in session.rewards],
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list(rows),
        processing_class=session.policy.tokenizer,
        rollout_func=observer.roll_out,
        optimizers=(session.trainable.optimizer, session.trainable.schedule),
        callbacks=[_Steps(observer)],  # TRL adds the one that synchronises behind it; logging comes after both
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.ref_model is not None:
        session.reference.hand_over(trainer.ref_model)
    return trainer


class ObservedTrainer(GRPOTrainer):
    """TRL's trainer, unchanged in what it computes; an observer sees what that was."""

    def __init__(self, observer: Observer, **arguments: Any) -> None:
        """Build TRL's trainer from its own arguments."""
        self._observer = observer
        self._last_logps: Tensor | None = None
        super().__init__(**arguments)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._observer.begin()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._observer.measure(output["advantages"])
        output[ROWS] = torch.arange(len(output["advantages"]), device=output["advantages"].device)
        return output

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*arguments, **options)
        self._last_logps = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        assert self._last_logps is not None
        with torch.no_grad():
            self._observer.note_pass(loss, self._last_logps, inputs)
        return loss


class _Steps(TrainerCallback):  # type: ignore[misc]
    """Calls the observer after each optimizer step, before the reference is synchronised, and once it is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._observer.before_sync()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> Any:  # noqa: ARG002
        if "grad_norm" in logs and self._observer.end_update(logs):
            control.should_training_stop = True
        return control


def _reward(observer: Observer, name: str) -> Callable[..., list[float | None]]:
    """Return a reward function in TRL's signature that hands over the scores of the step's completions."""

    def scores(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float | None]:  # noqa: ARG001
        return [*observer.rollouts.rewards_by_function[name].tolist()]

    scores.__name__ = name
    return scores


def _refuse_dropout(policy: PreTrainedModel) -> None:
    """TRL trains in train mode and switches dropout modules off, but not the rates that attention reads elsewhere."""
    rates = {key: value for key, value in policy.config.to_dict().items() if "attention" in key and "drop" in key and value}
    if rates:
        raise TrainingError(f"training.engine: trl would train with dropout ({rates}); use the native engine")
