"""Kill what carries a run to MLflow: the monitor, the flow process, the training and a real MLflow server, at random.

python -m tests.torture.tracking                 3 monitored trainings and 2 flows

In the end the metric history of each run must hold every (key, step) of its journal once: 0 missing, 0 double.
"""

import argparse
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from grpo_core.config import apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_records
from tasks.tracking import open_tracking
from tasks.tracking.store import read_tracked
from tasks.tracking.training import track_later
from tests.conftest import build_values, write_model
from tests.torture.history import count_points, history_differences
from tests.torture.lives import ENVIRONMENT, ROOT
from tests.torture.servers import MlflowServer

OVERRIDES = {
    "training.checkpoint_every": 4,
    "reference.mixup_alpha": 0.5,
    "rewards": [{"fn": "tests.e2e.slow_reward:slowly"}],
    "evaluation.every_steps": 5,
    "evaluation.every_num_prompts": 4,
    "evaluation.samples": 0,
    "evaluation.num_prompts": 4,
}
MONITORED_STEPS, FLOW_STEPS = 100, 40


@dataclass(kw_only=True)
class Result:
    """What became of a run."""

    name: str
    kills: Counter[str] = field(default_factory=Counter)
    points: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line."""
        killed = ", ".join(f"{what} {count}x" for what, count in sorted(self.kills.items())) or "nothing"
        verdict = f"{len(self.wrong)} wrong: {self.wrong[:3]}" if self.wrong else "0 missing, 0 double"
        return f"{self.name}: killed {killed}; {self.points} points, {verdict}"


class Child:
    """A process that is killed and started again."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path, environment: dict[str, str], cwd: Path = ROOT) -> None:
        """Start it."""
        merged = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **environment}
        command = [sys.executable, "-m", module, *arguments]
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, cwd=cwd, env=merged, stdout=output, stderr=output)

    def has_ended(self) -> bool:
        """Tell whether it has."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Send SIGKILL and reap it."""
        self.process.kill()
        self.process.wait()


def monitored(number: int, seed: int, folder: Path, model: Path, server: MlflowServer, deadline: float) -> Result:
    """Train beside a monitor in a process of its own; kill training, monitor and server; check what MLflow holds."""
    rng, result = random.Random(seed), Result(name=f"monitored {number}")
    run_dir = _prepared(folder / f"monitored-{number}", model, server)
    training, watcher = _start_training(run_dir), _start_watcher(run_dir)
    kills = rng.sample(["training", "monitor", "monitor", "monitor", "server", "server"], 6)
    try:
        while kills or not training.has_ended():
            _wait(rng.uniform(1.0, 9.0), training.has_ended, deadline)
            what = kills.pop() if kills else ""
            if what == "training" and not training.has_ended():
                training.kill()
                training = _start_training(run_dir)
            elif what == "monitor":
                watcher.kill()
                watcher = _start_watcher(run_dir)
            elif what == "server":
                server.go_away(rng.uniform(0.0, 5.0))
            else:
                continue
            result.kills[what] += 1
        _write_end(run_dir, training.process.wait())
        watcher.process.wait(max(1.0, deadline - time.monotonic()))
    finally:
        training.kill()
        watcher.kill()
        server.come_back()
    return _judge(result, run_dir)


def flown(number: int, seed: int, folder: Path, model: Path, server: MlflowServer, deadline: float) -> Result:
    """Run the whole flow; kill flow, training and server, resume until it is done; check what MLflow holds."""
    rng, result = random.Random(seed), Result(name=f"flow {number}")
    run_dir = RunDir(folder / f"flow-{number}" / "run")
    run_dir.path.parent.mkdir()
    config = run_dir.path.with_name("config.yaml")
    config.write_text(yaml.safe_dump(_values(model, FLOW_STEPS)))
    kills = rng.sample(["flow", "training", "server"], 3)
    while True:
        begun = run_dir.config_file.exists()
        arguments = ["--resume", str(run_dir.path)] if begun else [str(config), "--run-dir", str(run_dir.path)]
        environment = {"MLFLOW_TRACKING_URI": server.address}
        log = run_dir.path.with_name("log")
        flow = Child("flows.cli", ["train", *arguments], log, environment, cwd=run_dir.path.parent)
        try:
            while not flow.has_ended():
                goal = _last_step(run_dir) + rng.randint(2, 6) if kills else FLOW_STEPS + 1
                _wait(math.inf, _reaches(run_dir, goal, flow), deadline)
                if not flow.has_ended() and _last_step(run_dir) < FLOW_STEPS:
                    what = kills.pop()
                    result.kills[what] += 1
                    _kill(what, flow, run_dir, server, rng)
        finally:
            flow.kill()
            server.come_back()
        _wait(math.inf, lambda: lock_holder(run_dir.journal_file) is None, deadline)
        if flow.process.returncode == 0:
            return _judge(result, run_dir)
        if not kills and flow.process.returncode > 0:
            raise RuntimeError(f"{result.name}: a resume that nobody killed ended with {flow.process.returncode}; see {log}")


def _reaches(run_dir: RunDir, goal: int, flow: Child) -> Callable[[], bool]:
    return lambda: flow.has_ended() or _last_step(run_dir) >= goal


def _kill(what: str, flow: Child, run_dir: RunDir, server: MlflowServer, rng: random.Random) -> None:
    if what == "flow":
        flow.kill()
    elif what == "training":
        os.kill(yaml.safe_load(run_dir.process_file.read_text())["pid"], signal.SIGKILL)
        flow.process.wait()
    else:
        server.go_away(rng.uniform(0.0, 5.0))


def _judge(result: Result, run_dir: RunDir) -> Result:
    with _environment("MLFLOW_TRACKING_URI", read_tracked(run_dir).uri):
        tracked, _, problems = track_later(run_dir.path)
    result.points = count_points(run_dir.journal_file)
    result.wrong = [*problems, *history_differences(tracked, run_dir.journal_file)]
    return result


def _values(model: Path, steps: int) -> dict[str, object]:
    return apply_overrides(build_values(model), {**OVERRIDES, "training.steps": steps})


def _prepared(path: Path, model: Path, server: MlflowServer) -> RunDir:
    run_dir = RunDir(path)
    config = validate_config(_values(model, MONITORED_STEPS))
    run_dir.create(config)
    prepare(config, run_dir.data)
    with _environment("MLFLOW_TRACKING_URI", server.address):
        open_tracking.fn(path)
    return run_dir


def _start_training(run_dir: RunDir) -> Child:
    child = Child("grpo_core.training", [str(run_dir.path)], run_dir.log_file("train"), {})
    run_dir.process_file.write_text(f'{{"pid": {child.process.pid}, "returncode": null, "left": false}}\n')
    return child


def _write_end(run_dir: RunDir, returncode: int) -> None:
    run_dir.process_file.write_text(f'{{"pid": null, "returncode": {returncode}, "left": false}}\n')


def _start_watcher(run_dir: RunDir) -> Child:
    uri = read_tracked(run_dir).uri
    # With a Prefect that is away: an embedded server would outlive the kill, and a monitor goes on without one.
    environment = {"MLFLOW_TRACKING_URI": uri, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    return Child("tests.torture.watcher", [str(run_dir.path)], run_dir.log_file("watcher"), environment)


def _last_step(run_dir: RunDir) -> int:
    steps = (record.step for record in read_records(run_dir.journal_file)) if run_dir.journal_file.exists() else ()
    return max(steps, default=0)


def _wait(seconds: float, until: Callable[[], bool], deadline: float) -> None:
    """Wait so many seconds, or until something holds.

    Raises:
        TimeoutError: the time of the harness is up.
    """
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        if time.monotonic() > deadline:
            raise TimeoutError("the harness's time is up")
        time.sleep(0.05)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where MLflow holds everything once."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.tracking", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--monitored", type=int, default=3)
    parser.add_argument("--flows", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder, in which everything stays")
    options = parser.parse_args(arguments)
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    deadline = time.monotonic() + 60 * options.minutes
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=options.keep is None)
        model = write_model(folder / "model")
        server = MlflowServer(folder / "mlflow")
        server.start()
        try:
            runs = [(monitored, number) for number in range(1, options.monitored + 1)]
            runs += [(flown, number) for number in range(1, options.flows + 1)]
            for run, number in runs:
                results.append(run(number, options.seed + 100 * number, folder, model, server, deadline))
                sys.stdout.write(f"{results[-1]}\n")
                sys.stdout.flush()
        finally:
            server.kill()
    good = sum(not result.wrong for result in results)
    sys.stdout.write(f"{good} of {options.monitored + options.flows} runs are in MLflow once and whole\n")
    return 0 if good == options.monitored + options.flows else 1


if __name__ == "__main__":
    sys.exit(main())
