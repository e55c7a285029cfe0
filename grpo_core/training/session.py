"""Everything one training works with, built from a RUN_DIR: models, data, rewards, optimizer, journal."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from grpo_core.config import RolloutConfig, RunConfig
from grpo_core.config.derived import optimizer_steps
from grpo_core.data.frozen import load_frozen
from grpo_core.errors import ModelError
from grpo_core.evaluation.runner import Evaluator, pick_verifier
from grpo_core.generation.sampler import SamplingSettings
from grpo_core.generation.torch_sampler import TorchSampler
from grpo_core.policy.checkpoint import Trainable, load_checkpoint, save_checkpoint, set_aside
from grpo_core.policy.device import pick_device
from grpo_core.policy.loading import eos_token_ids, load_policy, load_tokenizer, resolve_model
from grpo_core.policy.reference import Reference
from grpo_core.policy.saved import JournalMark, TrainingState, list_checkpoints
from grpo_core.rewards.base import load_rewards
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal, read_records
from grpo_core.training.forward import ForwardSettings
from grpo_core.training.optimizer import build_optimizer
from grpo_core.training.probe import Probe
from grpo_core.training.replay import Replay
from grpo_core.training.rollout import Explorer
from grpo_core.training.signals import StopRequest
from grpo_core.training.update import Updater
from grpo_core.types import Prompt

FRESH = TrainingState(step=0, optimizer_step=0, prompts=0, tokens=0, sync_count=0, last_sync_step=0)


@dataclass(frozen=True, kw_only=True)
class Session:
    """The parts of a training, wired together."""

    config: RunConfig
    run_dir: RunDir
    journal: Journal
    stop: StopRequest
    train_prompts: tuple[Prompt, ...]
    eval_prompts: tuple[Prompt, ...]
    policy: PreTrainedModel
    reference: Reference
    explorer: Explorer
    updater: Updater
    evaluator: Evaluator
    probe: Probe
    forward: ForwardSettings
    live: Trainable
    replay: Replay

    def save(self, state: TrainingState) -> str:
        """Write a checkpoint; return its name."""
        keep = self.config.training.keep_checkpoints
        records, digest = self.journal.mark
        mark = JournalMark(records=records, digest=digest)
        return save_checkpoint(self.run_dir.checkpoints, self.live, state, keep, mark).name

    def restore(self) -> TrainingState:
        """Go back to the newest whole checkpoint, or to the beginning where there is none; return the counters to go on from.

        A damaged one is journalled as an alert, and the one before it is taken. Steps that the journal holds beyond it are
        compared with their repetition.

        Raises:
            ModelError: there are checkpoints, and all of them are damaged.
        """
        damaged: dict[Path, str] = {}
        for checkpoint in reversed(list_checkpoints(self.run_dir.checkpoints)):
            try:
                state = load_checkpoint(checkpoint, self.live)
            except ModelError as error:
                damaged[checkpoint] = str(error)
                continue
            for path, text in damaged.items():
                # Out of the way: it would count as one of the newest, and be kept in the place of a whole one.
                aside = set_aside(path)
                told = f"{text}; kept as {aside.name}, going on from {checkpoint.name}"
                self.journal.append("alert", state.step, {"text": told})
            break
        else:
            if damaged:
                raise ModelError(f"no checkpoint is whole, so the run cannot go on: {'; '.join(damaged.values())}")
            state = FRESH
        self.replay.expect(read_records(self.run_dir.journal_file), state.step)
        return state


def open_session(run_dir: RunDir, journal: Journal, stop: StopRequest) -> Session:
    """Load everything that the configuration of `run_dir` names.

    Raises:
        GrpoError: data, model or a reward function cannot be used.
    """
    config = run_dir.read_config()
    train_prompts, eval_prompts = load_frozen(run_dir.data)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    policy = load_policy(folder, pick_device(config.training.device), config.model.trust_remote_code)
    tokenizer = load_tokenizer(folder, config.model.trust_remote_code)
    eos = eos_token_ids(policy, tokenizer)
    rewards = load_rewards(config.rewards)
    reference = Reference(policy)
    optimizer, schedule = build_optimizer(policy, config.optimizer, optimizer_steps(config))
    live = Trainable(policy=policy, tokenizer=tokenizer, reference=reference, optimizer=optimizer, schedule=schedule)
    sampler = TorchSampler(policy, eos, config.model.dtype, config.training.rollout_rows)
    rollout, settings = config.rollout, _sampling_settings(config.rollout)
    forward = ForwardSettings(
        dtype=config.model.dtype, temperature=rollout.temperature, max_tokens=config.training.microbatch_tokens
    )
    return Session(
        config=config,
        run_dir=run_dir,
        journal=journal,
        stop=stop,
        train_prompts=train_prompts,
        eval_prompts=eval_prompts,
        policy=policy,
        reference=reference,
        explorer=Explorer(
            sampler=sampler,
            tokenizer=tokenizer,
            eos_token_ids=eos,
            rewards=rewards,
            settings=settings,
            advantage=config.advantage,
            filtering=config.filtering,
        ),
        updater=_updater(config, live, forward),
        evaluator=Evaluator(
            sampler=sampler,
            tokenizer=tokenizer,
            eos_token_ids=eos,
            verifier=pick_verifier(rewards, config.evaluation.verifier),
            config=config,
        ),
        probe=Probe(
            prompts=(eval_prompts or train_prompts)[: config.probe.num_prompts],
            sampler=sampler,
            settings=settings,
            eos_token_ids=eos,
            forward=forward,
            seed=config.training.seed,
        ),
        forward=forward,
        live=live,
        replay=Replay(),
    )


def _updater(config: RunConfig, live: Trainable, forward: ForwardSettings) -> Updater:
    return Updater(
        policy=live.policy,
        reference=live.reference,
        optimizer=live.optimizer,
        schedule=live.schedule,
        advantage=config.advantage,
        loss=config.loss,
        forward=forward,
        max_completion_tokens=config.rollout.max_completion_tokens,
        max_grad_norm=config.optimizer.max_grad_norm,
        seed=config.training.seed,
    )


def _sampling_settings(rollout: RolloutConfig) -> SamplingSettings:
    return SamplingSettings(
        group_size=rollout.group_size,
        max_completion_tokens=rollout.max_completion_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
    )
