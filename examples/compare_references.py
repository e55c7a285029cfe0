"""One picture of several runs that differ in their reference: what the KL to it says, and what it hides.

python examples/compare_references.py --out references.png "fixed=runs/one" "copied every 10=runs/two"
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_core.run.curves import AFTER_STEP, read_curves
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal

EXACT = "the same, exact on the probe set"


def references_figure(runs: Mapping[str, Sequence[Record]]) -> Figure:
    """Return a panel a run: KL to its reference and to the initial policy over steps, before and after each sync.

    Args:
        runs: journals by the title of their panel.
    """
    figure = Figure(figsize=(4.2 * len(runs), 3.6), layout="constrained")
    axes = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)
    for panel, (title, records) in zip(axes[0], runs.items(), strict=True):
        _draw(panel, records)
        panel.set(title=title, xlabel="step")
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("KL, nats per token")
    axes[0][-1].legend(loc="upper left", fontsize="small")
    return figure


def _draw(panel: Axes, records: Sequence[Record]) -> None:
    run = read_curves(records, ("kl/ref/drift", "kl/init/drift", "kl/probe/full_init"))
    # Wide and pale, so that it shows where it is the same line: while the reference still is the initial policy.
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "kl/init/drift": ("to the initial policy", {"color": "tab:orange", "linewidth": 4, "alpha": 0.45}),
        "kl/probe/full_init": (EXACT, {"color": "black", "linestyle": ":", "marker": "o", "markersize": 3}),
        "kl/ref/drift": ("to the reference", {"color": "tab:blue"}),
    }
    for key, (name, look) in looks.items():
        if (curve := run.get(key)) is not None:
            panel.plot(curve.steps, curve.values, label=name, **look)
    places, apart = run.syncs.places, AFTER_STEP / 5  # so that both marks of one sync can be seen
    for number, place in enumerate(places):
        panel.axvline(place, color="tab:red", linestyle=":", linewidth=1.2, label=None if number else "reference sync")
    panel.plot(places - apart, run.syncs.kl_before, "^", color="tab:blue", markersize=5, label="before a sync")
    panel.plot(places + apart, run.syncs.kl_after, "v", color="tab:green", markersize=5, label="after it")
    steered = {one.step: one.metrics["loss/beta"] for one in records if one.kind == "step" and "loss/beta" in one.metrics}
    if steered:
        beside = panel.twinx()
        beside.plot([*steered], [*steered.values()], color="tab:purple", linestyle="--", linewidth=1)
        beside.set_ylabel("β (dashed)", color="tab:purple")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure of some run dirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="TITLE=RUN_DIR", help="panels, from left to right")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    options = parser.parse_args(arguments)
    figure = references_figure(
        {
            title: read_journal(RunDir(Path(path)).journal_file)
            for title, _, path in (run.rpartition("=") for run in options.runs)
        }
    )
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
