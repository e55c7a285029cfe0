"""Prompts with images, as vLLM takes them: text and images, of which it makes the tokens itself.

Its routes for token ids read no images: they answer, and are blind. So it is given the frozen text, with a template that
changes nothing of it, and the images as the run's decoder shows them; the tokens it makes of both are compared with the frozen
ones. Routes and fields: vLLM 0.31.0, `entrypoints/openai/chat_completion/protocol.py`.
"""

import base64
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import SamplerError

if TYPE_CHECKING:
    from PIL.Image import Image

    from grpo_core.policy.policy import Policy
    from grpo_core.types import Prompt

TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}PLACE{% endif %}{% endfor %}{% endfor %}"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictured:
    """The text of a prompt and its images."""

    text: str
    """With the placeholder in the place of each image."""
    placeholder: str
    images: tuple["Image", ...]
    """As the run's decoder shows them."""
    add_special_tokens: bool
    """Whether the tokenizer adds its own, as where no chat template has been applied."""

    def as_chat(self) -> dict[str, Any]:
        """Return the fields of a chat request that is answered about exactly this text."""
        from grpo_core.machine.images import as_png

        first, *others = self.text.split(self.placeholder)
        content: list[dict[str, Any]] = [{"type": "text", "text": first}]
        for image, text in zip(self.images, others, strict=True):
            url = f"data:image/png;base64,{base64.b64encode(as_png(image)).decode()}"
            content += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        return {
            "messages": [{"role": "user", "content": [part for part in content if part.get("text") != ""]}],
            "chat_template": TEMPLATE.replace("PLACE", self.placeholder),
            "add_generation_prompt": False,
            "add_special_tokens": self.add_special_tokens,
            "return_token_ids": True,
        }


def pictured_by(policy: "Policy", *, add_special_tokens: bool) -> Callable[["Prompt"], Pictured | None]:
    """Return what makes of a prompt what vLLM is asked; None where it has no images.

    Args:
        policy: whose processor it is.
        add_special_tokens: as the prompts were made.
    """
    images = policy.images

    def pictured(prompt: "Prompt") -> Pictured | None:
        if images is None or not prompt.images:
            return None
        opened = tuple(map(images.open, prompt.images))
        place = images.processor.placeholder
        return Pictured(text=prompt.text, placeholder=place, images=opened, add_special_tokens=add_special_tokens)

    return pictured


def require_ids(found: Sequence[int], wanted: Sequence[int]) -> None:
    """Refuse a prompt of which vLLM makes other tokens than those that are trained on.

    Raises:
        SamplerError: names the first difference.
    """
    if list(found) == list(wanted):
        return
    at = next((at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), None)
    at = min(len(found), len(wanted)) if at is None else at
    theirs, ours = ([*map(str, ids[at : at + 1]), "the end"][0] for ids in (found, wanted))
    raise SamplerError(
        f"vLLM makes {len(found)} tokens of a prompt with images, and the frozen prompt has {len(wanted)}: the first that "
        f"differs is number {at}, {theirs} instead of {ours}; its processor is another one, or is set otherwise"
    )


def require_vision(key: str, python: Path | None, policy: "Policy") -> None:
    """Refuse a vLLM that could not read the images of a model.

    Args:
        key: of the configuration, that names the interpreter.
        python: the interpreter with vLLM; None = a server that somebody else has started.
        policy: that is trained.

    Raises:
        SamplerError: says what is missing.
    """
    from grpo_core.policy.vision import PREFIX_SEES_ITSELF

    if policy.model.config.model_type == PREFIX_SEES_ITSELF:
        raise SamplerError(
            "rollout.engine: vllm cannot be compared with a paligemma, which reads its prompts in both directions; "
            "set rollout.engine=embedded"
        )
    code = "import torchvision"
    if (
        python is None
        or not (found := subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)).returncode
    ):
        return
    why = (found.stderr.strip().splitlines() or ["it ends"])[-1]
    raise SamplerError(
        f"{key}: {python} cannot import torchvision, without which vLLM reads no images ({why:.200}); its wheels are made "
        "for a torch with CUDA: `make vllm ARGS=--cuda` on a machine with a GPU, or rollout.engine=embedded"
    )
