"""One prompt, answered by the policy of a run's newest checkpoint and by its initial policy with the same random numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.data.endings import end_tokens_of
from grpo_core.data.prepare import load_encoder
from grpo_core.data.prompts import tokenized
from grpo_core.data.row_images import RowImages, kept_images, read_below
from grpo_core.errors import DataError, ModelError
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.device import choose_kernels, held_device, pick_device, pin_threads
from grpo_core.policy.loading import open_policy
from grpo_core.policy.saved import list_checkpoints, read_state, stored_initial
from grpo_core.run.child import import_as_at_start
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.provenance import config_here, find_model
from grpo_core.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one policy answers."""

    policy: str
    greedy: str
    sampled: tuple[str, ...]
    """At the rollouts' temperature."""


def answers(run_dir: RunDir, text: str, samples: int, image: Path | None = None) -> Iterator[Answers]:
    """Yield what the newest checkpoint's policy answers to a prompt, then what the initial policy does.

    Args:
        run_dir: of the run.
        text: the prompt as a row of its data would hold it: system prompt, examples and chat template are added.
        samples: how many answers are sampled beside the greedy one; the i-th of both policies has the same random numbers.
        image: file of the prompt's image, decoded as those of data are; None = the prompt has none.

    Raises:
        ModelError: the run has no checkpoint, a policy cannot be loaded, or reads no images and is given one.
        DataError: the prompt is too long for `rollout.max_prompt_tokens`, or it or the image cannot be used.
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
    prompt = _prompt(config, find_model(run_dir), text, image)
    with held_device(pick_device(config.training.device)):
        yield _answers(f"after step {step}", config, newest / "policy", prompt=prompt, samples=samples)
        initial = stored_initial(run_dir.checkpoints)
        yield _answers("initial policy", config, find_model(run_dir), initial, prompt=prompt, samples=samples)


def _prompt(config: RunConfig, model: Path, text: str, image: Path | None) -> Prompt:
    """Return what is asked, as a row of the run's data would be."""
    tokenizer, encoder = load_encoder(config, model)
    data, row = config.data.model_copy(update={"answer_column": None}), dict[str, Any]({config.data.prompt_column: text})
    if image is not None:
        if encoder is None:
            raise ModelError(f"--image {image}: the model of model.source, {config.model.source}, reads text alone")
        try:
            digest = encoder.folder.add(read_below(image.resolve().parent, image.resolve().name))
            encoder.folder.open(digest)
        except DataError as error:
            raise DataError(f"--image {image}: {error}") from error
        row[data.image_column or "image"] = RowImages([digest])
    limit = config.rollout.max_prompt_tokens
    (prompt,) = tokenized([row], data, tokenizer, limit, end_tokens_of(model, tokenizer), encoder=encoder)
    if prompt is None or len(prompt.token_ids) > limit:
        raise DataError(f"rollout.max_prompt_tokens: {limit}, and the prompt is longer; ask for less")
    return prompt


def _answers(
    name: str, config: RunConfig, folder: Path, initial: Path | None = None, *, prompt: Prompt, samples: int
) -> Answers:
    policy = open_policy(folder, config, initial, images=kept_images(config.data).path)

    def sampled(count: int, temperature: float) -> tuple[str, ...]:
        settings = replace(SamplingSettings.of(config.rollout), group_size=count, temperature=temperature)
        key = RandomKey(seed=config.training.seed, stream=Stream.EVAL, step=0)
        return tuple(policy.decode(policy.sample([prompt], settings, key)))

    (greedy,) = sampled(1, 0.0)
    return Answers(policy=name, greedy=greedy, sampled=sampled(samples, config.rollout.temperature))
