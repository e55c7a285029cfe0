"""Which parts run here, and why the others do not."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu_check.devices import Machine
from benchmarks.gpu_check.environment import Environment
from benchmarks.gpu_check.part import Part

GIGABYTE = 10**9


class UnknownPartError(Exception):
    """A part was named that is not there; the message has the nearest name."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A part, and why it is skipped."""

    part: Part
    reason: str | None
    """None = it runs."""


def select(parts: Sequence[Part], names: Sequence[str]) -> tuple[Part, ...]:
    """Return the named parts in their own order, all where none is named.

    Args:
        parts: there are.
        names: each may hold several, between commas.

    Raises:
        UnknownPartError: one is not there.
    """
    wanted = [name for text in names for name in text.split(",") if name]
    known = [part.name for part in parts]
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UnknownPartError(f"unknown part {name!r}: {hint}parts: {', '.join(known)}")
    return tuple(part for part in parts if not wanted or part.name in wanted)


def plan(parts: Sequence[Part], machine: Machine, environment: Environment) -> tuple[Planned, ...]:
    """Return the parts, each with the reason to skip it, if there is one."""
    return tuple(Planned(part=part, reason=why_not(part, machine, environment)) for part in parts)


def why_not(part: Part, machine: Machine, environment: Environment) -> str | None:
    """Return why a part cannot run here, None where it can."""
    if missing := [name for name in part.modules if name not in environment.modules]:
        return f"needs the Python module{'s' * (len(missing) > 1)} {', '.join(missing)}"
    if machine.problem is not None:
        return f"torch cannot be asked for devices: {machine.problem}"
    return _no_device(part, machine, environment.device) or part.lacks(environment)


def _no_device(part: Part, machine: Machine, device: str) -> str | None:
    if device == "cpu":
        return None if part.on_cpu else "needs CUDA, and --device is cpu"
    count = len(machine.devices)
    if count < part.devices:
        return (
            "needs a CUDA device, and torch finds none" if not count else f"needs {part.devices} CUDA devices, {count} is here"
        )
    least = min(machine.devices[: part.devices], key=lambda found: found.free)
    if least.free < part.gigabytes * GIGABYTE:
        free, total = least.free / GIGABYTE, least.total / GIGABYTE
        return f"needs {part.gigabytes:g} GB of free GPU memory; of {least.name} {free:.1f} of {total:.1f} GB are free"
    return None


def describe(planned: Sequence[Planned], machine: Machine) -> str:
    """Return the plan as text: every part with its purpose, need, time, and whether it would run."""
    devices = "; ".join(map(str, machine.devices)) or "no CUDA device"
    torch = f"torch {machine.versions['torch']}" if "torch" in machine.versions else "no torch"
    lines = [f"gpu-check, dry run: {devices}, {torch}; nothing is run or written"]
    for entry in planned:
        part = entry.part
        lines += [
            "",
            f"{part.name}: {part.purpose}",
            f"  needs: {part.need}; about {part.seconds} s, ended after {part.limit:.0f} s",
            "  would run" if entry.reason is None else f"  would be skipped: {entry.reason}",
        ]
    running = [entry.part.seconds for entry in planned if entry.reason is None]
    every = [entry.part.seconds for entry in planned]
    total = f"{len(running)} of {len(every)} parts would run, in about {sum(running) / 60:.1f} minutes"
    return "\n".join([*lines, "", f"{total}; all {len(every)} take about {sum(every) / 60:.1f}"])
