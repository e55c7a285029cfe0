"""What rules are made of: readers of source values, builders of the common kinds, arithmetic that several systems need.

A reader returns a value of the right type, or raises ValueError with what was expected.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from grpo_core.config.schema import RunConfig
from grpo_core.interop.arguments import Reader
from grpo_core.interop.records import Conclusion, Export, Group, Rule, Settings, dead, mapped, no_counterpart

OFF = "off in the file, nothing to replace"
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
ALL_KEPT = no_counterpart("all are kept there; here the newest training.keep_checkpoints")
NO_SCHEDULE = "optimizer.schedule is constant, linear or cosine; it stays constant"

LARGEST = 1e15
"""Beyond it, no count or factor means anything, and arithmetic would overflow."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == value // 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _reader(words: str, fits: Callable[[Any], bool], convert: Reader = lambda value: value) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"expected {words}")
        return convert(value)

    return read


number = _reader("a number", _is_number)
whole = _reader("a whole number", _is_whole, int)
"""Also one that is written as 8.0."""
positive = _reader("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1, int)
flag = _reader("true or false", lambda value: isinstance(value, bool))
text = _reader("text", _is_text)
numbers = _reader("a list of numbers", _list_of(_is_number))
_several_texts = _reader("text or a list of texts", _list_of(_is_text))


def anything(value: Any) -> Any:
    """Return any value."""
    return value


def texts(value: Any) -> list[str]:
    """Return a list of texts; one text is a list of one."""
    return _several_texts([value] if isinstance(value, str) else value)  # type: ignore[no-any-return]  # checked there


def optional(read: Reader) -> Reader:
    """Return a reader that also takes null."""

    def read_optional(value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise ValueError(f"{error} or null") from error

    return read_optional


def choice(*allowed: Any) -> Reader:
    """Return a reader that takes one of the values; 0 and 1 are not false and true here."""
    names = ", ".join("null" if item is None else str(item) for item in allowed)
    return _reader(f"one of {names}", lambda value: any(value == item and type(value) is type(item) for item in allowed))


def copied(
    key: str,
    ours: str,
    read: Reader,
    default: Any,
    remark: str = "",
    *,
    report: str | None = None,
    zero_is_off: bool = False,
    needs: tuple[str, str] | None = None,
    unset: Conclusion | None = None,
) -> Rule:
    """Return the rule of a key whose value is ours as it is.

    Args:
        key: theirs.
        ours: ours.
        read: type check.
        default: theirs.
        remark: for the documentation, and for the report unless it has its own.
        report: remark of the report.
        zero_is_off: what is null here is written as 0 there, or below it.
        needs: see `Rule`.
        unset: see `Rule`.
    """

    def convert(settings: Settings, name: str) -> Conclusion:
        value = settings[name]
        is_off = zero_is_off and value is not None and value <= 0
        if is_off and unset:
            return unset
        return mapped({ours: None if is_off else value}, remark if report is None else report)

    export: Export = (lambda config, _key: attrgetter(ours)(config) or 0) if zero_is_off else same(ours)
    return Rule(key, read, default, convert, ours, remark, needs=needs, unset=unset, export=export)


def renamed(  # noqa: PLR0917  (the tables read as columns)
    key: str,
    ours: str,
    read: Reader,
    default: Any,
    names: dict[Any, Any],
    remark: str = "",
    *,
    remarks: Mapping[Any, str] = {},
    otherwise: str = "",
    export: Export | None = None,
) -> Rule:
    """Return the rule of a key whose values have other names here.

    Args:
        key: theirs.
        ours: ours.
        read: type check.
        default: theirs.
        names: {their value: ours}.
        remark: for the documentation.
        remarks: {their value: remark of the report}.
        otherwise: why any further value has no counterpart.
        export: the way back, if it is not the first of the names of a value.
    """

    def convert(settings: Settings, name: str) -> Conclusion:
        value = settings[name]
        return (
            mapped({ours: names[value]}, remarks.get(value, "")) if value in names else no_counterpart(otherwise, differs=True)
        )

    return Rule(key, read, default, convert, ours, remark, export=export or named(ours, names))


def without(switch: str, reason: str = "") -> tuple[str, str]:
    """Return `Rule.needs` of a key that does nothing without a switch."""
    return switch, reason or f"does nothing without {switch}"


def same(ours: str) -> Export:
    """Return the way back of a key of ours whose values are the other system's."""
    return lambda config, _key: attrgetter(ours)(config)


def named(ours: str, names: dict[Any, Any]) -> Export:
    """Return the way back of a key of ours by `names`: {their value: ours}; of several names of a value, the first counts."""
    theirs = {value: name for name, value in reversed(names.items())}
    return lambda config, _key: theirs[attrgetter(ours)(config)]


def feature(
    key: str,
    read: Reader,
    default: Any,
    reason: str,
    *,
    off: tuple[Any, ...] | None = None,
    differs: bool = True,
    needs: tuple[str, str] | None = None,
) -> Rule:
    """Return the rule of a feature that does not exist here: harmless where it is off (its default, or one of `off`)."""

    def convert(settings: Settings, name: str) -> Conclusion:
        is_off = settings[name] in ((default,) if off is None else off)
        return no_counterpart(OFF if is_off else reason, differs=differs and not is_off)

    return Rule(key, read, default, convert, "", reason, needs=needs)


def adam_betas(first: str, second: str) -> tuple[Rule, Rule]:
    """Return the rules of the keys that hold AdamW's decay rates."""

    def convert(settings: Settings, _key: str) -> Conclusion:
        return mapped({"optimizer.adam_betas": [settings[first], settings[second]]})

    def export(config: RunConfig, key: str) -> float:
        return config.optimizer.adam_betas[key == second]

    return (
        Rule(first, number, 0.9, convert, "optimizer.adam_betas", export=export),
        Rule(second, number, 0.999, convert, "optimizer.adam_betas", export=export),
    )


def with_defaults(rules: tuple[Rule, ...], defaults: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return rules with other defaults: those of another version of a system."""
    assert defaults.keys() <= {rule.key for rule in rules}
    return tuple(replace(rule, default=defaults.get(rule.key, rule.default)) for rule in rules)


def with_rules(rules: tuple[Rule, ...], *others: Rule) -> tuple[Rule, ...]:
    """Return rules in which others stand for those of the same key, and further ones follow."""
    new = {rule.key: rule for rule in others}
    kept = tuple(new.pop(rule.key, rule) for rule in rules)
    return (*kept, *new.values())


def group(reason: str, names: str) -> Group:
    """Return a group of the keys that `names` lists, separated by white space."""
    return Group(reason=reason, keys=tuple(names.split()))


def in_steps(count: float, updates: int, what: str) -> tuple[int, str]:
    """Return (steps, remark) for something that the source counts in optimizer steps, `updates` of them to a step."""
    steps = max(1, round(count / updates))
    if updates == 1:
        return steps, ""
    if steps * updates == count:
        return steps, f"counted in optimizer steps there ({count:g}), in steps of {updates} optimizer steps here"
    exact = f"{what} every {count:g} optimizer steps there is one every {count / updates:.4g} steps here"
    return steps, f"{exact} ({updates} optimizer steps each): rounded"


def warmup_updates(amount: float, total: int | None) -> int | None:
    """Return warm-up in optimizer steps: an amount below 1 is a share of all of them; None where these are not known."""
    if amount >= 1 or amount == 0:
        return int(amount)
    return None if total is None else math.ceil(total * amount)


def warmup_steps(updates: int | None, *, is_ignored: bool, remark: str = "") -> Conclusion:
    """Return what becomes of a warm-up of so many optimizer steps; None = unknown."""
    if is_ignored and updates != 0:
        return dead("the schedule `constant` has no warm-up there (constant_with_warmup has)")
    return (
        no_counterpart("a share of steps that depend on the size of the data; set optimizer.warmup_steps", differs=True)
        if updates is None
        else mapped({"optimizer.warmup_steps": updates}, remark)
    )
