"""Seconds of a step against the group size, the size of the model and the length of the prompts, with the machine's floor.

The group sizes share 32 completions, so that more completions of a group mean fewer prompts. The models are Llamas of random
weights, made on the spot (`random_models.py`). Of the prompts there is one a step, with 16 completions. Completions have 32
tokens each; an update a step, an EMA of the reference every two steps.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.random_models import Shape, write_model
from benchmarks.training import turns
from benchmarks.training.workload import Workload
from grpo_core.machine.hardware import avoid_broken_kernels, processor

BUNDLED = "bundled:smollm2-135m"
COMPLETIONS = 32
GROUP_SIZES = (2, 4, 8, 16, 32)
PROMPT_TOKENS = (0, 64, 128, 256, 512, 1024)
"""A prompt has at least so many; a question alone has some twenty."""
ENGINES = {"native": ("native", turns.ROOT)}
PHASES = ("rollout", "logps", "update", "sync")
PANELS = {
    "groups": ("group size", "group_size", f"group size G ({COMPLETIONS} completions in all)"),
    "sizes": ("weights", "weights", "weights of the model"),
    "prompts": ("tokens of the prompt", "prompt_tokens", "tokens of the prompt (1 x 16 completions)"),
}
"""What is measured, under its name in the JSON file: the title of its table, its key in a row, and the label of its axis."""


SHAPES = (
    Shape(hidden=16, intermediate=64, layers=6, heads=2, kv_heads=1, vocabulary=49152),
    Shape(hidden=128, intermediate=512, layers=14, heads=4, kv_heads=2, vocabulary=49152),
    Shape(hidden=576, intermediate=2304, layers=27, heads=8, kv_heads=4, vocabulary=49152),
)
"""1, 10 and 163 million weights, embeddings included."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print three tables, write a JSON file and a figure."""
    options = _options(arguments)
    avoid_broken_kernels()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as scratch:
        base = Workload(
            name="",
            num_prompts=COMPLETIONS,
            group_size=1,
            completion_tokens=32,
            forced=True,
            model=options.model,
            dtype=options.dtype,
            threads=options.threads,
            steps=options.steps,
        )
        groups = [
            measure(replace(base, name=f"G={size}", num_prompts=COMPLETIONS // size, group_size=size), Path(scratch), options)
            for size in options.groups
        ]
        models = [str(write_model(shape, Path(scratch) / f"model-{number}", ends=False)) for number, shape in enumerate(SHAPES)]
        sizes = [
            measure(
                replace(base, name=f"model {number}", num_prompts=4, group_size=8, model=model),
                Path(scratch) / "sizes",
                options,
            )
            for number, model in enumerate(models)
        ]
        prompts = [
            measure(
                replace(base, name=f"prompt of {tokens}", num_prompts=1, group_size=16, prompt_tokens=tokens),
                Path(scratch),
                options,
            )
            for tokens in options.prompts
        ]
    found = {"threads": options.threads, "dtype": options.dtype, "groups": groups, "sizes": sizes, "prompts": prompts}
    turns.write(options.output, before, found)
    draw(found, options.output.with_suffix(".png"))
    print(f"{processor()}, {options.threads} thread(s), {options.dtype}; medians of {options.steps - options.warm_up} steps\n")
    print("\n\n".join(table(found[part], title, key) for part, (title, key, _) in PANELS.items()))


def measure(workload: Workload, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the median seconds of a step and of its phases, and the floor of its products and bytes."""
    found = turns.measure(workload, ENGINES, scratch / workload.name, options.warm_up)["native"]
    counted = found.steps[options.warm_up :]
    return {
        "group_size": workload.group_size,
        "weights": found.floors[0]["weights"],
        "prompt_tokens": round(statistics.mean(step.prompt_tokens for step in counted) / workload.num_prompts),
        "seconds": statistics.median(step.seconds for step in counted),
        "phases": {phase: statistics.median(step.phase(phase) for step in counted) for phase in PHASES},
        "floor": statistics.median(sum(floor["phases"].values()) for floor in found.floors),
        "steps": [step.seconds for step in found.steps],
    }


def table(rows: Sequence[Mapping[str, Any]], title: str, key: str) -> str:
    """Return medians as a table in Markdown."""
    lines = [f"| {title} | step, s | {', s | '.join(PHASES)}, s | floor, s |", f"|---:|---:|{'---:|' * len(PHASES)}---:|"]
    for row in rows:
        phases = " | ".join(f"{row['phases'][phase]:.2f}" for phase in PHASES)
        lines.append(f"| {row[key]:,} | {row['seconds']:.2f} | {phases} | {row['floor']:.2f} |")
    return "\n".join(lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write a figure: step and floor against the group size, the number of weights and the length of the prompts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (part, (_, key, label)) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        rows = sorted(found[part], key=lambda row: row[key])
        across = [row[key] for row in rows]
        axes.plot(across, [row["seconds"] for row in rows], "o-", label="a step")
        axes.plot(across, [row["floor"] for row in rows], "s--", color="0.5", label="floor: its products and bytes alone")
        axes.set_xlabel(label)
        axes.set_ylabel("seconds (median)")
        axes.spines[["top", "right"]].set_visible(False)
        if part == "sizes":
            axes.set_xscale("log")
            axes.set_yscale("log")
            continue
        axes.set_xscale("log", base=2)
        axes.set_xticks(across, map(str, across))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=BUNDLED, help="of the groups and prompts, as model.source (default: %(default)s)")
    parser.add_argument("--groups", nargs="+", type=int, default=list(GROUP_SIZES), choices=GROUP_SIZES)
    parser.add_argument("--prompts", nargs="+", type=int, default=list(PROMPT_TOKENS), choices=PROMPT_TOKENS)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--output", type=Path, default=Path("build/bench_scaling.json"))
    return turns.parse(parser, arguments, steps=5, warm_up=1)


if __name__ == "__main__":
    main()
