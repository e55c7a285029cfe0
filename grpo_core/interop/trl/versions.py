"""Defaults of the TRL releases that other systems are built on, where they are not those of TRL 1.16.

Read from the wheels of trl 0.17.0 and 0.18.0 (`trl/trainer/grpo_config.py`), and from transformers of that time for `bf16`
and `optim`. What a release does not have yet is at the value that means the same: no importance weights between vLLM and
the trainer, and k3 without the ratio.
"""

from typing import Any

NOT_THERE_YET: dict[str, Any] = {"use_bias_correction_kl": False, "vllm_importance_sampling_correction": False}

TRL_0_18: dict[str, Any] = {
    **NOT_THERE_YET,
    "max_prompt_length": 512,
    "max_completion_length": 256,
    "top_k": None,
    "beta": 0.04,
    "scale_rewards": True,
    "loss_type": "bnpo",
    "vllm_mode": "server",
    "bf16": False,
    "dtype": None,
    "optim": "adamw_torch",
}
TRL_0_17: dict[str, Any] = {**TRL_0_18, "temperature": 0.9, "top_k": 50}
