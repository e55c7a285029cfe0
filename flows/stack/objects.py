"""Every object of the artifact store as a tar stream: `python -m flows.stack.objects save > FILE`, `... load < FILE`.

Through the S3 protocol, since a store may keep parts of an object (type, checksum) beside the file; another store can load it.
"""

import io
import sys
import tarfile
import tempfile
from typing import IO, Any

from flows.stack.cluster import store_variables
from flows.stack.store import BUCKET, ensure_bucket, objects_client

IN_MEMORY_BYTES = 64 * 1024 * 1024


def save(stream: IO[bytes]) -> int:
    """Write every object; return how many there were."""
    client, count = objects_client(store_variables()), 0
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for found in page.get("Contents", []):
                _save_one(client, found["Key"], archive)
                count += 1
    return count


def load(stream: IO[bytes]) -> int:
    """Put every object of a stream into the store, over one of its name; return how many there were."""
    variables, count = store_variables(), 0
    client = objects_client(variables)
    ensure_bucket(variables)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                # Whole: a request that is repeated begins again, which the stream cannot.
                with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as whole:
                    _copy(file, whole)
                    client.upload_fileobj(whole, BUCKET, member.name)
                count += 1
    return count


def _save_one(client: Any, key: str, archive: tarfile.TarFile) -> None:
    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as whole:
        client.download_fileobj(BUCKET, key, whole)
        member = tarfile.TarInfo(key)
        member.size = whole.tell()
        whole.seek(0)
        archive.addfile(member, whole)


def _copy(source: IO[bytes], target: Any) -> None:
    while block := source.read(io.DEFAULT_BUFFER_SIZE):
        target.write(block)
    target.seek(0)


if __name__ == "__main__":
    moved = {"save": lambda: save(sys.stdout.buffer), "load": lambda: load(sys.stdin.buffer)}[sys.argv[1]]()
    sys.stderr.write(f"{moved} objects\n")
