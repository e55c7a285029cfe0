"""Builders of the common kinds of rule, and the arithmetic that several systems need."""

import math
from typing import Any

from grpo_core.interop.readers import Reader
from grpo_core.interop.records import Convert, Group, Outcome, Rule, Settings, mapped, no_counterpart

OFF = "off in the file, nothing to replace"


def rule(  # noqa: PLR0917  (the tables read as columns)
    key: str, read: Reader, default: Any, convert: Convert, ours: str, remark: str = "", *, reports_default: bool = False
) -> Rule:
    """Return a rule; see `Rule` for what its parts are."""
    return Rule(key=key, default=default, read=read, convert=convert, ours=ours, remark=remark, reports_default=reports_default)


def copied(key: str, ours: str, read: Reader, default: Any, remark: str = "") -> Rule:
    """Return the rule of a key whose value is ours as it is."""

    def convert(settings: Settings, name: str) -> Outcome:
        return mapped({ours: settings[name]}, remark)

    return Rule(key=key, default=default, read=read, convert=convert, ours=ours, remark=remark)


def feature(key: str, read: Reader, default: Any, reason: str, *, off: tuple[Any, ...] | None = None) -> Rule:
    """Return the rule of a feature that does not exist here: harmless where it is off (its default, or one of `off`)."""

    def convert(settings: Settings, name: str) -> Outcome:
        value = settings[name]
        is_off = value in (off if off is not None else (default,))
        return no_counterpart(OFF if is_off else reason, differs=not is_off)

    return Rule(key=key, default=default, read=read, convert=convert, ours="", remark=reason)


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
