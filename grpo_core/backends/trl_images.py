"""Prompts with images on TRL's trainer: which models and prompts it takes, and the rows in which it gets them.

TRL gives the images of a prompt to the processor of the model again and runs whole rows, each with its own copy of them. So a
token that stands for an image is one in a completion as well: it would have no features.
"""

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from grpo_core.errors import TrainingError
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.types import Conversation, Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

MODELS = ("gemma3", "idefics3", "internvl", "llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "smolvlm")
"""Whose log-probabilities on TRL 1.16 are those of a plain forward pass, by `model_type`."""
WHY_NOT = {
    "llava_onevision": "TRL's pass does not take its batch_num_images",
    "paligemma": "TRL gives the tokens of completions the type of a prompt's, and then they see later ones",
}
INSTEAD = "use the native engine"


def refuse_images(model_type: str, prompts: Sequence[Prompt]) -> None:
    """Refuse what TRL's trainer cannot do with the images of prompts.

    Args:
        model_type: of the model's configuration.
        prompts: of the training.

    Raises:
        TrainingError: some prompts have images, and the model is of another kind, other prompts have none, or no chat template
            is applied.
    """
    without = next((prompt for prompt in prompts if not prompt.images), None)
    if all(not prompt.images for prompt in prompts):
        return
    if model_type not in MODELS:
        reason = WHY_NOT.get(model_type, f"only those of {', '.join(MODELS)} have been compared with it")
        raise TrainingError(f"training.engine: trl does not take images of a {model_type} model: {reason}; {INSTEAD}")
    if without is not None:
        raise TrainingError(
            f"training.engine: trl takes no prompts without images among others, and prompt {without.id} has none; {INSTEAD}"
        )
    if any(isinstance(prompt.content, str) for prompt in prompts):
        raise TrainingError(f"training.engine: trl takes images with data.chat_template true alone; {INSTEAD}")


def refuse_placeholders(completions: SampledCompletions, placeholder_id: int, step: int) -> None:
    """Refuse completions with a token that stands for an image: TRL's pass would look for its features.

    Raises:
        TrainingError: says how many they are, and names the first by its prompt and its place in the group.
    """
    holds = ((completions.completion_ids == placeholder_id) & completions.completion_mask).any(dim=1)
    if (count := int(holds.sum())) > 0:
        number, place = divmod(int(holds.nonzero()[0]), completions.group_size)
        raise TrainingError(
            f"training.engine: trl cannot train on {count} of {len(holds)} completions of step {step}: they hold token "
            f"{placeholder_id}, which stands for a part of an image, and TRL's pass over whole rows has no image for it; the "
            f"first is completion {place} of prompt {completions.prompts[number].id}; {INSTEAD}"
        )


def padded_on_the_left(processor: Any) -> Any:
    """Return a processor that pads a batch on the left, as TRL pads prompts: types of tokens have to stand where these do."""
    copied = copy.copy(processor)
    copied.tokenizer = copy.deepcopy(processor.tokenizer)
    copied.tokenizer.padding_side = "left"
    return copied


def in_parts(content: str | Conversation) -> list[dict[str, Any]]:
    """Return the messages of a prompt, the content of each as a list of parts.

    >>> in_parts(({"role": "user", "content": "why?"},))
    [{'role': 'user', 'content': [{'type': 'text', 'text': 'why?'}]}]
    """
    assert not isinstance(content, str), "refuse_images has looked"
    return [
        {
            **message,
            "content": [{"type": "text", "text": message["content"]}]
            if isinstance(message["content"], str)
            else [dict(part) for part in message["content"]],
        }
        for message in content
    ]


def without_images(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as `in_parts` gives them, from those in whose parts TRL has put images."""
    return [
        {**message, "content": [{key: value for key, value in part.items() if key != "image"} for part in message["content"]]}
        for message in messages
    ]


def rows_with_images(prompts: Sequence[Prompt], opened: Callable[[str], "Image"]) -> Dataset:
    """Return TRL's rows: `prompt` and `images`, which are opened when the row is read.

    Args:
        prompts: of every step, in order.
        opened: from the digest of an image to the image.
    """

    def read(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        wanted = [prompts[number] for number in batch["number"]]
        images = {digest: opened(digest) for digest in dict.fromkeys(one for prompt in wanted for one in prompt.images)}
        return {
            "prompt": [in_parts(prompt.content) for prompt in wanted],
            "images": [[images[digest] for digest in prompt.images] for prompt in wanted],
        }

    return Dataset.from_dict({"number": list(range(len(prompts)))}).with_transform(read)
