"""The weights with which a run begins: those of its model and, where it begins with one, of its adapter, each by its digest.

A checkpoint with an adapter holds neither: resumed, repeated, evaluated or merged with other weights it would be another
policy, and nothing else would say so.
"""

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.errors import ModelError
from grpo_core.policy.lora.facts import START
from grpo_core.policy.saved import STATE_FILE, list_checkpoints, stored_initial
from grpo_core.policy.sources.find import folder_of, model_here, resolve_adapter, resolve_model, weights_digest
from grpo_core.run.folder import RunDir

BASE = "model.source"
DIGESTS = {BASE: "model_digest", START: "adapter_digest"}
"""What the provenance calls the digest of each."""
FOLDERS = "folders"
"""In it: where each of the two lay, if it was a folder."""
SHOWN = 12
"""Digits of a digest in a message."""


@dataclass(frozen=True, kw_only=True)
class StartWeights:
    """SHA-256 of the weights with which a run begins: of `model.source`, and of `model.lora.init_from`.

    There is none of an adapter where a run begins without one, or where it is not here any more.
    """

    base: str
    adapter: str | None = None

    @property
    def policy(self) -> str:
        """Of the initial policy: of both."""
        return self.base if self.adapter is None else hashlib.sha256(bytes.fromhex(self.base + self.adapter)).hexdigest()

    def facts(self) -> dict[str, str]:
        """Return what the provenance holds of them; of an adapter nothing where there is none."""
        return {DIGESTS[BASE]: self.base, **({} if self.adapter is None else {DIGESTS[START]: self.adapter})}


def start_of(config: RunConfig) -> str | None:
    """Return `model.lora.init_from`; None without an adapter."""
    return None if config.model.lora is None else config.model.lora.init_from


def sources_of(config: RunConfig) -> dict[str, str]:
    """Return what names the weights with which a configuration begins, by key."""
    start = start_of(config)
    return {BASE: config.model.source, **({} if start is None else {START: start})}


def start_weights(config: RunConfig, folder: Path, digest: Callable[[Path], str] = weights_digest) -> StartWeights:
    """Return the digests of the weights with which a configuration begins.

    Args:
        config: of a run.
        folder: of its model.
        digest: of the weights in a folder.

    Raises:
        ModelError: the adapter cannot be found.
    """
    start = start_of(config)
    return StartWeights(base=digest(folder), adapter=None if start is None else digest(resolve_adapter(start)))


def weights_here(config: RunConfig, folder: Path, digest: Callable[[Path], str] = weights_digest) -> StartWeights:
    """Return the same as `start_weights`, without the adapter where it is not on this machine."""
    start = start_of(config)
    adapter = None if start is None else model_here(start)
    return StartWeights(base=digest(folder), adapter=None if adapter is None else digest(adapter))


def start_folders(config: RunConfig) -> dict[str, str]:
    """Return, by key, where model and adapter of a configuration lie that are folders: from elsewhere a path names another."""
    folders = {key: folder_of(source) for key, source in sources_of(config).items()}
    return {key: str(folder.absolute()) for key, folder in folders.items() if folder is not None}


def start_places(run_dir: RunDir) -> dict[str, str]:
    """Return what `start_folders` gave when a run, or the one that it repeats, began.

    Raises:
        JournalError: the provenance was changed into something else.
    """
    facts = run_dir.read_provenance() or RunDir(run_dir.original).read_provenance()
    places = facts.get(FOLDERS)
    return {key: str(places[key]) for key in (BASE, START) if key in places} if isinstance(places, dict) else {}


def config_here(run_dir: RunDir) -> RunConfig:
    """Return the configuration of a run as it works from any folder.

    Model and adapter that are no folders here are looked for where they lay when the run began: a path may be a relative one.
    """
    config, places = run_dir.read_config(), start_places(run_dir)
    lacking = {key for key, source in sources_of(config).items() if folder_of(source) is None}
    moved = {key: place for key, place in places.items() if key in lacking and Path(place).is_dir()}
    return validate_config(apply_overrides(config.model_dump(mode="json"), moved)) if moved else config


def find_model(run_dir: RunDir, digest: Callable[[Path], str] = weights_digest) -> Path:
    """Return the folder of a run's model, or where that is gone or holds other weights, of the run's own newest policy.

    A run that trains all weights has in its checkpoints what it takes to resume: configuration, tokenizer and weights here, and
    the initial policy beside them (`policy/checkpoint.py`).

    Args:
        run_dir: of the run.
        digest: of the weights in a folder.

    Raises:
        ModelError: it cannot be found; the message has the folder in which it was when the run began.
    """
    model, recorded = config_here(run_dir).model, run_dir.read_provenance().get(DIGESTS[BASE])
    has_own = model.lora is None and stored_initial(run_dir.checkpoints) is not None
    try:
        folder = resolve_model(model.source, model.trust_remote_code)
        if not has_own or recorded in (None, digest(folder)):
            return folder
    except ModelError as error:
        if not has_own:
            raise ModelError(f"{error}{where_it_was(run_dir, BASE)}") from error
    return _newest_whole(run_dir) / "policy"


def _newest_whole(run_dir: RunDir) -> Path:
    from grpo_core.policy.checkpoint import verify_checkpoint  # it loads torch

    for checkpoint in reversed(list_checkpoints(run_dir.checkpoints)):
        with contextlib.suppress(ModelError):
            verify_checkpoint(checkpoint)
            return checkpoint
    raise ModelError(
        f"run dir {run_dir.path}: no checkpoint is whole, so the run cannot be resumed{where_it_was(run_dir, BASE)}"
    )


def where_it_was(run_dir: RunDir, key: str) -> str:
    """Return how a message about what a run lacks ends: with the folder that it was when the run began, if it was one."""
    place = start_places(run_dir).get(key)
    return "" if place is None else f". When this run began it was {place}, which is gone: put it back"


def other_weights(facts: Mapping[str, Any], config: RunConfig, found: StartWeights, what: str) -> dict[str, str]:
    """Return {key: sentence with both digests} of the weights that are others than those that were recorded.

    Args:
        facts: the provenance of a run; empty where none is known.
        config: of the run.
        found: the weights that are there now; an adapter that is not there is not compared.
        what: was done with those that were recorded, as the end of a sentence.
    """
    named = {key: f"{key} {source}" for key, source in sources_of(config).items()}
    now = {BASE: found.base, START: found.adapter}
    return {
        key: f"{name}: has weights (SHA-256 {digest[:SHOWN]}) that are not those {what} ({recorded[:SHOWN]})"
        for key, name in named.items()
        if (digest := now[key]) is not None and (recorded := facts.get(DIGESTS[key], digest)) != digest
    }


def require_base(config: RunConfig, folder: Path, digest: Callable[[Path], str] = weights_digest) -> None:
    """Refuse to begin with an adapter on another base than the one on which a run, in whose folder it lies, has trained it.

    Args:
        config: of the run that begins.
        folder: of its model.
        digest: of the weights in a folder.

    Raises:
        ModelError: names the base, and both digests.
    """
    start = start_of(config)
    trained = None if start is None else run_of(start)
    if trained is None:
        return
    theirs = trained.read_config()
    now = theirs.model_copy(update={"model": theirs.model.model_copy(update={"source": config.model.source})})
    what = f"on which {trained.path} has trained the adapter {start}"
    fault = other_weights(trained.read_provenance(), now, weights_here(theirs, folder, digest), what).get(BASE)
    if fault is not None:
        remedy = "restore them; to begin with it on others on purpose, copy the adapter's folder out of its run"
        raise ModelError(f"{fault}: an adapter fits no other weights; {remedy}")


def run_of(policy: str) -> RunDir | None:
    """Return the run that a policy's folder lies in, as a part of a checkpoint or as it was downloaded; None where in none."""
    folder = folder_of(policy)
    places = () if folder is None else tuple(folder.resolve().parents)
    is_checkpoint = len(places) > 2 and (places[0] / STATE_FILE).is_file()
    runs = [RunDir(place) for place in (places[2:3] if is_checkpoint else places[:1])]
    return next((run for run in runs if run.config_file.is_file() and run.provenance_file.is_file()), None)
