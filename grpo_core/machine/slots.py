"""The slots of a stack (`grpo up --slots N`, GRPO_SLOTS): each is the place of one process of a run, on one GPU.

They are locks, which a child holds to its own end: the work pool's limit counts flow runs, and a training that is left to
finish its step outlives its run. Whoever waits for slots holds a numbered ticket, a lock as well, and only the lowest number
takes slots: so runs of few processes do not overtake one of many, and one that is killed while it waits keeps nobody waiting.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grpo_core.errors import ConfigError
from grpo_core.machine.gpus import VISIBLE_VARIABLE, slot_count, visible_gpus
from grpo_core.machine.locks import lock_holder, open_lock, try_lock, waited_lock

FOLDER_VARIABLE = "GRPO_SLOT_FOLDER"
"""Where the slots' locks are; set, with their number, by whoever starts the worker. Without them nothing is limited."""
TICKET = "waits-"


@dataclass(frozen=True, kw_only=True)
class HeldSlots:
    """What a child gets of the slots that are held for it."""

    descriptors: tuple[int, ...] = ()
    """Open files that it must inherit, to hold the slots to its own end."""
    gpus: tuple[str, ...] = ()
    """Those that its slots name, in their order; none where there are no GPUs, or no slots."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable that lets it see these GPUs alone."""
        return {VISIBLE_VARIABLE: ",".join(self.gpus)} if self.gpus else {}


def slot_limit() -> int:
    """Return how many processes of runs this machine's stack lets run at a time; 0 where nothing is limited."""
    return slot_count() if os.environ.get(FOLDER_VARIABLE) else 0


def require_slots(count: int) -> None:
    """Refuse a run that would wait for ever.

    Raises:
        ConfigError: it has more processes here than there are slots.
    """
    if 0 < (limit := slot_limit()) < count:
        raise ConfigError(
            f"training.processes: {count} on this machine take {count} slots, and there are {limit} (`grpo up --slots`)"
        )


@contextlib.contextmanager
def held_slots(count: int, wait: Callable[[], None], say: Callable[[str], None] = lambda _: None) -> Iterator[HeldSlots]:
    """Hold slots while inside, all that are asked for or none, in the order of asking.

    Slot i names GPU i modulo the number of visible GPUs; the slots of a run name different ones, if there are enough for it.

    Args:
        count: slots, one for each process.
        wait: called between two attempts while too few slots are free; what it raises ends the waiting.
        say: takes a line that names the holders, when the wait begins.

    Raises:
        ConfigError: there are fewer slots.
    """
    require_slots(count)
    if not slot_limit():
        yield HeldSlots()
        return
    folder, gpus = Path(os.environ[FOLDER_VARIABLE]), visible_gpus()
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"slot-{index}" for index in range(slot_limit())]
    with contextlib.ExitStack() as opened:
        slots = [opened.enter_context(open_lock(file)) for file in files]
        with _place_in_queue(folder) as is_first:
            is_said = False
            while not (taken := _take(slots, count, len(gpus)) if is_first() else []):
                if not is_said:
                    holders = dict.fromkeys(filter(None, map(lock_holder, files))) or ["nobody; others asked before"]
                    say(f"waiting for {count} of {len(files)} slot(s), held by {', '.join(holders)}")
                is_said = True
                wait()
        names = dict.fromkeys(gpus[index % len(gpus)] for index in taken if gpus)
        yield HeldSlots(descriptors=tuple(slots[index].fileno() for index in taken), gpus=tuple(names))


def _take(slots: Sequence[IO[bytes]], count: int, gpus: int) -> list[int]:
    """Lock that many free slots and return their numbers; none where there are too few, or on too few GPUs."""
    taken: dict[int, int] = {}
    for index, slot in enumerate(slots):
        place = index % gpus if count <= gpus else index
        if len(taken) < count and place not in taken and try_lock(slot):
            taken[place] = index
    if len(taken) == count:
        return list(taken.values())
    for index in taken.values():
        fcntl.flock(slots[index], fcntl.LOCK_UN)
    return []


@contextlib.contextmanager
def _place_in_queue(folder: Path) -> Iterator[Callable[[], bool]]:
    """Wait in the queue while inside; yield a function that returns whether all who asked before have what they wanted."""
    with contextlib.ExitStack() as held:
        with waited_lock(folder / "queue", "asks for slots"):  # so that a ticket is locked before another is given out
            ticket = folder / f"{TICKET}{max([*_tickets(folder), 0]) + 1}"
            file = held.enter_context(open_lock(ticket))
            try_lock(file)
        number = int(ticket.name.removeprefix(TICKET))
        yield lambda: not any(_is_held(folder / f"{TICKET}{other}") for other in _tickets(folder) if other < number)


def _tickets(folder: Path) -> list[int]:
    return [int(ticket.name.removeprefix(TICKET)) for ticket in folder.glob(f"{TICKET}*")]


def _is_held(ticket: Path) -> bool:
    """Return whether a ticket's owner still waits; remove it otherwise. No number below one that waits is given out anew."""
    with contextlib.suppress(FileNotFoundError), ticket.open("rb") as file:
        if not try_lock(file):
            return True
        ticket.unlink()
    return False
