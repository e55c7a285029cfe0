"""Releases of TRL: which defaults were others, and the system as of one of them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_core.errors import ConfigError, shown
from grpo_core.interop import trl
from grpo_core.interop.rules import Settings, System, with_defaults

OLDEST, EVERY_END, NEWEST = (0, 17), (1, 15), (1, 16)
CHANGES: Mapping[tuple[int, int], Mapping[str, Any]] = {
    (1, 10): {"max_completion_length": 256, "use_bias_correction_kl": False},
    (1, 0): {"vllm_mode": "server"},
    (0, 27): {"top_k": None, "dtype": None},
    (0, 26): {"max_prompt_length": 512, "vllm_importance_sampling_mode": "token_truncate",
              "vllm_importance_sampling_clip_max": 2.0},
    (0, 23): {"vllm_importance_sampling_correction": False},
    (0, 22): {"loss_type": "bnpo", "scale_rewards": True},
    (0, 19): {"beta": 0.04, "bf16": False, "optim": "adamw_torch"},
    (0, 18): {"temperature": 0.9, "top_k": 50},
}  # fmt: skip
"""{release: what was the default before it}, the newest first."""
ONE_END = "before 1.15 only the tokenizer's own end token ended a completion; here each that the model declares does"


def defaults_of(release: tuple[int, int]) -> dict[str, Any]:
    """Return {key: default} of a release where they are not those of 1.16.

    >>> defaults_of((1, 9)), defaults_of((1, 10))
    ({'max_completion_length': 256, 'use_bias_correction_kl': False}, {})
    """
    return {key: value for since, before in CHANGES.items() if release < since for key, value in before.items()}


def as_of(version: str | None) -> System:
    """Return TRL with the defaults of a release, and a note about its end tokens; None = those of 1.16, and what others had.

    Raises:
        ConfigError: the release is none that was read.
    """
    if version is None:
        return replace(trl.TRL, assumptions=lambda settings: (*trl.assumed_processes(settings), _other_defaults(settings)))
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(\.\d+)?", version)
    release = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= release <= NEWEST:
        raise ConfigError(f"trl-version: {shown(version)} is no release that is read; give one from 0.17 to 1.16")
    note = (ONE_END,) if release < EVERY_END else ()
    return replace(
        trl.TRL,
        title=f"TRL {release[0]}.{release[1]}",
        rules=with_defaults(trl.RULES, defaults_of(release)),
        assumptions=lambda settings: (*trl.assumed_processes(settings), *note),
    )


def _other_defaults(settings: Settings) -> str:
    """Return which keys that a file leaves out had other defaults in earlier releases."""
    former = {key: value for key, value in defaults_of(OLDEST).items() if key not in settings.given}
    shown_ones = [f"{key} {value}" for key, value in former.items() if settings["use_vllm"] or not key.startswith("vllm")]
    return (
        f"no file states the release of TRL: the defaults of 1.16 are taken, and --trl-version takes another's ({ONE_END}; "
        f"earlier releases down to 0.17 had {', '.join(shown_ones)})"
    )
