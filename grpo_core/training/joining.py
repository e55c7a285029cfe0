"""How the other nodes of a training come to it: `grpo join`."""

import os
import time

from grpo_core.errors import ConfigError
from grpo_core.machine.nodes import is_first_node
from grpo_core.run.child import POLL_SECONDS, child_environment, interpreter, read_process_state
from grpo_core.run.folder import RunDir
from grpo_core.run.summary import run_status
from grpo_core.training import EVALUATE, LAUNCHER


def join(run_dir: RunDir) -> None:
    """Become the launcher of this node, once that of the first node has started; return where the run is finished.

    The first node prepares what all need: the prompts and, in a cache that they share, the model.

    Raises:
        ConfigError: this is the first node.
        FolderError: another version made the folder.
        JournalError: the journal of the run is damaged.
    """
    if is_first_node():
        raise ConfigError("PET_NODE_RANK: is 0, the first node, which starts with `grpo train`; the others join it")
    while not run_dir.config_file.exists():
        time.sleep(POLL_SECONDS)
    if run_status(run_dir).state == "finished":
        return
    while not _has_started(run_dir):
        time.sleep(POLL_SECONDS)
    program = interpreter(run_dir.read_config().training.python)
    os.execvpe(program, [program, "-m", LAUNCHER, str(run_dir.path), EVALUATE], child_environment())


def _has_started(run_dir: RunDir) -> bool:
    """Return whether the first node has started the training; its process ids say nothing here."""
    state = read_process_state(run_dir.process_file)
    return state.pid is not None and state.returncode is None
