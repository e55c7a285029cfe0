"""Defaults of earlier TRL releases, and of the releases that other systems are built on.

Read from the wheels of trl 0.17 to 1.16 (`trl/trainer/grpo_config.py`), and from transformers of that time for `bf16` and
`optim`. What a release does not have yet is at the value that means the same: no importance weights between vLLM and the
trainer, and k3 without the ratio.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from grpo_core.errors import ConfigError, shown
from grpo_core.interop.records import Settings, System
from grpo_core.interop.rules import with_defaults


class Release(NamedTuple):
    """A release of TRL, without its patches."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.major}.{self.minor}"


OLDEST, NEWEST = Release(0, 17), Release(1, 16)
CHANGES: tuple[tuple[Release, dict[str, Any]], ...] = (
    (Release(1, 10), {"max_completion_length": 256, "use_bias_correction_kl": False}),
    (Release(1, 0), {"vllm_mode": "server"}),
    (Release(0, 27), {"top_k": None, "dtype": None}),
    (
        Release(0, 26),
        {
            "max_prompt_length": 512,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 2.0,
        },
    ),
    (Release(0, 23), {"vllm_importance_sampling_correction": False}),
    (Release(0, 22), {"loss_type": "bnpo", "scale_rewards": True}),
    (Release(0, 19), {"beta": 0.04, "bf16": False, "optim": "adamw_torch"}),
    (Release(0, 18), {"temperature": 0.9, "top_k": 50}),
)
"""(release, what was the default before it), the newest first."""
SAME = {"top_k": None, "dtype": None, "scale_rewards": True, "optim": "adamw_torch"}
"""What only writes the default of 1.16 in another way."""
EVERY_END = Release(1, 15)
ONE_END = f"before {EVERY_END} only the tokenizer's own end token ended a completion; here each that the model declares does"


def defaults_of(release: Release) -> dict[str, Any]:
    """Return {key: default} of a release where they are not those of 1.16.

    >>> defaults_of(Release(1, 9)), defaults_of(Release(1, 10))
    ({'max_completion_length': 256, 'use_bias_correction_kl': False}, {})
    """
    return {key: value for since, before in CHANGES if release < since for key, value in before.items()}


def as_of(system: System, version: str | None) -> System:
    """Return TRL with the defaults of a release, and a note about its end tokens; None = those of 1.16, and what others had.

    Raises:
        ConfigError: the release is none that was read.
    """
    if version is None:
        return _with_note(system, lambda settings: _other_releases(settings.given))
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(\.\d+)?", version)
    release = Release(int(match[1]), int(match[2])) if match else Release(0, 0)
    if not OLDEST <= release <= NEWEST:
        raise ConfigError(f"trl-version: {shown(version)} is no release that is read; give one from {OLDEST} to {NEWEST}")
    of_release = replace(
        system,
        title=f"TRL {release}",
        version=f"{system.version}, with the defaults of trl {release}",
        rules=with_defaults(system.rules, defaults_of(release)),
    )
    return _with_note(of_release, lambda _: ONE_END) if release < EVERY_END else of_release


def _with_note(system: System, note: Callable[[Settings], str]) -> System:
    return replace(system, assumptions=lambda settings: (*system.assumptions(settings), note(settings)))


def _other_releases(given: Mapping[str, Any]) -> str:
    """Return what keys that a file leaves out were in earlier releases, and the option that chooses one."""
    parts = [ONE_END]
    for since, before in CHANGES:
        absent = {
            key: value
            for key, value in before.items()
            if key not in given and SAME.get(key, "") != value and ("use_vllm" in given or not key.startswith("vllm"))
        }
        parts += (
            [f"before {since} {', '.join(f'{key} {json.dumps(value)}' for key, value in absent.items())}"] if absent else []
        )
    return (
        "no key of the file names the release of TRL: the defaults of 1.16 are taken, and --trl-version takes those of another "
        f"({'; '.join(parts)})"
    )


TRL_0_18, TRL_0_17 = defaults_of(Release(0, 18)), defaults_of(Release(0, 17))
