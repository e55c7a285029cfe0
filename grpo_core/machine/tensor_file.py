"""What a safetensors file holds, without torch: names, types and shapes from its header."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file."""

    dtype: str
    """By the name that the format has for it, such as F32 or BF16."""
    shape: tuple[int, ...]


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return {name: tensor} of a safetensors file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no safetensors file, or one that is cut off.
    """
    try:
        with safe_open(file, framework="np") as tensors:  # "pt" would reserve memory for all of them
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118  (it is no dict)
            return {name: StoredTensor(part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        raise ValueError(
            f"{file.name}: {error}; copy or download it again (`git lfs pull` replaces a pointer by its file)"
        ) from error
