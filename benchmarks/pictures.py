"""Make the pictures of the README again: real runs, real servers, Chromium.

    make pictures                        # about 7 minutes on two cores
    make pictures ARGS="--steps 20 --out /tmp/pictures"

It works in a folder of its own, starts a stack there and ends it. Needs Chromium.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from grpo_core.config import load_config
from grpo_core.run.folder import RunDir
from tasks.tracking.store import read_tracked
from tests.e2e.project import Project
from tests.security.browser import Browser, chromium, running_browser

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BETAS = (0.1, 1.0, 4.0)
PAGE, LONG_PAGE, WIDE_PAGE = (1280, 900), (1280, 1500), (1700, 1200)
DRAWING_SECONDS = 8.0
"""For what a page draws without saying when it is done."""
SECONDS = 3600.0
"""That a command may take: the sweep is eight runs."""
SWEEP = """
question: Which β and sync period get the most sums right, and how far do they drift for it?
base: sums_tiny_cpu
overrides: {{training.steps: {steps}, probe.every_steps: 5, evaluation.samples: 4}}
axes:
  loss.beta: [0.1, 4.0]
  reference.sync_steps: [null, 5]
seeds: [0, 1]
objective: {{metric: eval/heldout/pass_at_1}}
runs: {{concurrency: 2}}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write run.png, compare.png, prefect.png, mlflow.png and sweep.png; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder to write to")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run")
    options = parser.parse_args(arguments)
    if chromium() is None:
        print("Chromium is not installed; install the package chromium")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="grpo-pictures-") as folder, _stack(Path(folder)) as project:
        _write_preset(project, options.steps)
        runs = [_train(project, beta) for beta in BETAS]
        _command(project, "compare", *runs, "--out", "compare")
        for run in json.loads((project.folder / "compare" / "comparison.json").read_text())["runs"]:
            drift = run["curves"]["kl/probe/full_init"]
            last, high = drift["values"][-1], drift["high"][-1]
            print(f"{run['label']}: exact drift at the end {last:.3f} ± {high - last:.3f}")
        with running_browser() as browser:
            browser.resize(*LONG_PAGE)
            browser.open((project.folder / "compare" / "compare.html").as_uri())
            browser.wait_for("document.body.dataset.drawn === 'yes'")
            browser.screenshot(options.out / "compare.png")
            _of_a_run(project, browser, options.out)
            _sweep(project, options.steps)
            _of_the_sweep(project, browser, options.out)
    return 0


@contextmanager
def _stack(folder: Path) -> Iterator[Project]:
    project = Project(folder, seconds=SECONDS)
    _command(project, "up", "--slots", "2")
    try:
        yield project
    finally:
        project.grpo("down")


def _write_preset(project: Project, steps: int) -> None:
    """Write the preset three_betas: names of runs begin with what differs from it."""
    changes = {"training.steps": steps, "probe.every_steps": 5, "evaluation.every_steps": 10}
    values = load_config("sums_tiny_cpu", changes).model_dump(mode="json")
    (project.folder / "configs").mkdir()
    (project.folder / "configs" / "three_betas.yaml").write_text(yaml.safe_dump(values))


def _train(project: Project, beta: float) -> str:
    run_dir = f"runs/beta_{beta:g}"
    print(f"prefect deployment run grpo/train --param beta={beta:g}", flush=True)
    parameters = ("config=three_betas", f"beta={beta:g}", f'run_dir="{run_dir}"')
    ended = project.finished(project.start("grpo/train", *parameters))
    if ended["state_type"] != "COMPLETED":
        raise SystemExit(f"the run of β={beta:g} ended {ended['state']}")
    return run_dir


def _sweep(project: Project, steps: int) -> None:
    (project.folder / "beta_and_sync.yaml").write_text(SWEEP.format(steps=steps))
    _command(project, "sweep", "beta_and_sync.yaml", "--sweep-dir", "runs/sweep")


def _command(project: Project, *arguments: str) -> str:
    print("grpo", *arguments, flush=True)
    done = project.grpo(*arguments)
    if done.returncode:
        raise SystemExit(f"grpo {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _of_a_run(project: Project, browser: Browser, out: Path) -> None:
    """Write a screenshot of a run's page, of Prefect's page of it, and of MLflow's charts of the runs."""
    stack = project.stack
    browser.resize(*LONG_PAGE)
    browser.open((project.folder / "runs" / f"beta_{BETAS[0]:g}" / "index.html").as_uri())
    time.sleep(DRAWING_SECONDS)
    browser.screenshot(out / "run.png")
    browser.resize(*PAGE)
    browser.log_in(stack.prefect_address, project.secret)
    run = project.api("POST", "/flow_runs/filter", {"limit": 1, "sort": "START_TIME_DESC"})[0]
    browser.open(f"{stack.prefect_address}/runs/flow-run/{run['id']}")
    browser.wait_for("document.body.innerText.includes('Completed') && document.body.innerText.includes('step ')")
    time.sleep(DRAWING_SECONDS)
    browser.screenshot(out / "prefect.png")
    browser.resize(*WIDE_PAGE)
    browser.open(read_tracked(RunDir(project.folder / "runs" / f"beta_{BETAS[0]:g}")).charts_address)
    for part in ("mlflow.assistant.chat_panel.close", "mlflow.experiment_page.shared_view.dismiss"):
        browser.click(f"document.querySelector('[data-component-id=\"{part}\"]')")
    browser.wait_for("document.querySelectorAll('.js-plotly-plot').length >= 3")
    time.sleep(DRAWING_SECONDS)
    browser.screenshot(out / "mlflow.png")


def _of_the_sweep(project: Project, browser: Browser, out: Path) -> None:
    browser.resize(*PAGE)
    browser.open((project.folder / "runs" / "sweep" / "report" / "report.html").as_uri())
    browser.wait_for("document.body.innerText.includes('β')")
    browser.screenshot(out / "sweep.png")


if __name__ == "__main__":
    sys.exit(main())
