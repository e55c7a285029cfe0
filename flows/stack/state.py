"""What of the stack was started, remembered in one folder: state, databases, artifacts, logs and process ids.

.grpo/stack.json      ports and processes          .grpo/logs/<service>.log
.grpo/prefect/        Prefect's home and database  .grpo/mlflow/  MLflow's database and artifacts
.grpo/prefect/secret  what Prefect asks for        .grpo/grpo-stack  says that the folder is a stack's
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from flows.stack.folder import check_owner
from flows.stack.processes import ProcessId, is_alive
from grpo_core.errors import StackError, cause
from grpo_core.machine.jsonfile import read_json, write_json


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The stack of one folder."""

    folder: Path
    prefect_port: int
    mlflow_port: int
    slots: int
    """Runs at a time, whichever worker takes them."""
    workers: int = 1
    allow_reward: tuple[str, ...] = ()
    """Modules whose functions deployments may name as rewards; a stack of an earlier version has none."""
    project: Path
    """Absolute path of the folder in which it was started: deployments run there, and its settings file lies there."""
    processes: dict[str, ProcessId] = field(default_factory=dict)
    """By service name."""

    @property
    def prefect_address(self) -> str:
        """Prefect's UI."""
        return f"http://127.0.0.1:{self.prefect_port}"

    @property
    def api(self) -> str:
        """Prefect's API."""
        return f"{self.prefect_address}/api"

    @property
    def mlflow_address(self) -> str:
        """MLflow's UI and tracking server."""
        return f"http://127.0.0.1:{self.mlflow_port}"

    def log_file(self, service: str) -> Path:
        """Output of a service."""
        return self.folder / "logs" / f"{service}.log"

    def alive(self, service: str) -> bool:
        """Return whether the process that was started as this service still runs."""
        return service in self.processes and is_alive(self.processes[service])

    def with_process(self, service: str, process: ProcessId) -> Self:
        """Return the stack with one more process, after writing it down."""
        stack = replace(self, processes={**self.processes, service: process})
        stack.write()
        return stack

    def write(self) -> None:
        """Remember it."""
        write_json(_file(self.folder), _STACK.dump_python(self, mode="json", exclude={"folder"}))

    def forget(self) -> None:
        """Remove the file by which a stack is known; databases, artifacts and logs stay."""
        _file(self.folder).unlink(missing_ok=True)


_STACK = TypeAdapter(Stack)


def read_stack(folder: Path) -> Stack | None:
    """Return the stack of a folder, None where none was started.

    Raises:
        StackError: its file cannot be read, or the folder is another user's or a link.
    """
    check_owner(folder)
    try:
        return _STACK.validate_python({**read_json(_file(folder)), "folder": folder})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StackError(
            f"{_file(folder)}: cannot be read ({cause(error)}); end its processes by hand and remove it"
        ) from error


def _file(folder: Path) -> Path:
    return folder / "stack.json"
