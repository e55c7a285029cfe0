"""A process that looks at the model of a run as the training will load it, but for the values of its weights.

`python -m grpo_core.run.model_check < facts.json` prints what it finds as JSON lines, as `rehearsal.py` does. It is
a process because importing transformers takes seconds, which pass beside the other checks, and because the transformers that
counts is that of the interpreter that trains. What it found of a folder is kept until a file of the folder changes.
"""

import contextlib
import gc
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_core.config import RunConfig, validate_config
from grpo_core.errors import GrpoError
from grpo_core.machine.jsonfile import write_json
from grpo_core.machine.lifeline import exit_with_lifeline
from grpo_core.policy.outline import Outline
from grpo_core.policy.sources import bundled, scratch
from grpo_core.policy.sources.cache import cache_folder
from grpo_core.policy.sources.find import files_here
from grpo_core.policy.sources.weight_files import files_identity
from grpo_core.run.rehearsing import rehearsing

MODULE = "grpo_core.run.model_check"
SECONDS = 120.0
"""How long it may take."""
CODE = Path(__file__).parents[1] / "policy"
"""What decides whether a model can be used."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What came of it."""

    faults: tuple[str, ...] = ()
    outline: Outline | None = None
    """None where the model is not here, was made here, or has a fault."""


@contextlib.contextmanager
def looking_at_model(config: RunConfig) -> Iterator[Callable[[], Looked]]:
    """Yield what waits for the process, which works meanwhile."""
    source = config.model.source
    folder = None if source.startswith((bundled.PREFIX, scratch.PREFIX)) else files_here(source)
    if folder is None:
        yield Looked
        return
    kept = cache_folder() / "outlines" / f"{_identity(config, folder)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        outline = Outline.of(json.loads(kept.read_bytes()))
        yield lambda: Looked(outline=outline)
        return
    with rehearsing(config, (), SECONDS, MODULE) as findings:

        def wait() -> Looked:
            found = findings()
            if found.faults or found.outline is None:
                return Looked(faults=tuple(found.faults))
            with contextlib.suppress(OSError):  # a cache that cannot be written
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_json(kept, found.outline)
            return Looked(outline=Outline.of(found.outline))

        yield wait


def _identity(config: RunConfig, folder: Path) -> str:
    """Return a digest of all that decides what is found in a folder."""
    files = [file for file in (*folder.iterdir(), *CODE.rglob("*.py")) if file.is_file()]
    versions = [importlib.metadata.version(name) for name in ("transformers", "torch")]
    facts = (files_identity(files), versions, config.training.python, config.model.trust_remote_code)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def main() -> None:
    """Read a configuration from standard input, and print what is found of its model."""
    exit_with_lifeline()
    gc.disable()  # nearly all objects are modules, and walking them takes half a second of three
    config = validate_config(json.load(sys.stdin)["config"])
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a model's own code prints what it likes
        for line in _look(config):
            results.write(json.dumps(line) + "\n")
            results.flush()


def _look(config: RunConfig) -> Iterator[tuple[str, object]]:
    from grpo_core.policy.loading import check_folder

    yield "doing", f"model.source {config.model.source}"
    folder = files_here(config.model.source)
    assert folder is not None
    try:
        yield "outline", asdict(check_folder(folder, config.model.trust_remote_code))
    except GrpoError as error:
        yield "faults", str(error)
    yield "doing", ""


if __name__ == "__main__":
    main()
