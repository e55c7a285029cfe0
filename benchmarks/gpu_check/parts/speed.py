"""Part `speed`: a step by phase, of this engine and of TRL's trainer without vLLM, on completions of forced length."""

import statistics
import sys
from pathlib import Path

import torch

from benchmarks.gpu_check.environment import is_installed
from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.random_models import QWEN25_05B, SMOLLM2_135M, TINY, Shape, write_model
from benchmarks.training import turns
from benchmarks.training.timed import PHASES, TimedStep
from benchmarks.training.workload import Workload
from grpo_core.machine.hardware import core_count

WARM_UP = 1
LARGE_BYTES = 60e9
"""Of free GPU memory, for both engines with a model of half a billion weights."""


def run(context: Context) -> Result:
    """Measure both engines, this one alone where TRL is not installed or fails."""
    shape, tokens = _shape(context)
    workload = Workload(
        name="forced",
        num_prompts=2 if context.small else 8,
        group_size=2 if context.small else 8,
        completion_tokens=8 if context.small else 256,
        prompt_tokens=16 if context.small else 128,
        forced=True,
        model=str(write_model(shape, context.folder / "model", ends=False)),
        dtype="bfloat16",
        threads=1 if context.small else core_count(),
        steps=2 if context.small else 4,
        settings=(f"training.device={context.device}", f"training.microbatch_tokens={tokens}", "training.deterministic=false"),
    )
    failure, engines = None, ("native", "trl") if is_installed("trl") else ("native",)
    try:
        measured = _measure(workload, engines, context.folder / "turns")
    except RuntimeError as error:
        if len(engines) == 1:
            raise
        failure = f"TRL or this engine failed beside it: {error}"
        measured = _measure(workload, ("native",), context.folder / "alone")
    return _result(workload, measured, failure)


def _measure(workload: Workload, engines: tuple[str, ...], folder: Path) -> dict[str, turns.Measured]:
    return turns.measure(workload, {name: (name, turns.ROOT) for name in engines}, folder, _tell)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shape(context: Context) -> tuple[Shape, int]:
    """Return the model and the tokens of a micro-batch that fit the device twice."""
    if context.small or context.device == "cpu":
        return (TINY, 4096) if context.small else (SMOLLM2_135M, 4096)
    free, _ = torch.cuda.mem_get_info()
    return (QWEN25_05B, 8192) if free > LARGE_BYTES else (SMOLLM2_135M, 4096)


def _result(workload: Workload, measured: dict[str, turns.Measured], failure: str | None) -> Result:
    counted = {name: found.steps[WARM_UP:] for name, found in measured.items()}
    seconds = {name: statistics.median(step.seconds for step in steps) for name, steps in counted.items()}
    rows = tuple((name, *_row(steps)) for name, steps in counted.items())
    head = (
        "engine",
        *(f"{phase}, s" for phase in PHASES),
        "step, s",
        "completion tokens/s of rollout",
        "of a step",
        "peak, GiB",
    )
    figures: dict[str, Figure] = {
        "completions": workload.num_prompts * workload.group_size,
        "completion tokens each": workload.completion_tokens,
        "prompt tokens each, about": workload.prompt_tokens,
        "model": f"random weights, {_weights(Path(workload.model)):,}",
        "type": workload.dtype,
    }
    text = f"{seconds['native']:.3g} s a step"
    if "trl" in seconds:
        figures["TRL's step / this engine's"] = seconds["trl"] / seconds["native"]
        text += f", TRL {seconds['trl']:.3g} s ({seconds['trl'] / seconds['native']:.2f} times as long)"
    elif failure is None:
        text += "; TRL is not installed, nothing is compared"
    settings = tuple((name, str(found.settings)) for name, found in measured.items())
    return Result(
        verdict="measured" if failure is None else "failed",
        text=text if failure is None else f"{failure[:600]}; alone: {text}",
        figures=figures,
        tables=(
            Table(title="Medians of a step", head=head, rows=rows),
            Table(title="Settings", head=("engine", "what decides its speed"), rows=settings),
        ),
    )


def _row(steps: tuple[TimedStep, ...]) -> tuple[Figure, ...]:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    tokens = sum(steps[0].completion_lengths)
    phases = [median([step.phase(name) for step in steps]) for name in PHASES]
    whole = median([step.seconds for step in steps])
    return (*phases, whole, tokens / phases[0], tokens / whole, max(step.peak_gib for step in steps))


def _weights(folder: Path) -> int:
    from grpo_core.run.model_shape import count_parameters

    return count_parameters(folder) or 0
