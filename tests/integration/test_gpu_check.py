"""`make gpu-check` from end to end on the CPU, with the smallest sizes; what it says is equal is found out where it is not."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check.catalogue import PARTS
from benchmarks.gpu_check.parts import parity
from benchmarks.gpu_check.report import Report
from benchmarks.random_models import TINY, write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
MEASURE = {"device", "launches", "speed"}
SKIPPED = {"two-devices", "nccl", "vllm-server", "vllm-colocate"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("check")
    rows = [{"question": f"{n} and {n + 1} ?", "answer": f"A sum. #### {2 * n + 1}"} for n in range(60)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["--model", str(write_model(TINY, folder / "model")), "--data", str(folder / "rows.jsonl")]
    others = [part.name for part in PARTS if not part.name.startswith("vllm")]
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--small", "--output", str(folder / "report")]
    done = subprocess.run([*command, *named, "--only", *others], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Report.from_json((folder / "report" / "report.json").read_text())


def test_every_part_that_a_cpu_can_run_comes_to_its_verdict(report: Report) -> None:
    verdicts = {outcome.name: outcome.result.verdict for outcome in report.outcomes}
    expected = {part.name: "measured" if part.name in MEASURE else "passed" for part in PARTS if part.name not in SKIPPED}
    assert verdicts == {**expected, "two-devices": "skipped", "nccl": "skipped"}
    assert (report.state, report.small, report.device) == ("finished", True, "cpu")


def test_the_figures_are_those_of_runs_that_learn(report: Report) -> None:
    found = {outcome.name: outcome.result for outcome in report.outcomes}
    for dtype in ("float32", "bfloat16"):
        assert found["bitwise"].figures[f"{dtype}: steps"] == 3
        assert found["bitwise"].figures[f"{dtype}: distance from the reference"] > 0.01
    assert found["killed"].figures["lives"] == 3
    kills = [row[0] for row in found["killed"].tables[0].rows]
    assert ["killed in update" in kills[0], "killed in write" in kills[1]] == [True, True]
    (phases, _) = found["speed"].tables
    assert [row[0] for row in phases.rows] == ["native", "trl"]
    assert [row[0] for row in found["peaks"].tables[0].rows] == ["a large vocabulary, short completions"] * 4
    assert (
        found["launches"].figures["lean: per token and layer"] < found["launches"].figures["transformers: per token and layer"]
    )
    assert found["parity"].figures["from the CPU: gradients, relative"] > 0  # two ways to compute, not one


def test_products_of_ten_bits_are_outside_of_the_bounds_of_parity() -> None:
    """As TF32 would round the inputs of products: here the weights alone."""
    inputs = parity._inputs(TINY, 2, 24)
    exact = parity.updated(inputs, CPU, torch.float32, padded=True)
    with torch.no_grad():
        for parameter in [*inputs.policy.parameters(), *inputs.reference.parameters()]:
            parameter.copy_(((parameter.view(torch.int32) + 2**12) >> 13 << 13).view(torch.float32))
    found = parity.differences(parity.updated(inputs, CPU, torch.float32, padded=True), exact)
    assert found["gradients, relative"] > parity.BOUND
    assert found["figures, relative, most"] > parity.BOUND
    same = parity.differences(exact, replace(exact))
    assert set(same.values()) == {0.0}


def test_a_check_that_is_ended_keeps_what_it_has_found_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    program = (
        "import sys\nfrom benchmarks.gpu_check.__main__ import main\nfrom tests.unit.test_gpu_check import PLANTED\n"
        "sys.exit(main(sys.argv[1:], [part for part in PLANTED if part.name in ('dying', 'hanging')]))"
    )
    arguments = ["--device", "cpu", "--model", str(tmp_path / "model"), "--output", str(tmp_path / "report")]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "model" / "pid"
    try:
        deadline = time.monotonic() + 60
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.wait()
    report = Report.from_json((tmp_path / "report" / "report.json").read_text())
    assert report.state == "interrupted"
    assert [outcome.name for outcome in report.outcomes] == ["dying"]
    stat = Path(f"/proc/{int(pid_file.read_text())}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
