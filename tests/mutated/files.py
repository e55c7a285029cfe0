"""The files of a folder, changed for a moment."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MANIFEST = "manifest.json"


class Files(dict[str, bytes]):
    """{path inside the folder: content} as it was when this was made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        super().__init__({str(path.relative_to(folder)): path.read_bytes() for path in files})

    @contextmanager
    def changed(self, contents: Mapping[str, bytes | None]) -> Iterator[None]:
        """Give files another content, or take them away (None), while inside."""
        try:
            for name, content in contents.items():
                self._put(name, content)
            yield
        finally:
            for name in contents:
                self._put(name, self.get(name))

    def _put(self, name: str, content: bytes | None) -> None:
        if content is None:
            (self._folder / name).unlink(missing_ok=True)
        else:
            (self._folder / name).write_bytes(content)


def sealed(files: Files, damage: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return the damage with a manifest that vouches for it."""
    digests = json.loads(files[MANIFEST])
    for name, content in damage.items():
        digests.pop(name, None)
        if content is not None:
            digests[name] = sha256(content)
    return {**damage, MANIFEST: json.dumps(digests).encode()}


def sha256(content: bytes) -> str:
    """Return the digest that manifests hold."""
    return hashlib.sha256(content).hexdigest()
