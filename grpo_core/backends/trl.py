"""The same run on TRL's GRPOTrainer: `training.engine: trl`, a second implementation behind one configuration and one journal.

Who does what. Here: prompts and their order, sampling (the same random numbers as the native engine's, through TRL's
`rollout_func`), reward functions, optimizer and schedule objects, the KL panel, journal, evaluation, checkpoints. TRL: the
weighted sum of rewards, advantages, reference log-probabilities, loss, backward pass, gradient clipping, the update loop over
epochs and minibatches, and the synchronisation of the reference. So what the two engines disagree in is the algorithm.

What TRL cannot do is refused by `config/limits.py`. Two things differ by TRL's design: rows are shuffled before they are
cut into minibatches, by another generator; and with several minibatches `token-mean` divides by their mean number of tokens.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_core.algorithm.kl import k3, kl_term
from grpo_core.algorithm.loss import Denominators, surrogate_log_ratio, token_weights
from grpo_core.backends.trl_images import (
    in_parts,
    padded_on_the_left,
    refuse_images,
    refuse_placeholders,
    rows_with_images,
    without_images,
)
from grpo_core.errors import TrainingError
from grpo_core.interop.trl_export import trl_arguments, updates_per_step
from grpo_core.policy.saved import TrainingState
from grpo_core.training import measure
from grpo_core.training.batch import Rollouts, TrainingBatch
from grpo_core.training.ending import is_every
from grpo_core.training.loop import conclude, write_completions
from grpo_core.training.measure import Clock
from grpo_core.training.probe import Probed
from grpo_core.training.session import FRESH, Session
from grpo_core.training.step import (
    collect_rollouts,
    conclude_step,
    distance_from_reference,
    figures_of_policy,
    probe,
    prompts_for,
    under_references,
)
from grpo_core.training.update import OptimizerStep, clipped_tokens, log_weights
from grpo_core.types import SCHEDULE, Prompt, RefSync

ROWS = "grpo_flow_rows"
"""Key under which each tensor row keeps its number while TRL shuffles and cuts the batch."""


class Observer(TrainerCallback):  # type: ignore[misc]
    """Follows TRL's trainer through a step and turns what it sees into this project's records.

    The order of a step: `begin`, `roll_out` (called by TRL), `measure` with TRL's advantages, then for each optimizer step
    `note_pass` for every pass, `on_step_end`, TRL's own synchronisation, and `on_log` with TRL's figures.
    """

    def __init__(self, session: Session) -> None:
        """Follow a training of `session` from its first step."""
        self.session = session
        self.state = FRESH
        self.stopped: str | None = None
        self.rollouts: Rollouts
        self.batch: TrainingBatch
        self.logps: measure.StepLogps
        self._clock = Clock(self.session.policy.device)
        self._probed: Probed | None = None
        self._reports: list[OptimizerStep] = []
        self._passes: list[dict[str, Any]] = []
        self._distance: float | None = None
        self._pending: tuple[Tensor, float] | None = None

    @property
    def step(self) -> int:
        """The step under way."""
        return self.state.step + 1

    def begin(self) -> None:
        """Start the clock of a step."""
        self._clock, self._reports, self._passes = Clock(self.session.policy.device), [], []

    def roll_out(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:  # noqa: ARG002  (TRL's signature)
        """Sample and score the step's completions; return them as TRL's `rollout_func` does.

        Raises:
            TrainingError: TRL asks for other prompts than this step's, or a completion holds a token that stands for an image.
        """
        own = prompts_for(self.session, self.step)
        group_size = self.session.config.rollout.group_size
        asked = [without_images(prompt) for prompt in prompts] if own[0].images else list(prompts)
        if [as_trl_prompt(prompt) for prompt in own for _ in range(group_size)] != asked:
            raise TrainingError(f"training.engine trl: step {self.step} asks for prompts in another order")
        with self._evaluating():
            self.rollouts = collect_rollouts(self.session, own, self.step, self._clock)
        if own[0].images and self.session.policy.images is not None:
            refuse_placeholders(self.rollouts, self.session.policy.images.processor.placeholder_id, self.step)
        ids, logps = self.rollouts.completion_ids.tolist(), self.rollouts.sampling_per_token_logps.tolist()
        lengths = self.rollouts.lengths().tolist()
        return {
            "prompt_ids": [list(prompt.token_ids) for prompt in own for _ in range(group_size)],
            "completion_ids": [row[:length] for row, length in zip(ids, lengths, strict=True)],
            "logprobs": [row[:length] for row, length in zip(logps, lengths, strict=True)],
        }

    def measure(self, advantages: Tensor) -> None:
        """Measure the policy before its update; the advantages are TRL's."""
        session, rollouts = self.session, self.rollouts
        with self._clock("logps"), self._evaluating():
            self._probed = probe(session, self.step)
            there = under_references(session, rollouts, self.step)
            before = session.policy.measure(rollouts)
        self.batch = TrainingBatch(
            rollouts=rollouts, advantages=advantages.detach().clone(), ref_logps=there.ref, old_logps=before.logps
        )
        self.logps = measure.StepLogps(old=before.logps, entropy=before.entropy, **vars(there))

    def note_pass(self, loss: Tensor, per_token_logps: Tensor, inputs: dict[str, Tensor]) -> None:
        """Add one pass: TRL's loss, and the ratios and KL of its own log-probabilities.

        Args:
            loss: TRL's share of the optimizer step's loss.
            per_token_logps: [b, T] of the policy as TRL computed them.
            inputs: TRL's tensors of the pass.
        """
        config, rows = self.session.config.loss, inputs[ROWS]
        estimator = "k3" if config.kl_estimator == "full" else config.kl_estimator  # at beta 0, as in the native engine
        mask = inputs["completion_mask"].bool()
        log_ratio = torch.where(mask, per_token_logps - inputs.get("old_per_token_logps", per_token_logps), 0.0)
        ref_log_ratio = torch.where(mask, self.logps.ref[rows][:, : mask.shape[1]] - per_token_logps, 0.0)
        denominators = Denominators(
            sequences=self.rollouts.num_rows // config.minibatches,
            tokens=max(self.rollouts.num_loss_tokens / config.minibatches, 1),
            max_completion_tokens=self.session.config.rollout.max_completion_tokens,
        )
        weights = token_weights(mask, config.aggregation, denominators)
        used = surrogate_log_ratio(log_ratio, mask, config.ratio).exp()
        clipped_low, clipped_high = clipped_tokens(used, inputs["advantages"], mask, config)
        ratio = used[mask]
        self._passes.append(
            {
                "loss": float(loss.detach()),
                "kl_loss": float((weights * kl_term(ref_log_ratio, log_ratio, estimator, config.kl_correction)).sum()),
                "ratio_sum": float(ratio.sum()),
                "ratio_max": float(ratio.max()) if ratio.numel() else 0.0,
                "old_k3_sum": float(k3(log_ratio)[mask].sum()),
                "clipped_low": clipped_low,
                "clipped_high": clipped_high,
                "tokens": int(mask.sum()),
                "log_weights": log_weights(log_ratio, mask),
            }
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Measure, after the last optimizer step of a step, what a synchronisation is about to change."""
        session, reference = self.session, self.session.reference
        if len(self._reports) + 1 < updates_per_step(self.session.config):
            return
        with self._clock("sync"), self._evaluating():
            is_due = is_every(session.config.reference.sync_steps, self.step)
            self._distance = distance_from_reference(session, self.step, SCHEDULE if is_due else None)
            if is_due:
                reference.leave_initial()
                policy_logps = session.policy.logps(self.rollouts)
                self._pending = policy_logps, self._drift(policy_logps, self.logps.ref)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:  # noqa: ARG002
        """End an optimizer step with TRL's figures of it, and the step with its last one."""
        if "grad_norm" not in logs:
            return
        self._reports.append(self._report(logs))
        self._passes = []
        if len(self._reports) < updates_per_step(self.session.config):
            return
        with self._clock("sync"):
            sync = self._synced()
        self._clock.seconds["update"] = self._clock.total() - sum(self._clock.seconds.values())  # all that is TRL's own
        result = conclude_step(
            self.session,
            self.state,
            self.batch,
            self._reports,
            figures_of_policy(self.session, self.batch, self.logps, self._reports, self._probed),
            sync=sync,
            distance=self._distance,
            probed=self._probed,
            clock=self._clock,
        )
        with self._evaluating():
            self.state = conclude(self.session, result)
        self.stopped = self.session.stop.reason()
        control.should_training_stop |= self.stopped is not None
        if self.stopped is not None:
            write_completions(self.session, result)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """TRL has the policy in train mode; whatever is sampled or measured here is without dropout."""
        was_training = self.session.policy.model.training
        self.session.policy.model.eval()
        try:
            yield
        finally:
            self.session.policy.model.train(was_training)

    def _report(self, figures: dict[str, float]) -> OptimizerStep:
        """Return the optimizer step under way: sums over its passes, and TRL's figures."""
        sums = {key: sum((one[key] for one in self._passes), type(value)()) for key, value in self._passes[0].items()}
        sums["ratio_max"] = max(one["ratio_max"] for one in self._passes)
        policy_loss = sums["loss"] - self.session.config.loss.beta * sums["kl_loss"]
        return OptimizerStep(**sums, policy_loss=policy_loss, grad_norm=figures["grad_norm"], lr=figures["learning_rate"])

    def _synced(self) -> RefSync | None:
        """Return the synchronisation that TRL has just done, if it has."""
        if self._pending is None:
            return None
        session, (policy_logps, kl_before) = self.session, self._pending
        self._pending = None
        assert self._distance is not None, "it is measured before every sync"
        session.reference.count_sync(self.step)
        return RefSync(
            step=self.step,
            alpha=session.config.reference.mixup_alpha,
            sync_count=session.reference.sync_count,
            kl_before=kl_before,
            kl_after=self._drift(policy_logps, session.reference.current.logps(self.rollouts)),
            param_distance=self._distance,
        )

    def _drift(self, policy_logps: Tensor, ref_logps: Tensor) -> float:
        return measure.drift_after_update(policy_logps, ref_logps, self.logps.old, self.rollouts.completion_mask)


def as_trl_prompt(prompt: Prompt) -> str | list[dict[str, Any]]:
    """Return a prompt as TRL's data sets hold it: text, or a list of messages; of parts, where it has images."""
    if prompt.images:
        return in_parts(prompt.content)
    return prompt.content if isinstance(prompt.content, str) else [dict(message) for message in prompt.content]


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


def _reward(observer: Observer, name: str) -> Callable[..., list[float | None]]:
    """Return a reward function in TRL's signature that hands over the scores of the step's completions."""

    def scores(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float | None]:  # noqa: ARG001
        return [*observer.rollouts.rewards_by_function[name].tolist()]

    scores.__name__ = name
    return scores


def run_steps(session: Session, state: TrainingState) -> tuple[TrainingState, str | None]:
    """Run all steps on TRL; return the last counters and why the run was stopped early, if it was.

    Raises:
        TrainingError: the model has dropout that TRL does not switch off, or TRL cannot do what prompts with images need.
    """
    stopped = session.stop.reason()
    if state.step >= session.config.training.steps or stopped is not None:
        return state, stopped if state.step < session.config.training.steps else None
    _refuse_dropout(session.policy.model)
    refuse_images(session.policy.model.config.model_type, session.train_prompts)
    observer = Observer(session)
    with warnings.catch_warnings():  # those that are no news to a user of this project
        warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")  # tested here, for this version
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)  # TRL's own call
        build_trainer(session, observer).train()
        session.policy.model.eval()
        session.begin_checkpoint(observer.state)
    return observer.state, observer.stopped if observer.state.step < session.config.training.steps else None


def build_trainer(session: Session, observer: Observer) -> ObservedTrainer:
    """Return TRL's trainer for a session; from now on the session's reference is the one that TRL synchronises."""
    config = session.config
    width = max(len(prompt.token_ids) for prompt in session.train_prompts)
    on_cpu, output = session.policy.device.type == "cpu", session.run_dir.path / "trl"
    arguments = trl_arguments(config, prompt_width=width, on_cpu=on_cpu, output=output)
    prompts = [prompt for step in range(1, config.training.steps + 1) for prompt in prompts_for(session, step)]
    reader = session.policy.images if prompts[0].images else None  # then all of them have some
    if reader is None:
        rows, processing = Dataset.from_list([{"prompt": as_trl_prompt(one)} for one in prompts]), session.policy.tokenizer
    else:
        rows, processing = rows_with_images(prompts, reader.open), padded_on_the_left(reader.processor.processor)
    trainer = ObservedTrainer(
        observer,
        model=session.policy.model,
        reward_funcs=[_reward(observer, reward.name) for reward in session.rewards],
        args=GRPOConfig(**arguments),
        train_dataset=rows,
        processing_class=processing,
        rollout_func=observer.roll_out,
        optimizers=(session.trainable.optimizer, session.trainable.schedule),
        callbacks=[observer],  # TRL adds the one that synchronises behind it; logging comes after both
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.ref_model is not None:
        session.reference.hand_over(trainer.ref_model)
    return trainer


def _refuse_dropout(policy: PreTrainedModel) -> None:
    """TRL trains in train mode and switches dropout modules off, but not the rates that attention reads elsewhere."""
    rates = {key: value for key, value in policy.config.to_dict().items() if "attention" in key and "drop" in key and value}
    if rates:
        raise TrainingError(f"training.engine: trl would train with dropout ({rates}); use the native engine")
