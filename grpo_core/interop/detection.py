"""Whose settings a file holds, by the keys and programs that only one of the systems has."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.errors import ConfigError
from grpo_core.interop.files import flatten_sections
from grpo_core.interop.open_r1 import OPEN_R1, REGISTRY
from grpo_core.interop.roll import ROLL
from grpo_core.interop.rules import Source, System
from grpo_core.interop.trl import TRL
from grpo_core.interop.vlm_r1 import VLM_R1

SYSTEMS: dict[Source, System] = {"trl": TRL, "open-r1": OPEN_R1, "roll": ROLL, "vlm-r1": VLM_R1}
READ = "not one of the four that are read (TRL, open-r1, ROLL's RLVR pipeline, VLM-R1)"
FOREIGN = {
    "verl": r"actor_rollout_ref\b|algorithm\.adv_estimator|verl[./](trainer|recipe)",
    "OpenRLHF": r"openrlhf[./]cli|micro_rollout_batch_size|(actor|ref)_num_gpus_per_node",
    "NeMo-RL": r"grpo\.(num_(prompts|generations)_per|max_num_(steps|epochs)|max_rollout_turns|adv_estimator)|loss_fn\.\w"
    r"|policy\.(model_name|train_(global|micro)_batch_size|(dtensor|megatron|draft)_cfg|max_total_sequence_length|generation\.)|nemo_rl[./]",
    "prime-rl": r"orchestrator\.\w|rollouts_per_example|trainer\.optim\.|model\.(ac|compile)(?=\s|$)|prime_rl[./]|@ \S+\.toml",
    "ms-swift": r"rlhf_type|(swift|megatron) rlhf|swift[./]cli|external_plugins|(train|tuner)_type\b",
    "open-instruct": r"open_instruct[./]\w*grpo|num_(unique_prompts|samples_per_prompt)_rollout|dataset_mixer_list",
    "ROLL's agentic pipeline": r"(train|val)_env_manager\b|env_manager_cls|custom_envs\b|start_agentic_\w*pipeline",
}
"""{system that is not read: what only it has among key paths, programs and options}; hyphens are underscores."""


def refuse_unread_system(path: Path, text: str, values: Mapping[str, Any]) -> None:
    """Refuse settings of a system that is known and not read.

    Args:
        path: of the file, for the message.
        text: of a shell script; empty for a file of keys.
        values: of a file of keys.

    Raises:
        ConfigError: names the system, and by what it was recognised.
    """
    commands = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    searched = "\n".join([re.sub(r"[ \t]+", " ", commands), *flatten_sections(values)]).replace("-", "_")
    for name, telling in FOREIGN.items():
        if (found := re.search(rf"(?m)(?<![A-Za-z0-9])(?:{telling})[\w.]*", searched)) is not None:
            raise ConfigError(
                f"config {path}: these are settings of {name} ({found[0]}), {READ}; write a configuration by hand"
            )


def detect_source(path: Path, values: Mapping[str, Any]) -> Source:
    """Return whose settings these are.

    open-r1 and VLM-R1 have all keys of TRL, so one of their own keys tells them apart, or a reward by its name in open-r1's
    registry; without one, the settings are TRL's.

    Raises:
        ConfigError: the keys fit none of the systems, or several alike.
    """
    known = {name: system.known() | system.aliases.keys() for name, system in SYSTEMS.items()}
    of_roll = {key.partition(".")[0] for key in known["roll"]}
    own = {name: known[name] - known["trl"] for name in ("open-r1", "vlm-r1")}
    rewards = values.get("reward_funcs")
    names = [rewards] if isinstance(rewards, str) else rewards if isinstance(rewards, list) else []
    scores: dict[Source, int] = {
        "roll": len(values.keys() & (of_roll - known["open-r1"] - known["vlm-r1"])),
        "trl": len(values.keys() & (known["trl"] - of_roll)),
        "open-r1": len(values.keys() & (own["open-r1"] - own["vlm-r1"])) + any(name in REGISTRY for name in names),
        "vlm-r1": len(values.keys() & (own["vlm-r1"] - own["open-r1"])),
    }
    family = max(scores["trl"], scores["open-r1"], scores["vlm-r1"])
    if scores["roll"] > family:
        return "roll"
    if family > scores["roll"] and scores["open-r1"] != scores["vlm-r1"]:
        return "open-r1" if scores["open-r1"] > scores["vlm-r1"] else "vlm-r1"
    if family > scores["roll"] and not scores["open-r1"]:
        return "trl"
    listed = ", ".join(sorted(values)[:8])
    raise ConfigError(
        f"config {path}: the keys do not show whose settings these are ({listed}); name the format with --format "
        f"{', '.join(list(SYSTEMS)[:-1])} or {list(SYSTEMS)[-1]}"
    )


def explain_source(system: System) -> str:
    """Return a note: whose defaults are taken where a file says nothing, why, and which option takes others."""
    own = "no key is open-r1's or VLM-R1's own" if system.name == "trl" else "the file has keys or rewards of its own"
    others = [name for name in SYSTEMS if name not in (system.name, "roll")]
    remedy = "" if system.name == "roll" else f"; --format {' or '.join(others)} takes those of another system"
    return f"the defaults of {system.title} are assumed where the file says nothing, since {own}{remedy}"
