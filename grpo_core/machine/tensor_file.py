"""What a safetensors file holds, from its header alone: no tensor is read, and torch is not needed."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 100_000_000
METADATA = "__metadata__"


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
