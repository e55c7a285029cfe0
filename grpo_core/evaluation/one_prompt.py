"""One prompt, answered by the policy of a run's newest checkpoint and by its initial policy with the same random numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.data.prompts import tokenized
from grpo_core.errors import DataError, ModelError
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.device import choose_kernels, held_device, pick_device, pin_threads
from grpo_core.policy.loading import open_policy
from grpo_core.policy.saved import list_checkpoints, read_state, stored_initial
from grpo_core.run.child import import_as_at_start
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.provenance import config_here, find_model


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one policy answers."""

    policy: str
    greedy: str
    sampled: tuple[str, ...]
    """At the rollouts' temperature."""


def answers(run_dir: RunDir, text: str, samples: int) -> Iterator[Answers]:
    """Yield what the newest checkpoint's policy answers to a prompt, then what the initial policy does.

    Args:
        run_dir: of the run.
        text: the prompt as a row of its data would hold it: system prompt, examples and chat template are added.
        samples: how many answers are sampled beside the greedy one; the i-th of both policies has the same random numbers.

    Raises:
        ModelError: the run has no checkpoint, a policy cannot be loaded, or the model reads images.
        DataError: the prompt is too long for `rollout.max_prompt_tokens`, or cannot be used.
    """
    run_dir.require_ours()
    import_as_at_start(run_dir)
    if not (checkpoints := list_checkpoints(run_dir.checkpoints)):
        raise ModelError(f"run dir {run_dir.path}: has no checkpoint yet, so there is no trained policy to ask")
    newest = checkpoints[-1]
    step = read_state(newest).step
    config = batch_limits(run_dir).applied(config_here(run_dir), step)
    pin_threads(config.training)
    choose_kernels(deterministic=config.training.deterministic)
    with held_device(pick_device(config.training.device)):
        yield _answers(f"after step {step}", config, newest / "policy", text=text, samples=samples)
        initial = stored_initial(run_dir.checkpoints)
        yield _answers("initial policy", config, find_model(run_dir), initial, text=text, samples=samples)


def _answers(name: str, config: RunConfig, folder: Path, initial: Path | None = None, *, text: str, samples: int) -> Answers:
    policy = open_policy(folder, config, initial)
    if policy.images is not None:  # without its image it would answer another question
        raise ModelError("model.source: reads images, and none can be given with a prompt here; `grpo samples` has its answers")
    data = config.data.model_copy(update={"answer_column": None})
    limit = config.rollout.max_prompt_tokens
    (prompt,) = tokenized([{data.prompt_column: text}], data, policy.tokenizer, limit, policy.eos_token_ids)
    if prompt is None or len(prompt.token_ids) > limit:
        raise DataError(f"rollout.max_prompt_tokens: {limit}, and the prompt is longer; ask for less")

    def sampled(count: int, temperature: float) -> tuple[str, ...]:
        settings = replace(SamplingSettings.of(config.rollout), group_size=count, temperature=temperature)
        key = RandomKey(seed=config.training.seed, stream=Stream.EVAL, step=0)
        return tuple(policy.decode(policy.sample([prompt], settings, key)))

    (greedy,) = sampled(1, 0.0)
    return Answers(policy=name, greedy=greedy, sampled=sampled(samples, config.rollout.temperature))
