"""What is checked before a run has a folder, a flow or an MLflow run: all that is cheap, so that one look shows all mistakes.

Interpreter, tracking server, model, adapter, first rows, reward functions, disk and memory of this machine. No weights are
loaded, nothing is downloaded or made. What takes long, or runs code of others, is looked at by processes (`rehearsal.py`).
"""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.errors import ConfigError, GrpoError, ModelError, cause, few_names, listed, name_of
from grpo_core.generation.vllm.opening import require_sampler
from grpo_core.machine.disk import read_json, write_json
from grpo_core.machine.gpus import gpu_memory
from grpo_core.machine.process import LIFELINE_VARIABLE, wait
from grpo_core.policy.lora.facts import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    START,
    TARGETS,
    AdapterFacts,
    Sides,
    layer_faults,
    layers_with_adapter,
    read_adapter,
)
from grpo_core.policy.outline import Outline, beyond_positions, freeze_faults, unreached_by
from grpo_core.policy.sources.cache import cache_folder
from grpo_core.policy.sources.find import (
    MADE_HERE,
    files_identity,
    files_on_hub,
    lacks_chat_template,
    model_here,
    require_model,
)
from grpo_core.run.child import held_lifeline, interpreter, python_path
from grpo_core.run.fit import Fit, fit_of, require_places
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.sizes import (
    BYTES_PER_WEIGHT,
    ModelShape,
    adapter_size,
    disk_need,
    kept_weights,
    reference_rank,
    require_disk,
    shape_for,
    shown_bytes,
)
from grpo_core.run.trackers import require_trackers
from grpo_core.text import kept_uri

CHECKED_VARIABLE = "GRPO_CHECKED"
"""Set for the runs of a sweep, whose configurations were checked before its first run."""
MODULE = "grpo_core.run.rehearsal"
REWARD_SECONDS, LOOK_SECONDS = 30.0, 120.0
"""How long may be taken: by each reward function; by a look at a model, or at the rows before the first function is called."""
ANSWER_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
MODEL_CODE = Path(__file__).parents[1] / "policy"
"""What decides whether a model can be used."""
NO_GPU = "training.device: cuda, and this machine has no GPU"
SHOWN = 3
"""Names in one message."""


@dataclass(frozen=True, kw_only=True)
class AdapterSummary:
    """What a person wants to know of an adapter before it is trained: `weights` are trained, `share` of those of the model.

    `bytes` and `reference_bytes` are in fp32, as each checkpoint has them; `scale` is the factor on B A; `reference_rank` is
    the largest rank that the reference's adapter can reach.
    """

    weights: int
    share: float
    bytes: int
    scale: float
    scale_formula: str
    reference_rank: int
    reference_bytes: int

    def __str__(self) -> str:
        """Return one line about it."""
        return (
            f"{self.weights:,} weights are trained, {100 * self.share:.3g} % of the model's ({shown_bytes(self.bytes)}); scale "
            f"{self.scale:g} = {self.scale_formula}; reference of rank {self.reference_rank} at most "
            f"({shown_bytes(self.reference_bytes)})"
        )


def adapter_summary(config: RunConfig, model: ModelShape | Outline | None) -> AdapterSummary | None:
    """Return what a run's adapter is; None without `model.lora`, or where no layer gets one, or no layer is known."""
    lora = config.model.lora
    size = None if model is None else adapter_size(config, model.linear_layers)
    if model is None or size is None or lora is None or not size.weights:
        return None
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    return AdapterSummary(
        weights=size.weights,
        share=size.weights / model.parameters,
        bytes=BYTES_PER_WEIGHT * size.weights,
        scale=lora.scale,
        scale_formula=f"alpha {alpha:g} / rank {lora.rank}",
        reference_rank=reference_rank(config, lora),
        reference_bytes=BYTES_PER_WEIGHT * size.reference,
    )


def look_at_adapter(
    config: RunConfig, layers: Mapping[str, Sides] | None, outline: Outline | None = None
) -> tuple[list[str], list[str]]:
    """Return (why a run cannot have its adapter, what is doubtful about it), each in one line.

    Args:
        config: of the run.
        layers: of its model that can have one; None where its files do not tell, or are not here.
        outline: of its model, if that is known.
    """
    lora, warnings = config.model.lora, list[str]()
    if lora is None:
        return [], []
    faults = [] if layers is None else [*layer_faults(lora, layers)]
    if outline is not None and (unreached := unreached_by(config, outline)) is not None:
        warnings.append(unreached)
    if lora.init_from is None:
        return faults, warnings
    what = f"{START} {name_of(lora.init_from, 200)}"
    try:
        folder = model_here(lora.init_from)
        if folder is None:
            lacking = sorted({ADAPTER_CONFIG, ADAPTER_WEIGHTS} - set(files_on_hub(START, lora.init_from)))
            return [*faults, *(f"{what}: the hub's repository has no {name}" for name in lacking)], warnings
        facts = read_adapter(folder)
    except ModelError as error:
        return [*faults, str(error) if str(error).startswith(START) else f"{START}: {error}"], warnings
    source, base = config.model.source, facts.base_name
    if base is not None and base != source and Path(base).expanduser().resolve() != Path(source).expanduser().resolve():
        warnings.append(
            f"{what}: was trained on {name_of(base, 200)}, and model.source is {name_of(source, 200)}; it fits no other weights"
        )
    return [*faults, *_differences(lora, facts, what, layers or {})], warnings


def _differences(lora: LoraConfig, facts: AdapterFacts, what: str, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield how the adapter that a run begins with differs from that of the configuration."""
    if facts.rank != lora.rank:
        yield f"model.lora.rank: {lora.rank} here, {facts.rank} in {what}; set it to {facts.rank}"
    elif not math.isclose(facts.alpha_scale, lora.scale, rel_tol=1e-9):
        yield (
            f"model.lora.alpha: the scale is {lora.scale:g} here, and {facts.alpha_scale:g} in {what}"
            f"; set it to {facts.alpha_scale * facts.rank!r}"
        )
    if others := sorted(name for name, sides in facts.shapes.items() if layers and layers.get(name) != sides):
        yield (
            f"{what}: adapts {few_names(others, SHOWN)}, which the model in model.source does not have in that shape; it is "
            "another model's"
        )
        return
    wanted = dict(layers_with_adapter(lora, layers or facts.shapes))
    if different := sorted(wanted.keys() ^ facts.shapes.keys()):
        ends = sorted({name.rpartition(".")[2] for name in facts.shapes})
        yield (
            f"{TARGETS}: names other layers than those of {what} (among them {few_names(different, SHOWN)}), which adapts "
            f"{len(facts.shapes)}; set it to [{', '.join(ends)}], or to their whole names"
        )


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What came of the checks, each in one line: `faults`, why the run cannot start here, and `warnings`, what may end it.

    `notes` are worth a look: the end of the first prompt, as the model reads it. `fit` is None where the shape of the model is
    not known, `adapter` without one, or where the layers of the model are not known.
    """

    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fit: Fit | None = None
    adapter: AdapterSummary | None = None


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
    program = interpreter(config.training.python)
    if shutil.which(program) is None:
        return Preflight(faults=(f"training.python: {program!r} is no program that can be run",), warnings=())
    source, of_model, disk = config.model.source, list[str](), list[str]()
    with _refusals(of_model):
        require_model(source)
        if config.data.chat_template and lacks_chat_template(source):
            raise ModelError(f"data.chat_template: on, but the tokenizer of {source} has no chat template; set it to false")
    with ThreadPoolExecutor() as beside:
        of_data = beside.submit(_look, "data", config, folders)
        outlined = None if of_model else beside.submit(_outline, config, of_model)
        own = [] if config.training.device != "cuda" or gpu_memory() is not None else [NO_GPU]
        own += _server_faults(config) if is_tracked else ()
        with _refusals(own):
            require_sampler([config])
        with _refusals(own):
            require_trackers(config if is_tracked else RunConfig())
            require_places([config])
        with _refusals(disk):
            _require_disk_of(config, run_path)
    found, outline = of_data.result(), None if outlined is None else outlined.result()
    of_model, shape = [*of_model, *freeze_faults(config, outline)], shape_for(config, outline)
    fit = None if shape is None else fit_of(config, shape)
    model = outline or shape
    too_long = None if outline is None else beyond_positions(config, outline)
    of_adapter, doubtful = look_at_adapter(config, None if model is None else model.linear_layers, outline)
    return Preflight(
        faults=(*own, *of_model, *disk, *of_adapter, *memory_faults(fit), *found["faults"]),
        warnings=(*([too_long] if too_long else ()), *doubtful, *(() if fit is None else fit.warnings()), *found["warnings"]),
        notes=tuple(found["notes"]),
        fit=fit,
        adapter=adapter_summary(config, model),
    )


def check_elsewhere(config: RunConfig, device_memory: int) -> Preflight:
    """Return what is wrong with a run that is to start on another machine: what the configuration and the shape tell.

    Args:
        config: of the run.
        device_memory: bytes of its GPU.
    """
    lora, shape = config.model.lora, shape_for(config)
    if shape is None:
        return Preflight(faults=(), warnings=())
    fit, layers = fit_of(config, shape, device_memory), () if lora is None else layer_faults(lora, shape.linear_layers)
    faults, adapter = (*layers, *memory_faults(fit)), adapter_summary(config, shape)
    return Preflight(faults=faults, warnings=fit.warnings(), fit=fit, adapter=adapter)


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


def _outline(config: RunConfig, faults: list[str]) -> Outline | None:
    """Return the outline of a run's model; what is wrong with the model is added to `faults`.

    What was found of a folder is kept until a file of the folder changes. There is no outline of a model that is not here, or
    that was made here.
    """
    source = config.model.source
    folder = None if source.startswith(MADE_HERE) else model_here(source)
    if folder is None:
        return None
    files = [file for file in (*folder.iterdir(), *MODEL_CODE.rglob("*.py")) if file.is_file()]
    versions = [importlib.metadata.version(name) for name in ("transformers", "torch")]
    facts = (files_identity(files), versions, config.training.python, config.model.trust_remote_code)
    kept = cache_folder() / "outlines" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"
    if kept.exists():
        return Outline.of(read_json(kept))
    found = _look("model", config, ())
    faults += found["faults"]
    if found["faults"] or not found["outline"]:
        return None
    with contextlib.suppress(OSError):  # a cache that cannot be written
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, found["outline"][0])
    return Outline.of(found["outline"][0])


def _look(part: str, config: RunConfig, folders: Sequence[str]) -> dict[str, list[Any]]:
    """Return what `rehearsal.py` finds: faults, warnings, notes, outline; whatever it has started is killed at the end.

    Args:
        part: of the run that is looked at, `model` or `data`.
        config: of the run.
        folders: from which reward functions are imported, beside what is installed.

    What it was doing when it died or hung is a fault.
    """
    program = interpreter(config.training.python)
    facts, file = json.dumps({"config": config.model_dump(mode="json"), "folders": list(folders)}), tempfile.TemporaryFile
    with held_lifeline() as lifeline, file() as given, file() as output, file() as errors:
        given.write(facts.encode())
        given.seek(0)
        process = subprocess.Popen(
            [program, "-m", MODULE, part],
            stdin=given,
            stdout=output,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": python_path(), LIFELINE_VARIABLE: str(lifeline)},
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        try:
            seconds = wait(process, output.fileno(), LOOK_SECONDS, b'["doing", "rewards.', REWARD_SECONDS * len(config.rewards))
            code = process.returncode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        lines, last = output.read().splitlines(), errors.read()[-10_000:].decode(errors="replace").strip().split("\n")[-1]
    found = defaultdict[str, list[Any]](list, {"doing": [f"training.python {program}"]})
    for kind, content in map(json.loads, lines):
        found[kind].append(content)
    doing = found["doing"][-1]
    if code is None:
        remedy = f"; {doing.partition('.fn')[0]}.dry_run=false does not call it" if doing.startswith("rewards") else ""
        found["faults"].append(f"{doing}: has not returned after {seconds:.0f} s and was killed{remedy}")
    elif code != 0 or doing:
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        found["faults"].append(f"{doing}: its process died ({ended}{f': {cause(RuntimeError(last))}' if last else ''})")
    return found


def _server_faults(config: RunConfig) -> Iterator[str]:
    """Yield why the tracking server cannot be reached, if there is one that is reached directly."""
    uri = config.tracking.uri or os.environ.get(TRACKING_VARIABLE) or ""
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


@contextlib.contextmanager
def _refusals(faults: list[str]) -> Iterator[None]:
    try:
        yield
    except GrpoError as error:
        faults.append(str(error))


def _require_disk_of(config: RunConfig, run_path: Path | None) -> None:
    model = model_here(config.model.source)
    weights = None if model is None else kept_weights(config, model)
    if weights is not None:  # else it is printed and checked once the model is here
        uri = config.tracking.uri or os.environ.get(TRACKING_VARIABLE) or ""
        # A server keeps artifacts on a disk of its own; one that is no address is refused elsewhere.
        need = disk_need(config, weights, tracked_here="://" not in uri or uri.startswith(("file:", "sqlite:")))
        require_disk("the run", need, run_path or RUNS_FOLDER)


def memory_faults(fit: Fit | None) -> Iterator[str]:
    """Yield a refusal where the states alone do not fit: no size of a pass makes them smaller."""
    if fit is not None and fit.available is not None and fit.need.states > fit.available:
        offloaded, remedy = fit.offloaded_states, ""
        if offloaded is not None and offloaded <= fit.available:
            remedy = f"set reference.offload=true ({shown_bytes(offloaded)}), "
        yield (
            f"memory: {fit.states_formula} = {shown_bytes(fit.need.states)}, and {shown_bytes(fit.available)} are there; "
            f"{remedy}take a smaller model, or a machine with more memory{fit.on_more}"
        )
