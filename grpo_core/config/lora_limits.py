"""What of `model.lora` contradicts other keys, does nothing with them, or is seldom meant."""

from grpo_core.config.derived import reference_moves
from grpo_core.config.inert import Finding, error_if, warning_if
from grpo_core.config.schedule import most_syncs
from grpo_core.config.schema import RunConfig

LEAST_RATE = 1e-5
SCALES = 1e-3, 1e3
"""Beyond these an adapter adds next to nothing, or so much that one update is the end of the policy."""


def lora_limits(config: RunConfig) -> tuple[Finding, ...]:
    """Return the findings about an adapter."""
    lora, mixup = config.model.lora, config.reference.mixup_alpha
    if lora is None:
        return ()
    most, moves, syncs = lora.reference_rank, reference_moves(config), most_syncs(config)
    largest = lora.rank if mixup == 1 else lora.rank * (syncs + 1)
    return (
        error_if(
            most is not None and most < lora.rank,
            f"model.lora.reference_rank: {most} is below model.lora.rank {lora.rank}: an average needs at least the policy's "
            f"rank; raise it to {lora.rank} or more, or leave it out",
        ),
        error_if(
            most is not None and not moves,
            f"model.lora.reference_rank: {most} has no effect while the reference stays the initial policy; set "
            "reference.sync_steps, or leave it out",
        ),
        error_if(
            config.reference.offload,
            "reference.offload: true has no effect with model.lora: reference and initial policy share the policy's base; "
            "leave it out",
        ),
        warning_if(
            most is not None and moves and most >= largest,
            f"model.lora.reference_rank: {most} is never reached: with reference.mixup_alpha {mixup:g} and {syncs} syncs a "
            f"reference has at most rank {largest}",
        ),
        warning_if(
            not SCALES[0] <= lora.scale <= SCALES[1],
            f"model.lora.alpha: {lora.alpha} is a scale of {lora.scale:g} (alpha / rank), where 1 or 2 is usual; leave it "
            "out for 2",
        ),
        warning_if(
            config.rollout.engine == "vllm" and config.model.dtype == "bfloat16",
            "rollout.engine: vllm gets the sum of matrix and adapter, in bfloat16 rounded: where the adapter adds less than "
            "half of a weight's last place, nothing is left of it; with model.dtype float32 or the embedded sampler it is kept "
            "(docs/adapters.md)",
        ),
        warning_if(
            config.optimizer.lr < LEAST_RATE,
            f"optimizer.lr: {config.optimizer.lr:g} is low for model.lora: an adapter usually needs at least 10 times the rate "
            "with which all weights are trained (Schulman et al. 2025, LoRA Without Regret)",
        ),
    )
