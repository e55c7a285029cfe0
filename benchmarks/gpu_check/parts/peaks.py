"""Part `peaks`: what the phases of a step allocate at most, against what was estimated before they ran."""

from dataclasses import replace

import torch

from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.gpu_check.timing import opened_device
from benchmarks.gpu_check.trainings import CHANGES, configured, new_run, random_workload, start_facts, steps_of, train_to_end
from benchmarks.memory_peaks import WORKS, peak_on_cpu, peak_on_cuda, peaks_of
from benchmarks.random_models import SMOLLM2_135M, write_model

NAMES = ("Qwen2.5's, in bfloat16", "no shared keys", "a large vocabulary, short completions")
"""Of the last, logits and their gradients are the most."""
SMALL = ("a large vocabulary, short completions",)
BOUND = 0.2
"""Largest relative difference between an estimate and a peak."""
COUNTERS = (
    "allocated_bytes.all.peak",
    "active_bytes.all.peak",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.peak",
    "segment.all.peak",
    "num_alloc_retries",
    "num_ooms",
)
PHASES = ("rollout", "logps", "update")
GIB, GB = 2**30, 1e9


def run(context: Context) -> Result:
    """Measure functions apart; on a GPU also a training's own journal, and the allocator."""
    figures, rows, outside = dict[str, Figure](), list[tuple[Figure, ...]](), list[str]()
    on_gpu = context.device == "cuda"
    with opened_device(context) as device:
        for name in SMALL if context.small else NAMES:
            peaks = peaks_of(WORKS[name], device, padded=on_gpu, packed=False, peak=peak_on_cuda if on_gpu else peak_on_cpu)
            for phase in (*PHASES, "recomputed"):
                estimated, allocated = getattr(peaks, phase)
                ratio, reserved = estimated / allocated, torch.cuda.memory_reserved() / GB if on_gpu else None
                rows.append((name, phase, estimated / GB, allocated / GB, ratio, reserved))
                outside += [f"{phase} of {name}: {ratio:.2f}"] if abs(ratio - 1) > BOUND else []
        figures |= _counters() if on_gpu else {}
    tables = [
        Table(
            title="Beside the states, GB", head=("shape", "phase", "estimated", "peak", "ratio", "reserved"), rows=tuple(rows)
        )
    ]
    if on_gpu:
        torch.cuda.empty_cache()  # for the training, which is a process of its own
        tables.append(of_training(context))
    ratios = [float(row[4] or 0) for row in rows]
    text = f"estimates are {min(ratios):.2f} to {max(ratios):.2f} of the peaks"
    return Result(
        verdict="failed" if outside else "passed",
        text="; outside: ".join([text, *outside]),
        figures=figures,
        tables=tuple(tables),
    )


def _counters() -> dict[str, Figure]:
    """Return the allocator's counters after a wave of rollouts, the last of the works."""
    found = torch.cuda.memory_stats()
    return {f"allocator: {key}": int(found.get(key, 0)) for key in COUNTERS}


def of_training(context: Context) -> Table:
    """Return the peaks that a training of 135 million weights journals, against the estimates of its `start` record."""
    model = write_model(SMOLLM2_135M, context.folder / "model", ends=False)
    base = random_workload(replace(context, small=True), "bfloat16")
    workload = replace(base, model=str(model), num_prompts=4, completion_tokens=256, prompt_tokens=256, steps=2)
    sizes = {"training.microbatch_tokens": 4096, "rollout.max_prompt_tokens": 272, "training.checkpoint_every": None}
    config = configured(replace(workload, group_size=8), context.folder / "inputs", {**CHANGES, **sizes})
    run_dir = train_to_end(new_run(config, context.folder / "run"))
    estimates, records = start_facts(run_dir)["memory"], steps_of(run_dir)
    rows = []
    for phase in PHASES:
        peak = max(record.metrics[f"memory/{phase}_gib"] for record in records) * GIB
        rows.append((phase, estimates[phase] / GB, peak / GB, estimates[phase] / peak))
    return Table(
        title="A training's own, with its states, GB", head=("phase", "estimated at most", "peak", "ratio"), rows=tuple(rows)
    )
