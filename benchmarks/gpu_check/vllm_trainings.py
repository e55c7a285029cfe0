"""Trainings of a random model whose completions come from vLLM."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.gpu_check.trainings import (
    CHANGES,
    RunFailedError,
    configured,
    learning_table,
    new_run,
    not_finite,
    random_workload,
    speed_figures,
    steps_of,
    train_to_end,
)
from benchmarks.random_models import MEDIUM, Shape, write_model

SMALLEST = Shape(hidden=128, intermediate=256, layers=2, heads=2, kv_heads=1, vocabulary=512)
"""vLLM has kernels for heads of 64 numbers and more."""
MOST_MISMATCH = {"float32": 1e-6, "bfloat16": 0.05}
"""Of `kl/sampler/k3`."""


def vllm_steps(context: Context, modes: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Result:
    """Train three steps in each mode, given as {title: (type, keys of `rollout.vllm`)}; one that fails ends no other."""
    model = write_model(SMALLEST if context.small else MEDIUM, context.folder / "model")
    figures, tables, failed = dict[str, Figure](), list[Table](), list[str]()
    for number, (title, (dtype, keys)) in enumerate(modes.items()):
        is_inside = keys["mode"] == "colocate"
        changes = {f"rollout.vllm.{key}": value for key, value in keys.items()}
        changes |= {"rollout.engine": "vllm", "rollout.vllm.kv_cache_gib": 1}
        changes["training.python" if is_inside else "rollout.vllm.python"] = str(context.vllm_python)
        workload = replace(random_workload(context, dtype), model=str(model))
        config = configured(workload, context.folder / f"inputs-{number}", {**CHANGES, **changes})
        run_dir = new_run(config, context.folder / f"run-{number}")
        try:
            train_to_end(run_dir, python=context.vllm_python if is_inside else None)
        except RunFailedError as error:
            failed.append(f"{title}: {error}")
            continue
        steps = steps_of(run_dir)
        mismatch = max(record.metrics["kl/sampler/k3"] for record in steps)
        failed += [f"{title}: {line}" for line in not_finite(steps)]
        failed += [f"{title}: kl/sampler/k3 {mismatch:.3g}"] if mismatch > MOST_MISMATCH[dtype] else []
        figures |= {f"{title}: {key}": value for key, value in speed_figures(steps).items()}
        figures[f"{title}: kl/sampler/k3, most"] = mismatch
        tables.append(replace(learning_table(steps), title=f"Steps, {title}"))
    text = "; ".join(failed)[:800] or f"three steps with completions from vLLM, each of {len(modes)}: {', '.join(modes)}"
    return Result(verdict="failed" if failed else "passed", text=text, figures=figures, tables=tuple(tables))
