"""Records that pass between stages; plain Python, no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Message = Mapping[str, Any]
"""One chat message: {"role": ..., "content": ...}. Content is text or, where it has images, a list of parts: {"type": "text",
"text": ...} and {"type": "image"}, of which the images of the prompt take the places in order."""

Conversation = tuple[Message, ...]

SCHEDULE = "reference.sync_steps"
"""Cause of the syncs that come every so many steps."""


def text_of(content: Any) -> str:
    """Return the text of a message's content, which may be parts.

    >>> text_of([{"type": "image"}, {"type": "text", "text": "What is it?"}])
    'What is it?'
    """
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


@dataclass(frozen=True)
class ModelInput:
    """What a model is given of a prompt; prompts of the same tokens and images are the same to it."""

    token_ids: tuple[int, ...]
    """Those that stand for its images among them, one for each place that a feature takes."""
    images: tuple[str, ...] = ()
    """Digests of its images, in order."""

    def __len__(self) -> int:
        """Return how many positions it takes."""
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt as it was frozen before training.

    Example: Prompt(id=7, content=({"role": "user", "content": "3 + 4 ="},), text="<|im_start|>user...", token_ids=(1, 4093),
    columns={"answer": "7"}).
    """

    id: int
    """Its row in the data set before splitting; names its random numbers."""
    content: str | Conversation
    """What a reward function gets: plain text or a conversation."""
    text: str
    """What the model is given: the content after the chat template."""
    token_ids: tuple[int, ...]
    """`text` as tokens; each image as those that take the places of its features."""
    columns: Mapping[str, Any]
    """The row's other columns, passed to reward functions by name."""
    images: tuple[str, ...] = ()
    """SHA-256 of each of its images, in order: the names of files in the run's `data/images`."""

    @property
    def model_input(self) -> ModelInput:
        """What policy, reference and sampler are given."""
        return ModelInput(self.token_ids, self.images)

    @property
    def answer(self) -> str | None:
        """The gold answer, as text; None where the data has none."""
        return None if self.columns.get("answer") is None else str(self.columns["answer"])


@dataclass(frozen=True)
class Mean:
    """A mean until the end of a step: a sum and a count, which several processes add up before it is divided, once."""

    total: float
    count: float

    def __float__(self) -> float:
        """Return the mean."""
        return self.total / self.count


class OfAllRows(float):
    """A figure that no sums give (a spread, a quantile, a clustered error): several processes need every row for it."""


Measured = dict[str, Mean | float]
"""Figures of a step before they are floats; those that are none of the two above are sums, maxima or counters."""


@dataclass(frozen=True, kw_only=True)
class RefSync:
    """One reference synchronisation: theta_ref <- alpha * theta + (1 - alpha) * theta_ref."""

    step: int
    """It happened after this step and holds from the next one."""
    alpha: float
    """Weight of the policy; 1 = hard copy."""
    sync_count: int
    """Syncs so far, this one included."""
    kl_before: float
    """Mean k3 per token between policy and reference just before, on this step's completions."""
    kl_after: float
    """The same just after; 0 for a hard copy."""
    param_distance: float
    """L2 norm of theta - theta_ref just before."""
    compression_error: float | None = None
    """What was left out of an average of adapters, as a Frobenius norm over all layers; None where nothing can be."""
    compression_bound: float | None = None
    """What all syncs so far can have left out together."""
    cause: str = SCHEDULE
    """What asked for it: `reference.sync_steps`, or the alert of a rule."""

    def as_record(self) -> dict[str, Any]:
        """Return what the journal holds of it: all but what does not apply."""
        return {key: value for key, value in asdict(self).items() if value is not None}
