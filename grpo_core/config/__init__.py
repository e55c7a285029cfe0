"""Configuration: what can be set (`schema`), how it is read (`loading`), which combinations make sense (`consistency`).

`presets` finds files by name, `origin` is what a run changes of its preset.
"""

from grpo_core.config.consistency import check_consistency
from grpo_core.config.loading import apply_overrides, as_overrides, merge_knobs, parse_overrides, validate_config
from grpo_core.config.origin import Origin, Resolved, changes_between, find_config, load, load_config, preset_names, run_name
from grpo_core.config.rules import EvaluationConfig, MonitorConfig, ProbeConfig, RuleConfig, TrackingConfig
from grpo_core.config.schema import (
    AdvantageConfig,
    DataConfig,
    FilterConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainingConfig,
)

__all__ = [
    "AdvantageConfig",
    "DataConfig",
    "EvaluationConfig",
    "FilterConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "MonitorConfig",
    "OptimizerConfig",
    "Origin",
    "ProbeConfig",
    "ReferenceConfig",
    "Resolved",
    "RewardConfig",
    "RolloutConfig",
    "RuleConfig",
    "RunConfig",
    "TrackingConfig",
    "TrainingConfig",
    "apply_overrides",
    "as_overrides",
    "changes_between",
    "check_consistency",
    "find_config",
    "load",
    "load_config",
    "merge_knobs",
    "parse_overrides",
    "preset_names",
    "run_name",
    "validate_config",
]
