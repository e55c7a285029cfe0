"""What `grpo check` prints of an adapter."""

from dataclasses import dataclass

from grpo_core.config import RunConfig
from grpo_core.policy.outline import Outline
from grpo_core.run.adapter_size import adapter_size
from grpo_core.run.disk_need import BYTES_PER_WEIGHT, shown_bytes
from grpo_core.run.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class AdapterSummary:
    """What a person wants to know of an adapter before it is trained."""

    weights: int
    """That are trained."""
    share: float
    """Of the weights of the model."""
    bytes: int
    """Of its weights in fp32, as each checkpoint has them."""
    scale: float
    """Factor on B A."""
    scale_formula: str
    reference_rank: int
    """Of the reference's adapter, at its largest."""
    reference_bytes: int

    def __str__(self) -> str:
        """Return one line about it."""
        return (
            f"{self.weights:,} weights are trained, {100 * self.share:.3g} % of the model's ({shown_bytes(self.bytes)}); scale "
            f"{self.scale:g} = {self.scale_formula}; reference of rank {self.reference_rank} at most "
            f"({shown_bytes(self.reference_bytes)})"
        )


def summary_of(config: RunConfig, model: ModelShape | Outline) -> AdapterSummary | None:
    """Return what a run's adapter is; None without `model.lora`, or where no layer gets one."""
    size, lora = adapter_size(config, model.linear_layers), config.model.lora
    if size is None or lora is None or not size.weights:
        return None
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    return AdapterSummary(
        weights=size.weights,
        share=size.weights / model.parameters,
        bytes=BYTES_PER_WEIGHT * size.weights,
        scale=lora.scale,
        scale_formula=f"alpha {alpha:g} / rank {lora.rank}",
        reference_rank=size.reference_rank,
        reference_bytes=BYTES_PER_WEIGHT * size.reference,
    )
