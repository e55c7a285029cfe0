"""More seeds, values of axes or trials for a sweep that has runs: what may be added, and what its report says of that."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from grpo_core.errors import ConfigError, shown
from grpo_core.sweep.display import first_few, knob_name, level_name
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.plan import make_plan


def extended(stored: StoredSweep, changes: Mapping[str, Any]) -> StoredSweep:
    """Return a sweep with more seeds, values or trials, or another budget; `SweepDir.write` writes it down.

    Args:
        stored: the sweep as it is.
        changes: {key: value}, for example {"seeds": [0, 1, 2], "axes.loss.beta": [0.1, 1]}: whole lists, which keep all that
            there is.

    Raises:
        ConfigError: something would be left out or changed, or the sweep would contradict itself.
    """
    sweep, sentences = stored.plan.sweep, list(stored.extensions)
    values: dict[str, Any] = {**sweep.model_dump(mode="json"), "base": str(stored.base), "overrides": {}}
    for key, wanted in changes.items():
        section, _, rest = key.partition(".")
        holder, name = (values[section], rest) if section in ("axes", "budget") else (values, key)
        if section not in ("budget", *(("seeds", "axes") if sweep.sampler == "grid" else ("trials",))) or name not in holder:
            more = "seeds and values of axes" if sweep.sampler == "grid" else f"trials, for example trials={sweep.trials}0"
            remedy = f"another {key} is another sweep, which `grpo sweep FILE` begins"
            raise ConfigError(f"{key}: --extend adds {more} to this sweep, and changes its budget; {remedy}")
        before, holder[name] = holder[name], wanted
        if section == "budget":
            continue
        old, new = (before, wanted) if section != "trials" else (range(before), range(wanted) if type(wanted) is int else ())
        missing = [one for one in old if not isinstance(new, Sequence) or one not in new]
        if missing:
            raise ConfigError(f"{key}: {shown(wanted)} leaves out {_some(name, missing)}; --extend keeps all that was run")
        if section != "trials":  # 1.0 is the 1 that has runs
            holder[name] = [next((one for one in old if one == value), value) for value in new]
        if added := [one for one in new if one not in old]:
            verb, day = "were" if len(added) > 1 else "was", f"{datetime.now(UTC):%Y-%m-%d}"
            sentences.append(f"{knob_name(name)}: {_some(name, added)} {verb} added after a look at {_some(name, old)} ({day})")
    return replace(stored, plan=make_plan(values), extensions=tuple(sentences)) if changes else stored


def _some(name: str, values: Sequence[Any]) -> str:
    return first_few([level_name(name, value) for value in values])


def extension_note(extensions: Sequence[str]) -> str:
    """Return what the reader of a report must know of what was added to the sweep; empty where nothing was.

    >>> extension_note(["seeds: 2, 3 were added after a look at 0, 1 (2026-01-31)"])
    'seeds: 2, 3 were added after a look at 0, 1 (2026-01-31); no p-value or interval allows for that choice'
    """
    return "; ".join([*extensions, "no p-value or interval allows for that choice"]) if extensions else ""
