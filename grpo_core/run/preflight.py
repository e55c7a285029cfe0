"""What is checked before a run has a folder, a flow or an MLflow run: all that is cheap, so that one look shows all mistakes.

Interpreter, tracking server, model, adapter, first rows, reward functions, disk and memory of this machine. No weights are
loaded, nothing is downloaded or made. What takes long, or runs code of others, is looked at by processes (`rehearsal.py`).
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, GrpoError, ModelError, cause, listed, raised_as
from grpo_core.generation.vllm.opening import require_sampler
from grpo_core.machine.gpus import gpu_memory
from grpo_core.machine.hardware import CPUINFO, has_bfloat16_kernels
from grpo_core.machine.jsonfile import write_json
from grpo_core.machine.lifeline import LIFELINE_VARIABLE
from grpo_core.policy.lora.facts import layer_faults
from grpo_core.policy.outline import Outline, beyond_positions
from grpo_core.policy.sources.cache import cache_folder
from grpo_core.policy.sources.find import MADE_HERE, files_identity, lacks_chat_template, model_here, require_model
from grpo_core.run.adapter_check import AdapterSummary, adapter_summary, look_at_adapter
from grpo_core.run.child import held_lifeline, interpreter, python_path
from grpo_core.run.disk_need import disk_need, kept_weights, require_disk, shown_bytes
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.memory import Fit, fit_of, will_use_gpu
from grpo_core.run.model_shape import shape_for
from grpo_core.text import kept_uri

CHECKED_VARIABLE = "GRPO_CHECKED"
"""Set for the runs of a sweep, whose configurations were checked before its first run."""
MODULE = "grpo_core.run.rehearsal"
REWARD_SECONDS, HUB_SECONDS, MODEL_SECONDS = 30.0, 90.0, 120.0
"""How long the looks may take: for each reward function, more where rows come from a hub; at a model."""
ANSWER_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
MODEL_CODE = Path(__file__).parents[1] / "policy"
"""What decides whether a model can be used."""
Findings = dict[str, list[Any]]
"""What a process found: faults, warnings, notes, outline."""


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
    faults = _refusal(lambda: _require_model_of(config))
    seconds = REWARD_SECONDS * len(config.rewards) + HUB_SECONDS * config.data.source.startswith("hub:")
    try:
        with contextlib.ExitStack() as both:
            outline_of_model = (lambda: None) if faults else both.enter_context(_looking_at_model(config, faults))
            rehearsed = both.enter_context(_process("data", config, folders, seconds))
            own = [*_device_faults(config), *(_server_faults(config) if is_tracked else ())]
            own += _refusal(lambda: require_sampler([config]))
            disk = _refusal(lambda: _require_disk_of(config, run_path))
            outline, found = outline_of_model(), rehearsed()  # beside the rest
    except ConfigError as error:
        return Preflight(faults=(str(error),), warnings=())
    shape = shape_for(config, outline)
    fit = None if shape is None else fit_of(config, shape)
    layers = outline.linear_layers if outline is not None else None if shape is None else shape.linear_layers
    too_long = None if outline is None else beyond_positions(config, outline)
    of_adapter, doubtful = look_at_adapter(config, layers, outline)
    faults = [*own, *faults, *disk, *of_adapter, *memory_faults(fit), *found["faults"]]
    warnings = [*([too_long] if too_long else ()), *doubtful, *(() if fit is None else fit.warnings())]
    return Preflight(
        faults=tuple(faults),
        warnings=(*warnings, *found["warnings"]),
        notes=tuple(found["notes"]),
        fit=fit,
        adapter=adapter_summary(config, outline or shape),
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
    return Preflight(faults=(*layers, *memory_faults(fit)), warnings=warnings, fit=fit, adapter=adapter_summary(config, shape))


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


@contextlib.contextmanager
def _looking_at_model(config: RunConfig, faults: list[str]) -> Iterator[Callable[[], Outline | None]]:
    """Yield what waits for the outline of a run's model; what is wrong with the model is added to `faults`.

    What was found of a folder is kept until a file of the folder changes. There is no outline of a model that is not here, or
    that was made here.
    """
    source = config.model.source
    folder = None if source.startswith(MADE_HERE) else model_here(source)
    if folder is None:
        yield lambda: None
        return
    kept = cache_folder() / "outlines" / f"{_model_identity(config, folder)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        outline = Outline.of(json.loads(kept.read_bytes()))
        yield lambda: outline
        return
    with _process("model", config, (), MODEL_SECONDS) as findings:

        def wait() -> Outline | None:
            found = findings()
            faults.extend(found["faults"])
            if found["faults"] or not found["outline"]:
                return None
            with contextlib.suppress(OSError):  # a cache that cannot be written
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_json(kept, found["outline"][0])
            return Outline.of(found["outline"][0])

        yield wait


def _model_identity(config: RunConfig, folder: Path) -> str:
    """Return a digest of all that decides what is found in a folder."""
    files = [file for file in (*folder.iterdir(), *MODEL_CODE.rglob("*.py")) if file.is_file()]
    versions = [importlib.metadata.version(name) for name in ("transformers", "torch")]
    facts = (files_identity(files), versions, config.training.python, config.model.trust_remote_code)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@contextlib.contextmanager
def _process(part: str, config: RunConfig, folders: Sequence[str], seconds: float) -> Iterator[Callable[[], Findings]]:
    """Start `rehearsal.py`, and yield what waits for its findings; whatever it has started is killed at the end.

    Args:
        part: of the run that is looked at, `model` or `data`.
        config: of the run.
        folders: from which reward functions are imported, beside what is installed.
        seconds: that it may take from when it is waited for.

    Raises:
        ConfigError: `training.python` is no program.
    """
    program = interpreter(config.training.python)
    with (
        held_lifeline() as lifeline,
        tempfile.TemporaryFile() as facts,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        facts.write(json.dumps({"config": config.model_dump(mode="json"), "folders": list(folders)}).encode())
        facts.seek(0)
        with raised_as(ConfigError, f"training.python: {program!r} is no program that can be run ({{cause}})", OSError):
            process = subprocess.Popen(
                [program, "-m", MODULE, part],
                stdin=facts,
                stdout=output,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": python_path(), LIFELINE_VARIABLE: str(lifeline)},
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        try:
            yield lambda: _findings(process, program, seconds, output, errors)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _findings(process: subprocess.Popen[bytes], program: str, seconds: float, output: IO[bytes], errors: IO[bytes]) -> Findings:
    """Wait for a process; return what it found, and what it was doing when it died or hung."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    output.seek(0)
    found = defaultdict[str, list[Any]](list, {"doing": [f"training.python {program}"]})
    for kind, content in map(json.loads, output.read().splitlines()):
        found[kind].append(content)
    doing, code = found["doing"][-1], process.returncode
    if code is None:
        remedy = f"; {doing.partition('.fn')[0]}.dry_run=false does not call it" if doing.startswith("rewards") else ""
        found["faults"].append(f"{doing}: has not returned after {seconds:.0f} s and was killed{remedy}")
    elif code != 0 or doing:
        errors.seek(0)
        last = errors.read()[-10_000:].decode(errors="replace").strip().split("\n")[-1]
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = f"{ended}: {cause(RuntimeError(last))}" if last else ended
        found["faults"].append(f"{doing}: its process died ({words})")
    return found


def _device_faults(config: RunConfig) -> Iterator[str]:
    if config.training.device == "cuda" and gpu_memory() is None:
        yield "training.device: cuda, and this machine has no GPU"


def _server_faults(config: RunConfig) -> Iterator[str]:
    """Yield why the tracking server cannot be reached, if there is one that is reached directly."""
    uri = _tracking_uri(config)
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


def _tracking_uri(config: RunConfig) -> str:
    return config.tracking.uri or os.environ.get(TRACKING_VARIABLE) or ""


def _refusal(check: Callable[[], object]) -> list[str]:
    """Return the message with which a check refuses, if it does."""
    try:
        check()
    except GrpoError as error:
        return [str(error)]
    return []


def _require_model_of(config: RunConfig) -> None:
    require_model(config.model.source)
    if config.data.chat_template and lacks_chat_template(config.model.source):
        source = config.model.source
        raise ModelError(f"data.chat_template: on, but the tokenizer of {source} has no chat template; set it to false")


def _require_disk_of(config: RunConfig, run_path: Path | None) -> None:
    model = model_here(config.model.source)
    weights = None if model is None else kept_weights(config, model)
    if weights is None:  # printed and checked once the model is here
        return
    uri = _tracking_uri(config)
    # A server keeps artifacts on a disk of its own; one that is no address is refused elsewhere.
    tracked_here = "://" not in uri or uri.startswith(("file:", "sqlite:"))
    require_disk("the run", disk_need(config, weights, tracked_here=tracked_here), run_path or RUNS_FOLDER)


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


def slow_dtype_warnings(config: RunConfig, cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return a warning where a run would compute in bfloat16 on a processor without fast products for it.

    Args:
        config: the run's; where it will use a GPU, the processor does not matter.
        cpuinfo: what Linux knows of the CPU.
    """
    if config.model.dtype != "bfloat16" or has_bfloat16_kernels(cpuinfo) or will_use_gpu(config):
        return ()
    return (
        "model.dtype: bfloat16 is several times slower than float32 on this processor, which has no AVX-512 "
        "(products took 7 times as long on one such machine); add model.dtype=float32",
    )
