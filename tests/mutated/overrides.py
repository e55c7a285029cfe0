"""Overrides as a person types them: keys of the schema with ordinary values, values at and beyond the bounds, and nonsense."""

import json
from random import Random
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.names import BUILTIN_REWARDS

NONSENSE = (
    *(
        "yes",
        "off",
        "",
        "' '",
        "-1",
        "0",
        "1e300",
        "10**12",
        "12:30:45",
        ".nan",
        ".inf",
        "true",
        "null",
        "[]",
        "[true, 2]",
        "{}",
    ),
    *("{a: 1}", "[[", "&a [*a]", "2026-13-45", "0x1F", "1_000", "1000000000000", "'\u202e'", '"\\0"', "ftp:x", "a:b:c"),
    "1.5",
)
"""Whatever is typed into a wrong key."""
TEXTS = {
    "data.source": [
        "reasoning_gym:chain_sum",
        "reasoning_gym:nonsense",
        "file:nowhere.jsonl",
        "file:",
        "hub:openai/gsm8k",
        "ftp:x",
    ],
    "model.source": ["nobody/nothing", "bundled:nothing", "scratch:sums", "/nowhere"],
    "rewards.0.fn": [*BUILTIN_REWARDS, "exact", "os:system", "a-b:c", ":f"],
    "evaluation.verifier": [*BUILTIN_REWARDS, "nothing"],
    "data.prompt_column": ["question", "answer", "nothing"],
    "training.python": ["/nowhere/python", ""],
}
"""What else is typed where a text belongs."""
LISTS = {"evaluation.k": ["[1]", "[1, 2]", "[0]", "[1, 1000000]"], "optimizer.adam_betas": ["[0.9, 0.95]", "[0.9]", "[1, 1]"]}


def leaves() -> dict[str, list[dict[str, Any]]]:
    """Return {key.path: kinds of its values, as the JSON schema has them} of every key that is no section."""
    schema = RunConfig.model_json_schema()

    def walk(section: dict[str, Any], prefix: str) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for name, field in section["properties"].items():
            kinds = [
                schema["$defs"][kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
                for kind in field.get("anyOf", [field])
            ]
            inner = next((kind for kind in kinds if "properties" in kind), None)
            found |= walk(inner, f"{prefix}{name}.") if inner else {f"{prefix}{name}": kinds}
        return found

    rewards = {f"rewards.0.{key}": kinds for key, kinds in walk(schema["$defs"]["RewardConfig"], "").items()}
    return {key: kinds for key, kinds in (walk(schema, "") | rewards).items() if key != "rewards"}


LEAVES = leaves()


def override(draw: Random) -> str:
    """Return one `key=value`."""
    key = draw.choice(sorted(LEAVES))
    kind = draw.choice(LEAVES[key])
    if draw.random() < 0.3:
        return f"{key}={draw.choice(NONSENSE)}"
    return f"{key}={_value(key, kind, draw)}"


def _value(key: str, kind: dict[str, Any], draw: Random) -> str:
    if key in LISTS:
        return draw.choice(LISTS[key])
    if "enum" in kind:
        return draw.choice(kind["enum"])
    low = kind.get("minimum", kind.get("exclusiveMinimum", 0))
    high = kind.get("maximum", kind.get("exclusiveMaximum", 2**63 - 1))
    match kind.get("type"):
        case "boolean":
            return draw.choice(("true", "false"))
        case "integer":
            return str(draw.choice((low, low + 1, low + draw.randrange(12), low + draw.randrange(12), high, high + 1, low - 1)))
        case "number":
            return json.dumps(
                draw.choice((low, low + 0.5, low + draw.random(), low + draw.random(), high, high * 2 + 1, low - 1))
            )
        case "null":
            return "null"
        case "object":
            return draw.choice(("{}", "{min_terms: 2, max_terms: 2}", "{nothing: 1}"))
        case "array":
            return draw.choice(("[]", "[a]", "[[a, b]]"))
    return draw.choice(TEXTS.get(key, ["something", "train"]))


def overrides(draw: Random) -> list[str]:
    """Return some, each key once."""
    drawn = {text.partition("=")[0]: text for text in (override(draw) for _ in range(draw.randint(1, 4)))}
    return list(drawn.values())
