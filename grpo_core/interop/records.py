"""The records that a conversion is made of: rules of a source system, what a rule concludes, and what is reported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.interop.readers import Reader

Source = Literal["trl", "roll"]
Fate = Literal["mapped", "no_counterpart", "dead", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What becomes of one key of the source."""

    fate: Fate
    targets: Mapping[str, Any] = field(default_factory=dict)
    """{our key path: value}; empty unless mapped."""
    remark: str = ""
    """Where semantics differ, what to use instead, or why the key does nothing."""
    differs: bool = False
    """The imported run behaves otherwise than the source's would."""


def mapped(targets: Mapping[str, Any], remark: str = "", *, differs: bool = False) -> Outcome:
    """Return the outcome of a key that has a counterpart."""
    return Outcome(fate="mapped", targets=targets, remark=remark, differs=differs)


def no_counterpart(reason: str, *, differs: bool = False) -> Outcome:
    """Return the outcome of a key that has none; `differs` where leaving it out changes the training."""
    return Outcome(fate="no_counterpart", remark=reason, differs=differs)


def dead(reason: str) -> Outcome:
    """Return the outcome of a key that does nothing in the source system itself."""
    return Outcome(fate="dead", remark=reason)


class Settings:
    """The typed values of a source file, with the source system's defaults where a key is absent."""

    def __init__(self, path: Path, given: Mapping[str, Any], system: "System", processes: int | None) -> None:
        """Keep the flat `given` values; `processes` is the number of training processes if the user told it."""
        self.path = path
        self.given = given
        self.processes = processes
        self._system = system

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key that has a rule.

        Raises:
            ConfigError: the file holds a value of the wrong type.
        """
        rule = self._system.rule(key)
        value = self.given.get(key, rule.default)
        try:
            return rule.read(value)
        except ValueError as error:
            shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
            raise self.refuse(f"{key}: {error}, got {shown}; correct it in the file") from error

    def refuse(self, text: str) -> ConfigError:
        """Return the error that names the file."""
        return ConfigError(f"config {self.path}: {text}")


Convert = Callable[[Settings, str], Outcome]
"""From all settings and a key to what becomes of it."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How one key of a source system is read and converted."""

    key: str
    """Key in the source; `*` stands for any one name."""
    default: Any
    """What the source system uses where the key is absent."""
    read: Reader
    """Type check; a ValueError says what was expected."""
    convert: Convert
    ours: str
    """Our keys, for the documentation."""
    remark: str = ""
    """For the documentation, and for the report where the outcome has no remark of its own."""
    reports_default: bool = False
    """Without a counterpart, it is reported also where the key is absent."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Keys that share a reason; `*` stands for anything."""

    reason: str
    keys: tuple[str, ...]

    def holds(self, key: str) -> bool:
        """Tell whether the key is one of the group."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys)


@dataclass(frozen=True, kw_only=True)
class System:
    """A source system: every key it knows, and what becomes of each."""

    name: Source
    title: str
    rules: tuple[Rule, ...]
    ignored: tuple[Group, ...]
    """Keys without a counterpart, by reason."""
    dead: tuple[Group, ...]
    """Keys that the system ships or documents and does not read."""
    assumptions: Callable[[Settings], tuple[str, ...]]
    """What the conversion had to assume about a file."""

    def rule(self, key: str) -> Rule:
        """Return the rule of a key.

        Raises:
            KeyError: it has none.
        """
        for rule in self.rules:
            if rule.key == key or ("*" in rule.key and fnmatchcase(key, rule.key)):
                return rule
        raise KeyError(key)

    def has_rule(self, key: str) -> bool:
        """Tell whether a key has a rule."""
        return any(rule.key == key or ("*" in rule.key and fnmatchcase(key, rule.key)) for rule in self.rules)

    def known(self) -> tuple[str, ...]:
        """Return every key and pattern."""
        groups = (*self.dead, *self.ignored)
        return tuple(rule.key for rule in self.rules) + tuple(key for group in groups for key in group.keys)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the report."""

    key: str
    value: Any
    fate: Fate
    targets: Mapping[str, Any]
    remark: str
    differs: bool = False
    is_default: bool = False
    """The key is absent from the file; the value is the source system's default."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A converted configuration and what became of every key of its source."""

    path: Path
    source: Source
    title: str
    """Name and version of the source system."""
    values: Mapping[str, Any]
    """Nested plain values: what was mapped."""
    config: RunConfig
    """The same, resolved and valid."""
    entries: tuple[Entry, ...]
    """Every key of the file exactly once, then defaults of the source system that are not ours."""
    notes: tuple[str, ...]
    """What had to be assumed, or is left to fill in."""
    warnings: tuple[str, ...]
    """What `grpo check` says about the result."""

    def listed(self, fate: Fate) -> tuple[Entry, ...]:
        """Return the entries of one list."""
        return tuple(entry for entry in self.entries if entry.fate == fate)
