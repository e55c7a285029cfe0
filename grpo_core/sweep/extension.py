"""More seeds, values of axes or trials for a sweep that has runs: what may be added, and what its report says of that."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from grpo_core.config.spelling import level_name
from grpo_core.errors import ConfigError, shown
from grpo_core.sweep.display import first_few, knob_name
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
    values: dict[str, Any] = {**sweep.model_dump(mode="json"), "base": str(stored.base)}
    for key, wanted in changes.items():
        section, _, rest = key.partition(".")
        holder, name = (values[section], rest) if section in ("axes", "budget") else (values, key)
        if section not in ("budget", *(("seeds", "axes") if sweep.sampler == "grid" else ("trials",))) or name not in holder:
            more = "seeds and values of axes" if sweep.sampler == "grid" else f"trials, for example trials={sweep.trials}0"
            raise ConfigError(
                f"{key}: --extend adds {more} to this sweep, and changes its budget; another {key} is another sweep, which "
                "`grpo sweep FILE` begins"
            )
        old, new = ((), ()) if section == "budget" else (_members(holder[name]), _members(wanted))
        if missing := [one for one in old if one not in new]:
            raise ConfigError(f"{key}: {shown(wanted)} leaves out {_some(name, missing)}; --extend keeps all that was run")
        # 1.0 is the 1 that has runs.
        holder[name] = [next((o for o in old if o == one), one) for one in new] if isinstance(wanted, list) else wanted
        if added := [one for one in new if one not in old]:
            sentences.append(
                f"{knob_name(name)}: {_some(name, added)} added after a look at {_some(name, old)} "
                f"({datetime.now(UTC):%Y-%m-%d}); no p-value or interval allows for that choice"
            )
    return replace(stored, plan=make_plan(values), extensions=tuple(sentences)) if changes else stored


def _members(value: Any) -> Sequence[Any]:
    # Of trials, their numbers.
    return value if isinstance(value, list) else range(value if isinstance(value, int) else 0)


def _some(name: str, values: Sequence[Any]) -> str:
    return first_few([level_name(name, value) for value in values])
