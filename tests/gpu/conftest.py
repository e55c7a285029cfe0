"""What the checks of a GPU share: the device, sizes, and figures that end up in the summary and in the JUnit file.

    make gpu-check                                        # on the GPU that is here
    GRPO_CHECK_DEVICE=cpu make gpu-check                  # the smallest sizes on a CPU: shows that the checks run, no more

`GRPO_CHECK_MODEL` names a model's folder, `GRPO_CHECK_DATA` a file of GSM8K's rows.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from grpo_core.policy.device import choose_kernels, held_device

Figure = float | int | str | bool | None
PROPERTY = "figure "


@dataclass(frozen=True, kw_only=True)
class Check:
    device: torch.device
    folder: Path
    """For its models and runs."""
    model: Path | None
    """A model's folder, where one was named."""
    data: Path | None
    """A file of GSM8K's rows, where one was named."""

    @property
    def small(self) -> bool:
        return self.device.type == "cpu"

    @contextlib.contextmanager
    def held(self) -> Iterator[torch.device]:
        """Yield the device, held against other runs, with this project's choice of kernels."""
        choose_kernels(deterministic=False)
        with held_device(self.device):
            yield self.device
        if not self.small:
            torch.cuda.empty_cache()  # for the trainings of other checks, which are processes of their own


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """The device of the checks; without CUDA they are skipped unless a CPU is asked for."""
    device = torch.device(os.environ.get("GRPO_CHECK_DEVICE", "cuda"))
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device; GRPO_CHECK_DEVICE=cpu runs the smallest sizes on a CPU")
    model, data = (os.environ.get(f"GRPO_CHECK_{name}") for name in ("MODEL", "DATA"))
    return Check(device=device, folder=tmp_path, model=Path(model) if model else None, data=Path(data) if data else None)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, Figure], None]:
    return lambda name, value: record_property(PROPERTY + name, f"{value:.5g}" if isinstance(value, float) else value)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        found = [(name.removeprefix(PROPERTY), value) for name, value in report.user_properties if name.startswith(PROPERTY)]
        if found and report.when == "call":
            terminalreporter.section(f"{report.nodeid.rpartition('::')[2]}: {report.outcome}, {report.duration:.0f} s", sep="-")
            for name, value in found:
                terminalreporter.line(f"{name}: {value}")
