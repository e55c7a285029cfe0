"""What a safetensors file holds, without torch: names, types and shapes from its header, and whether all numbers are finite."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 100_000_000
METADATA = "__metadata__"
EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""Of each type: integers as wide, and the bits that are all set in infinities and NaN alone."""


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
    with file.open("rb") as stream:
        start = stream.read(LENGTH.size)
        if len(start) < LENGTH.size or LENGTH.unpack(start)[0] > LARGEST_HEADER:
            raise ValueError("not a safetensors header")
        header = json.loads(stream.read(LENGTH.unpack(start)[0]))
        content = file.stat().st_size - stream.tell()
    try:
        facts_of = {name: facts for name, facts in header.items() if name != METADATA}
        missing = max((int(facts["data_offsets"][1]) for facts in facts_of.values()), default=0) - content
        tensors = {name: StoredTensor(str(facts["dtype"]), tuple(map(int, facts["shape"]))) for name, facts in facts_of.items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("not a safetensors header") from error
    if missing > 0:
        raise ValueError(f"cut off: {missing} bytes are missing")
    return tensors


def first_not_finite(file: Path) -> str | None:
    """Return the name of the first tensor that holds NaN or an infinity, by name; None where none does.

    Args:
        file: that `stored_tensors` reads; types other than F32, F16 and BF16 are not looked at.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        header = json.loads(stream.read(LENGTH.unpack(stream.read(LENGTH.size))[0]))
        begin = stream.tell()
        for name in sorted(header.keys() - {METADATA}):
            kind, mask = EXPONENTS.get(header[name]["dtype"], ("", 0))
            first, end = header[name]["data_offsets"]
            stream.seek(begin + first)
            if mask and np.any(np.frombuffer(stream.read(end - first), dtype=kind) & mask == mask):
                return str(name)
    return None
