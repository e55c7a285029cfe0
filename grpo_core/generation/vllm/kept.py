"""The server of a training: taken from a folder of servers that stay (`records`) and left there, or its own.

A training holds the lock of one place in the folder from the first use to its end, so there are never more servers than
trainings at a time. A server that is taken has the weights of the last run; the sampler loads its own before it asks for
anything, and shows that they are used.
"""

import hashlib
import itertools
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from grpo_core.errors import SamplerError, raised_as
from grpo_core.generation.vllm.client import VllmClient
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.records import (
    CHOICE_SECONDS,
    KEEP_VARIABLE,
    LOCK_FILE,
    ServerFit,
    ServerRecord,
    end_kept_server,
    group_of,
    keeper_in,
    read_record,
    write_record,
)
from grpo_core.generation.vllm.server import VllmServer
from grpo_core.machine.disk import remove
from grpo_core.machine.hardware import kernel_variables
from grpo_core.machine.locks import open_lock, try_lock, waited_lock
from grpo_core.machine.process_id import ProcessId, identify, is_running

logger = logging.getLogger(__name__)

DESCRIPTION_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""What vLLM reads of a model beside its weights, as it is started here."""
THREADS = "OMP_NUM_THREADS"
_left: list[VllmServer] = []
"""Servers that this process has started and left to others: a process object that is thrown away warns of its child."""


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """A place for one server in the folder, which this process holds."""

    folder: Path
    number: int
    lock: IO[bytes]

    @property
    def record_file(self) -> Path:
        """What is known of the server."""
        return self.folder / f"server-{self.number}.json"

    @property
    def log_file(self) -> Path:
        """The server's output."""
        return self.folder / f"server-{self.number}.log"

    def record(self) -> ServerRecord | None:
        """Return what is known of the server that is here; None where there is none, or nothing that can be read."""
        try:
            return read_record(self.record_file)
        except SamplerError:
            return None


class TrainingServer:
    """The server of one training."""

    def __init__(self, settings: ServerSettings, connections: int) -> None:
        """Prepare to take or start one.

        Args:
            settings: what is needed.
            connections: requests at a time.
        """
        self._settings, self._connections = settings, connections
        named = os.environ.get(KEEP_VARIABLE)
        self._folder = Path(named) if named else None
        self._place: ServerPlace | None = None
        self._started: VllmServer | None = None
        """By this process, and not left to others."""

    def start(self) -> VllmClient:
        """Return a client of a server that answers; one that was taken or started here before is ended and replaced.

        Raises:
            SamplerError: none can be started, or the folder cannot be used.
        """
        keeper = None if self._folder is None else keeper_in(self._folder)
        if self._folder is None or keeper is None:
            if self._folder is not None:
                logger.warning("%s: nobody keeps vLLM servers here any more; this run starts its own", self._folder)
            self.stop()
            self._started = VllmServer(self._settings, self._connections)
            return self._started.start()
        with raised_as(SamplerError, f"{self._folder}: no vLLM server can be kept in it ({{cause}})", OSError):
            if self._place is None:
                self._place, record = _take_place(self._folder, self._fit(), self._settings.context, keeper)
                if record is not None and (client := self._take(record)) is not None:
                    return client
            self._end_here()
            return self._start_here(self._place, keeper)

    def stop(self) -> None:
        """End the server at once: nobody is to use it any more."""
        self._end_here()
        if self._place is not None:
            self._place.lock.close()
            self._place = None

    def leave(self) -> None:
        """Leave the server to the next training, if it is one that stays; else end it."""
        place = self._place
        record = None if place is None else place.record()
        if place is None or record is None or not is_running(record.processes[0]) or keeper_in(place.folder) != record.keeper:
            self.stop()
            return
        try:
            write_record(place.record_file, replace(record, used_by=None))
        except OSError:  # a full disk
            self.stop()
            return
        place.lock.close()
        if self._started is not None:
            _left.append(self._started)
        self._place = self._started = None

    def _fit(self) -> ServerFit:
        settings = self._settings
        return ServerFit(
            python=str(settings.python.absolute()),
            architecture=architecture_digest(settings.model),
            dtype=settings.dtype,
            threads=settings.threads,
            kv_cache_gib=settings.kv_cache_gib,
            variables={name: value for name, value in kernel_variables().items() if name != THREADS},
        )

    def _take(self, record: ServerRecord) -> VllmClient | None:
        """Use the server of the place; None where it does not answer."""
        assert self._place is not None
        client = VllmClient(record.url, record.key, self._connections)
        if not client.is_ready():
            logger.warning("the vLLM server of process %d does not answer and is replaced", record.processes[0].pid)
            return None
        write_record(self._place.record_file, replace(record, used_by=identify(os.getpid())))
        logger.info("the vLLM server of process %d is used again; its log is %s", record.processes[0].pid, self._place.log_file)
        return client

    def _start_here(self, place: ServerPlace, keeper: ProcessId) -> VllmClient:
        settings = replace(self._settings, log_file=place.log_file)
        self._started = server = VllmServer(settings, self._connections, keeper)
        try:
            launched = server.launch()
            record = ServerRecord(
                port=launched.port,
                key=launched.key,
                keeper=keeper,
                processes=(launched.process,),
                fit=self._fit(),
                context=settings.context,
                model=str(settings.model),
                used_by=identify(os.getpid()),
            )
            write_record(place.record_file, record)  # now: whoever comes after a kill of this process finds and ends it
            client = server.wait_until_ready()
            write_record(place.record_file, replace(record, processes=group_of(launched.process) or record.processes))
        except BaseException:
            self.stop()
            raise
        return client

    def _end_here(self) -> None:
        """End the server that this training uses, or that its place still holds."""
        if self._started is not None:
            self._started.stop()
            self._started = None
        if self._place is not None:
            if (record := self._place.record()) is not None:
                end_kept_server(record)
            remove(self._place.record_file)


def _take_place(folder: Path, wanted: ServerFit, context: int, keeper: ProcessId) -> tuple[ServerPlace, ServerRecord | None]:
    """Hold a place that nobody uses; return it with its server if that can be used as it is.

    Raises:
        BusyError: others choose for longer than anybody should.
        OSError: the folder cannot be used.
    """
    with waited_lock(folder / LOCK_FILE, "chooses a vLLM server", patience=CHOICE_SECONDS):
        free = _free_places(folder)
        records = [place.record() for place in free]
        suits = [record is not None and suits_training(record, wanted, context, keeper) for record in records]
        index = best_place(suits, [record is not None for record in records])
        for place in free:
            if place is not free[index]:
                place.lock.close()
        return free[index], records[index] if suits[index] else None


def _free_places(folder: Path) -> list[ServerPlace]:
    """Hold and return the places that nobody uses; where all are used, a new one."""
    free: list[ServerPlace] = []
    for number in itertools.count():
        file = folder / f"server-{number}.lock"
        is_new = not file.exists()
        if not (is_new and free):
            lock = open_lock(file)
            if try_lock(lock):
                free.append(ServerPlace(folder=folder, number=number, lock=lock))
            else:
                lock.close()
        if is_new:
            return free
    raise AssertionError("unreachable: numbers do not end")


def best_place(suits: list[bool], holds: list[bool]) -> int:
    """Return which of the free places to use: one whose server suits, else one whose server has to end, else an empty one.

    >>> best_place([False, False, True], [False, True, True]), best_place([False, False], [False, True])
    (2, 1)
    """
    return max(range(len(suits)), key=lambda index: (suits[index], holds[index], -index))


def suits_training(record: ServerRecord, wanted: ServerFit, context: int, keeper: ProcessId) -> bool:
    """Return whether a training can use a server that nobody uses, so far as is known without asking it."""
    is_whole = record.used_by is None and record.keeper == keeper and is_running(record.processes[0])
    return is_whole and record.fit == wanted and record.context >= context


def architecture_digest(model: Path) -> str:
    """Return a SHA-256 of what a model's folder holds beside weights: two models with the same one can share a server."""
    found = {
        name: hashlib.sha256((model / name).read_bytes()).hexdigest() for name in DESCRIPTION_FILES if (model / name).is_file()
    }
    return hashlib.sha256(repr(found or str(model.resolve())).encode()).hexdigest()
