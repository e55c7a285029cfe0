"""Cut the power where a run writes what it later relies on, and resume it.

`GRPO_CHECKED=1 OMP_NUM_THREADS=1 python -m tests.torture.power FOLDER [NUMBER ...]`: a fork has no threads but its own.

Each life is a fork of this process, which has the libraries loaded: it prepares, evaluates, trains, writes the report and two
exports in one process, as `grpo_core.train` does in several. After a cut the run must resume to what an undisturbed one is, bit
for bit, with a report and an export. One JSON line a place.
"""

import importlib
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core.config import apply_overrides, validate_config
from grpo_core.errors import TrainingError
from grpo_core.export.choice import ExportWish
from grpo_core.export.policy_folder import changed_files, export_policy
from grpo_core.machine.disk import write_json
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.resuming import check_resumable
from grpo_core.training import from_python
from tasks.run.reporting import conclude, summarise
from tasks.tracking.store import TrackedRun, read_tracked
from tests.conftest import build_values, write_model
from tests.torture.compare import checkpoint_differences, journal_differences, table_differences
from tests.torture.disk import Cut, Disk, cut, flushed_bytes

PRELOADED = (
    "grpo_core.evaluation.runner",
    "grpo_core.training.loop",
    "grpo_core.training.session",
    "pandas",
    "pyarrow.parquet",
    "reasoning_gym",
    "transformers.models.llama.modeling_llama",
)
"""What each life would import by itself, for seconds."""
TRACKED = TrackedRun(uri="sqlite:///mlflow.db", experiment_id="1", run_id="0" * 32, name="power")
PLACES = (
    Cut(name="marker of the folder", call=r"name run/\.grpo-folder"),
    Cut(name="frozen prompts", call=r"name run/data/train\.jsonl", after=True),
    Cut(name="manifest of the prompts", call=r"name run/data/manifest\.json"),
    Cut(name="table of the first evaluation", call=r"fsync run/eval/\.base\.parquet.*"),
    Cut(name="between table and record of the evaluation", call=r"fsync run/journal\.jsonl"),
    Cut(name="between record and figures of the evaluation", call=r"name run/eval/base\.json"),
    Cut(name="the kept evaluation", call=r"name cache/evaluations/[0-9a-f]+", after=True),
    Cut(name="tracking.json", call=r"name run/tracking\.json", after=True),
    Cut(name="completions of step 3", call=r"fsync run/completions/\.step_000003.*"),
    Cut(name="between completions and record of step 3", call=r"fsync run/completions", nth=3, after=True),
    Cut(name="before the flush of a record", call=r"fsync run/journal\.jsonl", nth=5),
    Cut(name="after the flush of a record", call=r"fsync run/journal\.jsonl", nth=6, after=True),
    Cut(name="a checkpoint's weights", call=r"fsync run/checkpoints/\.step_000004\.partial/policy/model\.safetensors"),
    Cut(name="before a checkpoint's name is flushed", call=r"name run/checkpoints/step_000004", after=True),
    Cut(name="between a checkpoint and its record", call=r"fsync run/checkpoints", nth=4, after=True),
    Cut(name="table of the last evaluation", call=r"name run/eval/final\.parquet", after=True),
    Cut(name="page", call=r"name run/index\.html"),
    Cut(name="summary", call=r"name run/summary\.json", after=True),
    Cut(name="an export's files", call=r"fsync \.?out.*/model\.safetensors"),
    Cut(name="an export that replaces another", call=r"name out", nth=2),
    Cut(name="an export that has replaced another", call=r"name out", nth=2, after=True),
)


def live(root: Path) -> list[str]:
    """Do what is left to do of the run in `root`; return what was said of lost files."""
    run_dir, said = RunDir(root / "run"), list[str]()
    if (run_dir.config_file).exists():
        said += check_resumable(run_dir)
        from_python.resume_training(run_dir.path, progress=False)
    else:
        from_python.train(_config(root), run_dir=run_dir.path, progress=False)
    report = conclude(summarise(run_dir, read_tracked(run_dir)))
    for _ in range(2):
        export_policy(run_dir, ExportWish(), root / "out")
    return [*said, *report.facts]


def _config(root: Path) -> Any:
    changes = {"training.checkpoint_every": 1, "training.steps": 6, "evaluation.num_prompts": 4, "data.size": 40}
    return validate_config(apply_overrides(build_values(root.parent / "model"), changes))


def in_this_process(module: str, arguments: Sequence[str], *_: Any, **__: Any) -> None:
    """Run a module of the product here, where it would be a process of its own."""
    if module == "grpo_core.training":
        write_json(Path(arguments[0]) / "tracking.json", asdict(TRACKED), private=True)  # as the flow does, before it trains
    if code := importlib.import_module(f"{module}.__main__").main(list(arguments)):
        raise TrainingError(f"{module} ended with {code}")


def forked(life: Callable[[], list[str]], log: Path) -> tuple[int, list[str]]:
    """Live in a fork; return its exit status, negative for a signal, and what it returned."""
    answer = log.with_suffix(".json")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        try:
            answer.write_text(json.dumps(life()))
        except BaseException:  # noqa: BLE001  (the fork must end here)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(answer.read_text()) if answer.exists() else []


def try_place(place: Cut, folder: Path, witness: RunDir) -> dict[str, Any]:
    """Cut the power at one place, resume, and return what came of it."""
    started, root, aside = time.monotonic(), folder / "root", folder / "aside"
    for path in (root / "cache" / "evaluations", aside):
        path.mkdir(parents=True)
    os.environ["GRPO_CACHE"] = str(root / "cache")

    def victim() -> list[str]:
        Disk(root, place, aside / "note").install()
        return live(root)

    status, _ = forked(victim, folder / "victim.log")
    lost, faults = list[str](), [] if status == -9 else [f"the victim ended with {status}: the place was never reached"]
    if status == -9:
        counted = flushed_bytes(root / "run" / "journal.jsonl", aside / "note")
        lost = cut(root, aside / "note")
        if counted and not (root / "run" / "journal.jsonl").exists():
            faults.append(f"lost is the whole journal, of which {counted} bytes had been flushed: its name had not")
    if "replace" in place.name and changed_files(root / "out"):
        faults.append("no whole export is left at its name")
    status, said = forked(lambda: live(root), folder / "resumed.log")
    if status:
        faults.append(f"the resume ended with {status}: {(folder / 'resumed.log').read_text().strip().splitlines()[-1]}")
    else:
        faults += differences(witness, RunDir(root / "run"))
        faults += [f"export: {name}" for name in changed_files(root / "out")]
        faults += [] if any("held-out greedy accuracy" in line for line in said) else ["the report has no held-out accuracy"]
    seconds = time.monotonic() - started
    return {"place": place.name, "lost": lost, "said": said, "faults": faults, "seconds": round(seconds, 1)}


def differences(witness: RunDir, other: RunDir) -> list[str]:
    """Return what differs from the run that was not disturbed.

    An evaluation whose figures were not written yet is made again, so that its record stands there twice.
    """
    expected, found = (read_journal(run_dir.journal_file) for run_dir in (witness, other))
    once = {(r.kind, r.step, r.data.get("set"), r.data.get("policy"), r.kind != "eval" and r.seq): r for r in reversed(found)}
    newest = (list_checkpoints(run_dir.checkpoints)[-1] for run_dir in (witness, other))
    return [
        *journal_differences(expected, list(reversed(once.values()))),
        *table_differences(witness, other),
        *checkpoint_differences(*newest),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all places, or those whose numbers are given; return 1 where one has faults."""
    chosen = list(arguments if arguments is not None else sys.argv[1:])
    folder = Path(chosen[0]).resolve()
    from_python.run_watched = in_this_process
    for name in PRELOADED:
        importlib.import_module(name)
    witness = folder / "witness"
    (witness / "root").mkdir(parents=True)
    for path in (folder, witness):
        write_model(path / "model")
    os.environ["GRPO_CACHE"] = str(witness / "cache")
    status, _ = forked(lambda: live(witness / "root"), folder / "witness.log")
    if status:
        sys.stderr.write((folder / "witness.log").read_text())
        return 1
    worst = 0
    for number in map(int, chosen[1:] or range(len(PLACES))):
        place, below = PLACES[number], folder / f"{number:02}"
        below.mkdir()
        shutil.copytree(folder / "model", below / "model")
        found = try_place(place, below, RunDir(witness / "root" / "run"))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        worst = worst or int(bool(found["faults"]))
    return worst


if __name__ == "__main__":
    sys.exit(main())
