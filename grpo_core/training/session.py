"""Everything one training works with, built from a RUN_DIR: models, data, rewards, optimizer, journal."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import optimizer_steps, repeatability
from grpo_core.data.prepare import load_frozen
from grpo_core.errors import ModelError
from grpo_core.evaluation.runner import Evaluator, open_rewards, pick_verifier
from grpo_core.generation.sampler import Sampler
from grpo_core.generation.vllm.opening import open_vllm_sampler
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.parallel.world import SOLO, World
from grpo_core.policy.checkpoint import Trainable, restore, set_aside, verify_checkpoint
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.policy.saved import JournalMark, TrainingState, checkpoint_name, list_checkpoints, step_of, stored_initial
from grpo_core.rewards.base import Reward, start_workers
from grpo_core.rewards.bounded import Verdicts
from grpo_core.run.cleaning import used_checkpoints
from grpo_core.run.folder import BatchLimits, RunDir, batch_limits
from grpo_core.run.journal import Journal, Record, read_records, supersede
from grpo_core.run.provenance import config_here, find_model
from grpo_core.run.reproduction import COMPARED, Identity, identity
from grpo_core.training.ending import StopRequest
from grpo_core.training.probe import ProbeSet
from grpo_core.training.saving import CheckpointWriter
from grpo_core.training.update import Updater, build_optimizer
from grpo_core.types import Prompt

ANSWER_SECONDS = 5.0
"""While a checkpoint is written, how often the first process tells the others that it is still there."""
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
    trainable: Trainable
    """Policy, reference, optimizer and schedule: what a checkpoint holds."""
    sampler: Sampler
    """Makes the rollouts: the policy itself, or a script."""
    rewards: tuple[Reward, ...]
    verdicts: Verdicts
    """Of completions that exceeded a reward's bound, as they were given in this run and in the one that it repeats."""
    updater: Updater
    writer: CheckpointWriter
    evaluator: Evaluator
    probe: ProbeSet
    batch_limits: BatchLimits
    """How much is computed at once in each step."""
    to_replay: dict[Identity, Record] = field(default_factory=dict)
    """What the newest `resume` superseded, each waiting for its repetition, which must be the same."""

    def close(self) -> None:
        """Wait for the checkpoint under way; end a server that makes the rollouts, if this training has started it.

        Raises:
            DiskFullError, JournalError: the checkpoint or its record could not be written.
        """
        try:
            self.writer.close()
        finally:
            if isinstance(self.sampler, VllmSampler):
                self.sampler.close()

    @property
    def world(self) -> World:
        """The processes of the training."""
        return self.policy.world

    @property
    def policy(self) -> Policy:
        """What is trained."""
        return self.trainable.policy

    @property
    def reference(self) -> Reference:
        """What its drift is measured from."""
        return self.trainable.reference

    def begin_checkpoint(self, state: TrainingState) -> None:
        """Begin to write a checkpoint, after the one that may be under way, unless the newest is of this step."""
        if state.step <= self.writer.newest_step:
            return
        self.finish_checkpoint()  # its record is in the journal, which is marked next
        num_bytes, sha256 = self.journal.mark

        def then(name: str) -> None:
            self.journal.append("checkpoint", state.step, {"name": name})

        self.writer.begin(self.trainable, state, JournalMark(bytes=num_bytes, sha256=sha256), then)

    def finish_checkpoint(self) -> None:
        """Wait until the checkpoint under way is durable; of several processes, all hear again and again that the first does.

        Raises:
            DiskFullError, JournalError: as `CheckpointWriter.finish`.
        """
        while not self.world.on_first(partial(self.writer.finish, ANSWER_SECONDS)):
            pass

    def restore(self) -> TrainingState:
        """Go back to the newest whole checkpoint, or to the beginning where there is none; return the counters to resume from.

        A damaged one is journalled as an alert, and the one before it is taken. Steps that the journal holds beyond it are
        compared with their repetition, if the run is one that repeats exactly.

        Raises:
            ModelError: there are checkpoints, and all of them are damaged.
        """
        checkpoint = self.world.on_first(self._newest_checkpoint)
        state = FRESH if checkpoint is None else restore(checkpoint, self.trainable)
        if checkpoint is not None and checkpoint.parent != self.run_dir.checkpoints:
            state = replace(state, best_step=None, best_accuracy=None)  # the best of the parent is not here
        records = read_records(self.run_dir.journal_file)
        for record in supersede(records):
            if record.kind == "step" and record.step <= state.step:
                self.updater.steered.observe(record.metrics)
        if repeatability(self.config).is_exact:
            self.to_replay.update(
                {identity(record): record for record in records if record.kind in COMPARED and record.step > state.step}
            )
        self.writer.newest_step = state.step
        return state

    def _newest_checkpoint(self) -> Path | None:
        damaged = dict[Path, str]()
        of_parent = list_checkpoints(RunDir(self.run_dir.parent).checkpoints)[-1:]  # a fork's last resort
        for checkpoint in reversed([*of_parent, *list_checkpoints(self.run_dir.checkpoints)]):
            try:
                verify_checkpoint(checkpoint)
            except ModelError as error:
                damaged[checkpoint] = str(error)
                continue
            for path, text in damaged.items():
                # Out of the way: it would count as one of the newest, and be kept in the place of a whole one.
                alert = f"{text}; kept as {set_aside(path).name}, resuming from {checkpoint.name}"
                self.journal.append("alert", step_of(checkpoint), {"text": alert})
            return checkpoint
        if damaged:
            raise ModelError(f"no checkpoint is whole, so the run cannot be resumed: {'; '.join(damaged.values())}")
        if self.run_dir.parent.exists():
            raise ModelError(f"{self.run_dir.parent}: the checkpoint with which this fork began is gone")
        return None


def open_session(run_dir: RunDir, journal: Journal, stop: StopRequest, world: World = SOLO) -> Session:
    """Load everything that the configuration of `run_dir` names, for one of the processes of a training.

    Raises:
        GrpoError: data, model or a reward function cannot be used.
    """
    config = config_here(run_dir)
    train_prompts, eval_prompts = load_frozen(run_dir.data)
    model = find_model(run_dir)
    rewards, verdicts = open_rewards(config, run_dir)
    if world.is_first:
        start_workers(rewards)
    policy = open_policy(model, config, stored_initial(run_dir.checkpoints), world, images=run_dir.images)
    is_embedded = config.rollout.engine == "embedded"
    sampler = policy if is_embedded else open_vllm_sampler(config, policy, model, train_prompts, run_dir.path)
    optimizer, schedule = build_optimizer(policy.model, config.optimizer, optimizer_steps(config))
    reference = Reference(policy, offload=config.reference.offload and policy.device.type == "cuda")
    trainable = Trainable(policy=policy, reference=reference, optimizer=optimizer, schedule=schedule)
    evaluator = Evaluator(policy=policy, verifier=pick_verifier(rewards, config), config=config, verdicts=verdicts)
    probed = (eval_prompts or train_prompts)[: config.probe.num_prompts]
    return Session(
        config=config,
        run_dir=run_dir,
        journal=journal,
        stop=stop,
        train_prompts=train_prompts,
        eval_prompts=eval_prompts,
        trainable=trainable,
        sampler=sampler,
        rewards=rewards,
        verdicts=verdicts,
        batch_limits=batch_limits(run_dir),
        updater=Updater(trainable=trainable, config=config),
        writer=CheckpointWriter(
            run_dir.checkpoints,
            config.training.keep_checkpoints,
            in_use=lambda: {
                *used_checkpoints(run_dir),
                *((run_dir.checkpoints / checkpoint_name(step)).resolve() for step in config.training.keep_at),
            },
            writes=world.is_first,
        ),
        evaluator=evaluator,
        probe=ProbeSet(evaluator=evaluator, reference=reference, prompts=probed),
    )
