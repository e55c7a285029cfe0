from pathlib import Path

import pytest

from grpo_core.config import load_config
from grpo_core.machine.hardware import needed_variables
from grpo_core.run.fit import slow_dtype_warnings

CPU = """processor	: 0
model name	: Intel(R) Xeon(R) Processor
cpuid level	: {level}
flags		: fpu avx512f avx512_fp16 {flags}

processor	: 1
model name	: another
"""


def _cpuinfo(folder: Path, level: int, flags: str) -> Path:
    file = folder / "cpuinfo"
    file.write_text(CPU.format(level=level, flags=flags))
    return file


def test_amx_without_a_description_of_its_tiles_is_not_used(tmp_path: Path) -> None:
    assert needed_variables(_cpuinfo(tmp_path, 28, "amx_bf16 amx_tile")) == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


@pytest.mark.parametrize(("level", "flags"), [(29, "amx_bf16 amx_tile"), (31, "amx_tile"), (28, "avx512_bf16"), (13, "")])
def test_other_cpus_are_left_alone(tmp_path: Path, level: int, flags: str) -> None:
    assert needed_variables(_cpuinfo(tmp_path, level, flags)) == {}


def test_products_in_bfloat16_work_here() -> None:
    """On a machine that announces AMX and hides its tiles, this test ended with its process."""
    import torch

    product = torch.nn.functional.linear(torch.ones(4, 32, dtype=torch.bfloat16), torch.ones(64, 32, dtype=torch.bfloat16))
    assert product.unique().tolist() == [32.0]


@pytest.mark.parametrize(("flags", "warned"), [("avx2", True), ("avx2 avx512bw", False), ("avx2 avx_ne_convert", False)])
def test_bfloat16_without_fast_kernels_is_warned_about(tmp_path: Path, flags: str, warned: bool) -> None:
    config = load_config("quickstart", {"training.device": "cpu"})
    cpuinfo = _cpuinfo(tmp_path, 16, flags)
    assert [
        text.startswith("model.dtype: bfloat16 is several times slower") for text in slow_dtype_warnings(config, cpuinfo)
    ] == ([True] if warned else [])


@pytest.mark.parametrize("overrides", [{"model.dtype": "float32", "training.device": "cpu"}, {"training.device": "cuda"}])
def test_float32_and_gpus_need_no_warning_about_bfloat16(tmp_path: Path, overrides: dict[str, object]) -> None:
    assert slow_dtype_warnings(load_config("quickstart", overrides), _cpuinfo(tmp_path, 16, "avx2")) == ()
