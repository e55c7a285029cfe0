"""Which policy is trained, and how much of it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from grpo_core.config.section import Section, Source, Text


def _check_dropout(value: float) -> float:
    if value != 0:
        fault = "input should be 0: with dropout, the policy that is trained is not the one that made the rollouts"
        raise PydanticCustomError("dropout", "{fault}", {"fault": fault})
    return value


class LoraConfig(Section):
    """Train a low-rank adapter instead of the weights: W + (alpha / rank) B A (Hu et al., arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1, le=4096)
    """Columns of B and rows of A, at most the smaller side of every matrix that is adapted."""
    alpha: float | None = Field(default=None, gt=0, le=1e6)
    """The adapter is scaled by alpha / rank; null = 2 x rank, a scale of 2 whatever the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), AfterValidator(_check_dropout)] = 0.0
    """Has to be 0, for the policy that is trained to be the one that made the rollouts."""
    target_modules: tuple[Text, ...] | None = Field(default=None, min_length=1, max_length=1000)
    """Linear layers that get an adapter, by their names or the ends of them, such as `[q_proj, v_proj]`; null = every one but
    the vocabulary head."""
    init_from: Source | None = None
    """Folder of a PEFT adapter to begin with: it is the initial policy then; null = begin with the model itself."""
    reference_rank: int | None = Field(default=None, ge=1, le=65_536)
    """Largest rank of a reference that is an average of adapters (`reference.mixup_alpha` below 1); beyond it the smallest
    singular values are dropped, and the error is journalled. null = 4 x rank."""

    @property
    def scale(self) -> float:
        """Factor on B A."""
        return 2.0 if self.alpha is None else self.alpha / self.rank

    @property
    def most_rank(self) -> int:
        """Largest rank of an averaged reference."""
        return self.reference_rank or 4 * self.rank


class ModelConfig(Section):
    """Which policy is trained."""

    source: Source = "bundled:smollm2-135m"
    """`bundled:<name>` or `scratch:<name>` (no download), a folder in transformers' format, or a hub id such as `org/name`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of policy and reference alike; weights and optimizer state are float32 either way."""
    trust_remote_code: bool = False
    """Run Python code that comes with a hub model. Off: a model that needs it fails to load."""
    lora: LoraConfig | None = None
    """An adapter is trained, and the model's own weights stay as they are; null = all weights are trained."""
