"""The keys of the schema with the kinds of their values, and the nonsense that a person may type."""

from typing import Any

from grpo_core.config import RunConfig

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
"""What else is typed where a text belongs."""


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
