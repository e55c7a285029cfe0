"""The devices of this machine as torch sees them, behind a small protocol, so that plans can be tried for machines not here."""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from benchmarks.gpu_check.environment import ROOT
from grpo_core.machine.hardware import gpus, processor


class DeviceLayer(Protocol):
    """What is asked of CUDA."""

    def count(self) -> int:
        """Return how many devices can be used."""
        ...

    def name(self, index: int) -> str:
        """Return the product's name."""
        ...

    def memory(self, index: int) -> tuple[int, int]:
        """Return (free, total) bytes."""
        ...

    def capability(self, index: int) -> tuple[int, int]:
        """Return the compute capability."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of torch and of what it brings: `torch`, `cuda`, `cudnn`, `nccl`."""
        ...

    def backends(self) -> dict[str, bool]:
        """Return which attentions torch's flags allow, before this project changes them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU."""

    name: str
    free: int
    """Bytes when it was looked at."""
    total: int
    capability: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.name} ({self.total / 1e9:.0f} GB, {self.free / 1e9:.0f} free, sm_{self.capability.replace('.', '')})"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the plan depends on, and the head of the report."""

    devices: tuple[Device, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    backends: Mapping[str, bool] = field(default_factory=dict)
    driver: str | None = None
    processor: str = ""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why torch could not be asked."""

    @property
    def is_mig(self) -> bool:
        """Whether a device is a part of a GPU (MIG)."""
        return any("MIG" in device.name for device in self.devices)

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"mig": self.is_mig}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Machine":
        """Return what `as_json` gave."""
        rest = {key: value for key, value in found.items() if key not in ("devices", "mig")}
        return cls(devices=tuple(Device(**device) for device in found["devices"]), **rest)


class TorchDevices:
    """CUDA through torch."""

    def count(self) -> int:
        """See `DeviceLayer.count`."""
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def name(self, index: int) -> str:
        """See `DeviceLayer.name`."""
        import torch

        return torch.cuda.get_device_name(index)

    def memory(self, index: int) -> tuple[int, int]:
        """See `DeviceLayer.memory`."""
        import torch

        free, total = torch.cuda.mem_get_info(index)
        return int(free), int(total)

    def capability(self, index: int) -> tuple[int, int]:
        """See `DeviceLayer.capability`."""
        import torch

        return torch.cuda.get_device_capability(index)

    def versions(self) -> dict[str, str]:
        """See `DeviceLayer.versions`."""
        import torch

        found = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if torch.version.cuda and self.count():
            nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
            found |= {"cudnn": torch.backends.cudnn.version(), "nccl": None if nccl is None else ".".join(map(str, nccl))}
        return {name: str(version) for name, version in found.items() if version is not None}

    def backends(self) -> dict[str, bool]:
        """See `DeviceLayer.backends`."""
        from torch.backends import cuda

        return {
            "flash": cuda.flash_sdp_enabled(),
            "efficient": cuda.mem_efficient_sdp_enabled(),
            "math": cuda.math_sdp_enabled(),
            "cudnn": cuda.cudnn_sdp_enabled(),
        }


def look(layer: DeviceLayer) -> Machine:
    """Return what a layer says of its devices."""
    count = layer.count()
    return Machine(
        devices=tuple(_device(layer, index) for index in range(count)),
        versions=layer.versions(),
        backends=layer.backends() if count else {},
        driver=gpus()[1] if count else None,
        processor=processor(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _device(layer: DeviceLayer, index: int) -> Device:
    free, total = layer.memory(index)
    major, minor = layer.capability(index)
    return Device(name=layer.name(index), free=free, total=total, capability=f"{major}.{minor}")


def torch_pin() -> str | None:
    """Return the version of torch that this project pins, None where pyproject.toml pins none."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next((text.removeprefix("torch==") for text in needed if text.startswith("torch==")), None)


if __name__ == "__main__":  # a process of its own: asking for free memory takes some of it
    sys.stdout.write(json.dumps(look(TorchDevices()).as_json()) + "\n")
