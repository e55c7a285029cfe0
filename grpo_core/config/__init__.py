"""Configuration: what can be set (`schema`), how it is read (`loading`), which combinations make sense (`consistency`)."""

from grpo_core.config.consistency import check_consistency
from grpo_core.config.loading import apply_overrides, load_config, parse_overrides, validate_config
from grpo_core.config.schema import (
    AdvantageConfig,
    DataConfig,
    EvaluationConfig,
    LossConfig,
    ModelConfig,
    MonitorConfig,
    OptimizerConfig,
    ReferenceConfig,
    RewardConfig,
    RolloutConfig,
    RuleConfig,
    RunConfig,
    TrackingConfig,
    TrainingConfig,
)

__all__ = [
    "AdvantageConfig",
    "DataConfig",
    "EvaluationConfig",
    "LossConfig",
    "ModelConfig",
    "MonitorConfig",
    "OptimizerConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RuleConfig",
    "RunConfig",
    "TrackingConfig",
    "TrainingConfig",
    "apply_overrides",
    "check_consistency",
    "load_config",
    "parse_overrides",
    "validate_config",
]
