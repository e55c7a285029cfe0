"""Where a run's own reward functions are imported from: the folder where it was started, and the one of its configuration.

Both are recorded in origin.json, so that the training process, a resume and a reproduction find the same modules from wherever
they are started. They come last in `sys.path`: they hide nothing that is installed.
"""

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import code_in
from grpo_core.config.origin import find_config
from grpo_core.run.folder import RunDir

FOLDERS_VARIABLE = "GRPO_IMPORT_FROM"
"""More folders, separated as in PATH; a sweep sets it for its runs, whose configuration is a copy in the sweep's folder."""


def import_folders(config: RunConfig, source: Path | str | None = None) -> tuple[str, ...]:
    """Return the folders from which a run that starts here imports its reward functions; none where all are built in.

    Args:
        config: of the run.
        source: its configuration's file, or the name of a preset; None = it comes from no file.
    """
    if not any(code.module is not None for code in code_in(config)):
        return ()
    inherited = [folder for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if folder]
    beside = [] if source is None else [str(find_config(source).parent)]
    return tuple(dict.fromkeys(str(Path(folder).resolve()) for folder in (".", *beside, *inherited)))


def import_from(folders: Iterable[str]) -> None:
    """Let this process find modules in some folders, behind all others."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def import_as_at_start(run_dir: RunDir) -> None:
    """Let this process find the modules of a run's reward functions where the run found them when it started.

    Raises:
        JournalError: origin.json was changed into something else.
    """
    import_from(run_dir.read_origin().import_from)


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder belongs to this user or root and others cannot put a module into it."""
    try:
        facts = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid in (0, os.getuid()) and not facts.st_mode & stat.S_IWOTH
