"""The notebook three_betas.ipynb, executed cell by cell; what it plots is what `grpo compare` reports of the same runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "three_betas.ipynb"
EXECUTE = """
import json, sys

cells = [cell for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code"]
space = {}
for number, cell in enumerate(cells):
    exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
panels = {
    panel.get_title(): [
        [line.get_label(), [float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]] for line in panel.lines
    ]
    for panel in space["panels"]
}
json.dump(panels, open("plotted.json", "w"))
"""
pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the notebook was executed: its runs, and in plotted.json the arrays of its picture."""
    folder = tmp_path_factory.mktemp("notebook")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def plotted(folder: Path) -> dict[str, list[Any]]:
    panels: dict[str, list[Any]] = json.loads((folder / "plotted.json").read_text())
    return panels


def test_the_picture_shows_three_runs_with_their_syncs(executed: Path) -> None:
    panels = plotted(executed)
    assert list(panels) == ["KL to the reference", "KL to the initial policy", "reward"]
    for lines in panels.values():
        assert [label for label, _, _ in lines if label.startswith("β")] == ["β = 0", "β = 1", "β = 4"]
        assert [xs for _, xs, _ in lines if len(set(xs)) == 1] == [[8.5, 8.5], [16.5, 16.5]]  # after steps 8 and 16


def test_the_larger_beta_the_smaller_the_drift(executed: Path) -> None:
    at_the_end = {label: ys[-1] for label, _, ys in plotted(executed)["KL to the initial policy"] if label.startswith("β")}
    assert at_the_end["β = 0"] > at_the_end["β = 4"] > 0


def test_the_arrays_are_those_of_grpo_compare(executed: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "compare", "runs/beta_0", "runs/beta_1", "runs/beta_4", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=executed, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout)["runs"]
    panels = plotted(executed)
    for title, key in {
        "KL to the reference": "kl/ref/drift",
        "KL to the initial policy": "kl/init/drift",
        "reward": "reward/mean",
    }.items():
        drawn = [[xs, ys] for label, xs, ys in panels[title] if label.startswith("β")]
        assert drawn == [[run["curves"][key]["steps"], run["curves"][key]["values"]] for run in compared]
        assert all(len(xs) == 20 for xs, _ in drawn)
    exact = [[xs, ys] for label, xs, ys in panels["KL to the initial policy"] if label.startswith("_") and len(set(xs)) > 1]
    assert exact == [[run["curves"]["kl/probe/full_init"][part] for part in ("steps", "values")] for run in compared]
    assert [run["syncs"]["steps"] for run in compared] == [[8, 16]] * 3
