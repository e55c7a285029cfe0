"""What is checked before a run has a folder, a flow or an MLflow run: all that is cheap, so that one look shows all mistakes.

Interpreter, tracking server, model, adapter, first rows, reward functions, disk and memory of this machine. No weights are
loaded, nothing is downloaded or made.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, GrpoError, listed
from grpo_core.generation.vllm.opening import require_sampler
from grpo_core.machine.gpus import gpu_memory
from grpo_core.policy.lora.targets import layer_faults
from grpo_core.policy.outline import Outline, beyond_positions
from grpo_core.policy.sources.availability import lacks_chat_template, require_model
from grpo_core.policy.sources.find import model_here
from grpo_core.redaction import kept_uri
from grpo_core.run.adapter_check import AdapterSummary, adapter_faults, adapter_summary, adapter_warnings
from grpo_core.run.announce import require_disk
from grpo_core.run.disk_need import kept_weights, shown_bytes
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.memory_fit import Fit, fit_of, shape_for
from grpo_core.run.model_check import Looked, looking_at_model
from grpo_core.run.model_shape import ModelShape
from grpo_core.run.rehearsing import rehearsing

CHECKED_VARIABLE = "GRPO_CHECKED"
"""Set for the runs of a sweep, whose configurations were checked before its first run."""
REWARD_SECONDS, HUB_SECONDS = 30.0, 90.0
"""How long the look at rows and rewards may take: for each function, and more where rows come from a hub."""
ANSWER_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What came of the checks."""

    faults: tuple[str, ...]
    """Why the run cannot start on this machine, each in one line."""
    warnings: tuple[str, ...]
    """What may end it later."""
    notes: tuple[str, ...] = ()
    """The end of the first prompt, as the model reads it, where its tokenizer is here."""
    fit: Fit | None = None
    """Of its memory; None where the shape of its model is not known."""
    adapter: AdapterSummary | None = None
    """None without one, or where the layers of its model are not known."""


def check_start(
    config: RunConfig, folders: Sequence[str], run_path: Path | None = None, *, is_tracked: bool = True
) -> Preflight:
    """Return what is wrong with a run that is to start here.

    Args:
        config: of the run.
        folders: from which its reward functions are imported.
        run_path: its folder, for the disk that it lies on; None = a new one below `runs/`.
        is_tracked: whether the run needs its MLflow store; one from Python has none.
    """
    model = [*_model_faults(config)]
    seconds = REWARD_SECONDS * len(config.rewards) + HUB_SECONDS * config.data.source.startswith("hub:")
    try:
        with contextlib.ExitStack() as both:
            looked = Looked if model else both.enter_context(looking_at_model(config))
            rehearsed = both.enter_context(rehearsing(config, folders, seconds))
            own = [*_device_faults(config), *(_server_faults(config) if is_tracked else ()), *_sampler_faults(config)]
            own += [*model, *_disk_faults(config, run_path)]
            found, rehearsal = looked(), rehearsed()  # beside the rest
    except ConfigError as error:
        return Preflight(faults=(str(error),), warnings=())
    outline, shape = found.outline, shape_for(config, found.outline)
    fit = None if shape is None else fit_of(config, shape)
    layers = outline.linear_layers if outline is not None else None if shape is None else shape.linear_layers
    bound, unbound = ([] if outline is None else [*beyond_positions(config, outline, is_bound=each)] for each in (True, False))
    of_fit = () if fit is None else fit.warnings()
    return Preflight(
        faults=(*own, *found.faults, *bound, *adapter_faults(config, layers), *memory_faults(fit), *rehearsal.faults),
        warnings=(*unbound, *adapter_warnings(config, layers, outline), *of_fit, *rehearsal.warnings),
        notes=tuple(rehearsal.notes),
        fit=fit,
        adapter=_adapter(config, outline or shape),
    )


def check_elsewhere(config: RunConfig, device_memory: int) -> Preflight:
    """Return what is wrong with a run that is to start on another machine: what the configuration and the shape tell.

    Args:
        config: of the run.
        device_memory: bytes of its GPU.
    """
    lora, shape = config.model.lora, shape_for(config)
    fit = None if shape is None else fit_of(config, shape, device_memory)
    layers = () if lora is None or shape is None else layer_faults(lora, shape.linear_layers)
    warnings = () if fit is None else fit.warnings()
    return Preflight(faults=(*layers, *memory_faults(fit)), warnings=warnings, fit=fit, adapter=_adapter(config, shape))


def _adapter(config: RunConfig, model: Outline | ModelShape | None) -> AdapterSummary | None:
    return None if model is None else adapter_summary(config, model)


def require_start(
    config: RunConfig, folders: Sequence[str], run_path: Path | None = None, *, is_tracked: bool = True
) -> tuple[str, ...]:
    """Return the warnings of `check_start`.

    Raises:
        ConfigError: the run cannot start here; the message lists every reason.
    """
    if os.environ.get(CHECKED_VARIABLE):
        return ()
    found = check_start(config, folders, run_path, is_tracked=is_tracked)
    if found.faults:
        raise ConfigError(listed(found.faults))
    return found.warnings


def _device_faults(config: RunConfig) -> Iterator[str]:
    if config.training.device == "cuda" and gpu_memory() is None:
        yield "training.device: cuda, and this machine has no GPU"


def _server_faults(config: RunConfig) -> Iterator[str]:
    """Yield why the tracking server cannot be reached, if there is one that is reached directly."""
    uri = _tracking_uri(config) or ""
    try:
        parts = urlsplit(uri)
        if parts.scheme not in PORTS or (getproxies().get(parts.scheme) and not proxy_bypass(parts.hostname or "")):
            return
        socket.create_connection((parts.hostname or "", parts.port or PORTS[parts.scheme]), ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        yield (
            f"tracking.uri {kept_uri(uri)}: the tracking server cannot be reached ({error}); start it, correct tracking.uri "
            "or MLFLOW_TRACKING_URI, or unset both to track in a local SQLite file"
        )


def _sampler_faults(config: RunConfig) -> Iterator[str]:
    try:
        require_sampler([config])
    except GrpoError as error:
        yield str(error)


def _model_faults(config: RunConfig) -> Iterator[str]:
    try:
        require_model(config.model.source)
        if config.data.chat_template and lacks_chat_template(config.model.source):
            yield f"data.chat_template: on, but the tokenizer of {config.model.source} has no chat template; set it to false"
    except GrpoError as error:
        yield str(error)


def _disk_faults(config: RunConfig, run_path: Path | None) -> Iterator[str]:
    model = model_here(config.model.source)
    weights = None if model is None else kept_weights(config, model)
    if weights is None:  # printed and checked once the model is here
        return
    folder = run_path or RUNS_FOLDER
    # A server keeps artifacts on a disk of its own.
    uri = _tracking_uri(config) or ""
    tracked_here = "://" not in uri or uri.startswith(("file:", "sqlite:"))  # one that is no address is refused elsewhere
    beside = folder if run_path is None else folder.parent
    try:
        require_disk(config, weights, folder, beside / "mlartifacts" if tracked_here else None)
    except GrpoError as error:
        yield str(error)


def _tracking_uri(config: RunConfig) -> str | None:
    return config.tracking.uri or os.environ.get(TRACKING_VARIABLE)


def memory_faults(fit: Fit | None) -> Iterator[str]:
    """Yield a refusal where the states alone do not fit: no size of a pass makes them smaller."""
    if fit is not None and fit.available is not None and fit.need.states > fit.available:
        offloaded = fit.offloaded_states
        helps = offloaded is not None and offloaded <= fit.available
        remedy = f"set reference.offload=true ({shown_bytes(offloaded)}), " if offloaded is not None and helps else ""
        yield (
            f"memory: {fit.states_formula} = {shown_bytes(fit.need.states)}, and {shown_bytes(fit.available)} are there; "
            f"{remedy}take a smaller model, or a machine with more memory"
        )
