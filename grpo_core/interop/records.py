"""The records that a conversion is made of: rules of a source system, what a rule concludes, and what is reported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError, raised_as, shown
from grpo_core.interop.arguments import Reader, read_argument

Source = Literal["trl", "open-r1", "roll", "vlm-r1"]
UNQUOTED = " (YAML reads no, off, yes and on as false and true: quote them)"
NOT_NULL = " (a text: YAML's word for nothing is null)"
Fate = Literal["mapped", "no_counterpart", "dead", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What becomes of one key of the source."""

    fate: Fate
    targets: Mapping[str, Any] = field(default_factory=dict)
    """{our key path: value}; empty unless mapped, or where `rewards` names what is left to write."""
    remark: str = ""
    """Where semantics differ, what to use instead, or why the key does nothing."""
    differs: bool = False
    """The imported run behaves otherwise than the source's would."""


def mapped(targets: Mapping[str, Any], remark: str = "", *, differs: bool = False) -> Conclusion:
    """Return the conclusion about a key that has a counterpart."""
    return Conclusion(fate="mapped", targets=targets, remark=remark, differs=differs)


def no_counterpart(reason: str, *, differs: bool = False) -> Conclusion:
    """Return the conclusion about a key that has none; `differs` where leaving it out changes the training."""
    return Conclusion(fate="no_counterpart", remark=reason, differs=differs)


def dead(reason: str) -> Conclusion:
    """Return the conclusion about a key that does nothing in the source system itself."""
    return Conclusion(fate="dead", remark=reason)


@dataclass(frozen=True)
class Settings:
    """The typed values of a source file, with the source system's defaults where a key is absent."""

    path: Path
    given: Mapping[str, Any]
    """The file's own values, flat, under the names that the system has now."""
    system: "System"
    processes: int | None
    """Training processes, if the user named their number."""

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key that has a rule.

        Raises:
            ConfigError: the file holds a value of the wrong type.
        """
        rule = self.system.find_rule(key)
        assert rule is not None, key
        if key not in self.given:
            return rule.read(rule.default)
        value = self.given[key]
        quote = UNQUOTED if isinstance(value, bool) else NOT_NULL if value == "None" else ""
        fault = f"config {self.path}: {key}: {{cause}}, got {shown(value)}{quote}; correct it in the file"
        with raised_as(ConfigError, fault, ValueError):
            return read_argument(rule.read, value) if self.system.parses_text else rule.read(value)

    def refuse(self, text: str) -> ConfigError:
        """Return the error that names the file."""
        return ConfigError(f"config {self.path}: {text}")


Convert = Callable[[Settings, str], Conclusion]
"""From all settings and a key to what becomes of it. Keys that depend on each other share one function."""
Export = Callable[[RunConfig, str], Any]
"""The way back: from a configuration and a key of the other system to that key's value."""


@dataclass(frozen=True)
class Rule:
    """How one key of another system is read and converted, in both directions. Positional: the tables read as columns."""

    key: str
    """Key in the source; `*` stands for any one name."""
    read: Reader
    """Type check; a ValueError names what was expected."""
    default: Any
    """What the source system uses where the key is absent."""
    convert: Convert
    ours: str
    """Our keys, for the documentation, separated by commas."""
    remark: str = ""
    """For the documentation."""
    needs: tuple[str, str] | None = field(default=None, kw_only=True)
    """(switch, why the key does nothing where that is off)."""
    unset: Conclusion | None = field(default=None, kw_only=True)
    """What becomes of a value that stands for nothing: null, empty, 0."""
    export: Export | None = field(default=None, kw_only=True)
    """None: the key is imported only."""
    reports_default: bool = field(default=False, kw_only=True)
    """Without a counterpart, it is reported also where the key is absent."""

    def conclude(self, settings: Settings, key: str) -> Conclusion:
        """Return what becomes of a key that the rule is for."""
        value = settings[key]  # the type check comes first, whatever else decides
        if self.needs and not settings[self.needs[0]]:
            return dead(self.needs[1])
        return self.unset if self.unset and not value else self.convert(settings, key)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Keys that share a reason; `*` stands for anything."""

    reason: str
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class System:
    """A source system: every key it knows, and what becomes of each."""

    name: Source
    title: str
    version: str
    """What its names and defaults were read from: release or commit, with its date."""
    rules: tuple[Rule, ...]
    ignored: tuple[Group, ...]
    """Keys without a counterpart, by reason."""
    dead: tuple[Group, ...]
    """Keys that the system ships or documents and does not read."""
    always: Mapping[str, str]
    """What the system does in any case, without a key for it: {our key: what}."""
    assumptions: Callable[[Settings], tuple[str, ...]]
    """What the conversion had to assume about a file."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{older name: name now}."""
    parses_text: bool = True
    """Its files are flat, and its argument parser makes numbers and truth values of text."""

    def find_rule(self, key: str) -> Rule | None:
        """Return the rule of a key, if it has one."""
        return next((rule for rule in self.rules if fnmatchcase(key, rule.key)), None)

    def known(self) -> tuple[str, ...]:
        """Return every key and pattern."""
        return (*(rule.key for rule in self.rules), *(key for group in (*self.dead, *self.ignored) for key in group.keys))


@dataclass(frozen=True, kw_only=True)
class Entry(Conclusion):
    """One line of the report: a key, its value, and the conclusion about it."""

    key: str
    value: Any
    is_default: bool = False
    """The key is absent from the file; the value is the source system's default."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A converted configuration and what became of every key of its source."""

    path: Path
    title: str
    """Name of the source system."""
    version: str
    """What its names and defaults were read from."""
    values: Mapping[str, Any]
    """Nested plain values: what was mapped, with the rewards that are left to write."""
    config: RunConfig
    """The same, resolved and valid, without those rewards."""
    missing_rewards: tuple[str, ...]
    """Rewards that have no counterpart; `grpo check` refuses the configuration until they are written or removed."""
    entries: tuple[Entry, ...]
    """Every key of the file exactly once, then defaults of the source system that are not ours."""
    notes: tuple[str, ...]
    """What had to be assumed, or is left to fill in."""
    warnings: tuple[str, ...]
    """The warnings of `grpo check` about the result."""

    def listed(self, fate: Fate) -> tuple[Entry, ...]:
        """Return the entries of one list."""
        return tuple(entry for entry in self.entries if entry.fate == fate)
