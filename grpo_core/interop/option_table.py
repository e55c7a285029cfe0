"""The option table of docs/algorithm.md, made of the schema: every key of the algorithm and its name in other systems."""

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from grpo_core.config.schema import RunConfig

SECTIONS = ("rollout", "advantage", "filtering", "loss", "reference", "probe", "optimizer")
NONE = "—"
NAMES: dict[str, tuple[str, str, str]] = {
    "rollout.num_prompts_per_step": (
        "`per_device_train_batch_size` · `steps_per_generation` / G",
        "`rollout_batch_size`",
        "`per_device_train_batch_size` / G",
    ),
    "rollout.group_size": ("`num_generations`", "`num_return_sequences_in_group`", "`num_generations`"),
    "rollout.max_prompt_tokens": (NONE, "`prompt_length`", "read, then ignored"),
    "rollout.max_completion_tokens": ("`max_completion_length`", "`response_length`", "`max_completion_length`"),
    "rollout.temperature": ("`temperature`", "`generating_args.temperature`", "always 1"),
    "rollout.top_p": ("`top_p`", "`generating_args.top_p`", NONE),
    "rollout.top_k": ("`top_k`", "`generating_args.top_k`", NONE),
    "advantage.reward_norm": (NONE, "`norm_mean_type`, `norm_std_type`; once `reward_norm`", NONE),
    "advantage.reward_shift": (NONE, "once `reward_shift`", NONE),
    "advantage.reward_scale": (NONE, "once `reward_scale`", NONE),
    "advantage.reward_clip": (NONE, "`reward_clip`", NONE),
    "advantage.baseline": ("group mean", "`adv_estimator: grpo`", "group mean"),
    "advantage.scale": ("`scale_rewards`", "`norm_std_type`", "group std"),
    "advantage.advantage_eps": ("1e-4", "1e-6", "1e-4"),
    "advantage.whiten_advantages": (NONE, "`whiten_advantages`", NONE),
    "advantage.advantage_clip": (NONE, "`advantage_clip`", NONE),
    "filtering.drop_zero_variance_groups": (NONE, "`query_filter_config: std_filter`", NONE),
    "filtering.mask_truncated_completions": ("`mask_truncated_completions`", "`max_len_mask`", NONE),
    "filtering.overlong_buffer_tokens": ("`get_soft_overlong_punishment`", NONE, NONE),
    "loss.beta": ("`beta`", "`kl_loss_coef` with `use_kl_loss`", "`beta`"),
    "loss.kl_estimator": ("k3", "k3, clamped to ±10", "k3"),
    "loss.kl_placement": ("loss", "`use_kl_loss` / `add_token_level_kl`", "loss"),
    "loss.kl_correction": ("`use_bias_correction_kl`", NONE, NONE),
    "loss.ratio": ("`importance_sampling_level`", "`importance_sampling: token / seq`", "token"),
    "loss.clip_eps": ("`epsilon`", "`pg_clip`", "`epsilon`"),
    "loss.clip_eps_high": ("`epsilon_high`", "`pg_clip_high` with `use_pg_clip_range`", "`epsilon_high`"),
    "loss.dual_clip": ("`delta`", "`dual_clip_loss`: 1 + 2 `pg_clip`", NONE),
    "loss.sampler_correction": ("`vllm_importance_sampling_correction`, `..._mode`", "`train_infer_correction`", NONE),
    "loss.sampler_level": ("`vllm_importance_sampling_mode`", "`train_infer_correction`", NONE),
    "loss.sampler_bound": ("`vllm_importance_sampling_clip_max`", "`train_infer_correction`", NONE),
    "loss.aggregation": ("`loss_type`: grpo, dapo, luspo, dr_grpo", "`loss_agg_mode`", "seq-mean-token-mean"),
    "loss.epochs_per_rollout": ("`num_iterations`", "`ppo_epochs`", "`num_iterations`"),
    "loss.minibatches": (
        "`steps_per_generation` / `gradient_accumulation_steps`",
        "from `per_device_train_batch_size`, `gradient_accumulation_steps`",
        NONE,
    ),
    "reference.sync_steps": ("`sync_ref_model`, `ref_model_sync_steps`", "none: fixed", "read, then ignored"),
    "reference.mixup_alpha": ("`ref_model_mixup_alpha`", NONE, "read, then ignored"),
    "reference.kl_init_every": (NONE, NONE, NONE),
    "probe.every_steps": (NONE, NONE, NONE),
    "probe.num_prompts": (NONE, NONE, NONE),
    "optimizer.lr": ("`learning_rate`", "`learning_rate`", "`learning_rate`"),
    "optimizer.schedule": ("`lr_scheduler_type`", "`lr_scheduler_type`", "`lr_scheduler_type`"),
    "optimizer.warmup_steps": ("`warmup_steps`", "`warmup_steps`", "`warmup_steps`"),
    "optimizer.weight_decay": ("`weight_decay`", "`weight_decay`", "`weight_decay`"),
    "optimizer.adam_betas": ("`adam_beta1`, `adam_beta2`", "`adam_beta1`, `adam_beta2`", "`adam_beta1`, `adam_beta2`"),
    "optimizer.max_grad_norm": ("`max_grad_norm`", "`max_grad_norm`", "`max_grad_norm`"),
}
"""What each key is called by TRL, ROLL and VLM-R1; without backticks: what they always do."""


def algorithm_keys() -> dict[str, FieldInfo]:
    """Return {key path: field} of every key of the algorithm, in the order of the schema."""
    return {
        f"{section}.{name}": field
        for section in SECTIONS
        for name, field in RunConfig.model_fields[section].annotation.model_fields.items()  # type: ignore[union-attr]
    }


def markdown_table() -> str:
    """Return the option table."""
    head = "| Key | Default | Values | Meaning | TRL | ROLL | VLM-R1 |"
    rows = [_row(key, field) for key, field in algorithm_keys().items()]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def _row(key: str, field: FieldInfo) -> str:
    cells = [f"`{key}`", f"`{_text(field.default)}`", _values(field), str(field.description), *NAMES[key]]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _values(field: FieldInfo) -> str:
    """Return the range of a key in words: its choices, or its type with its bounds."""
    kinds = [field.annotation] if get_origin(field.annotation) in (None, Literal, tuple) else get_args(field.annotation)
    choices = [f"`{choice}`" for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return ", ".join(choices)
    words: dict[Any, str] = {int: "whole number", float: "number", bool: "`true`, `false`", type(None): "null"}
    named = [words.get(kind, "two numbers") for kind in kinds]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {getattr(item, name)}" for item in field.metadata for name, sign in signs.items() if hasattr(item, name)]
    return " or ".join([" ".join([named[0], *bounds]), *named[1:]])
