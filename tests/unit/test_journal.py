"""The journal: what is written is read back, whatever is torn, and each line reaches a tail once."""

import contextlib
import hashlib
import math
from pathlib import Path

import pytest

from grpo_core.errors import JournalError
from grpo_core.run.journal import Journal, JournalTail, Record, read_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.jsonl"


def write(path: Path, *events: tuple[str, int]) -> list[Record]:
    with contextlib.closing(Journal(path)) as journal:
        return [journal.append(kind, step, {"metrics": {"kl/ref/drift": step / 10}}) for kind, step in events]


def test_what_is_appended_is_on_disk_and_read_back_with_its_digest(path: Path) -> None:
    texts = ["line\nbreak", "\u2028\x85\r", "\U0001f600", "é"]
    with contextlib.closing(Journal(path)) as journal:
        written = [journal.append("alert", step, {"text": text}) for step, text in enumerate(texts)]
        assert read_journal(path) == written
        assert [record.seq for record in written] == [0, 1, 2, 3]
        content = path.read_bytes()
        assert journal.mark == (len(content), hashlib.sha256(content).hexdigest())
        with pytest.raises(JournalError, match="kl/ref/k9"):  # no metric of the registry
            journal.append("step", 1, {"metrics": {"kl/ref/drift": 0.1, "kl/ref/k9": 0.1}})
        assert path.read_bytes() == content


def test_nan_and_infinities_are_text_in_the_file_and_numbers_again_when_read(path: Path) -> None:
    with contextlib.closing(Journal(path)) as journal:
        journal.append("step", 1, {"metrics": {"loss/total": math.nan, "loss/kl": math.inf, "loss/policy": -math.inf}})
    assert '"loss/total":"nan","loss/kl":"inf","loss/policy":"-inf"' in path.read_text()
    metrics = read_journal(path)[0].metrics
    assert math.isnan(metrics["loss/total"])
    assert (metrics["loss/kl"], metrics["loss/policy"]) == (math.inf, -math.inf)


def test_a_tail_yields_each_whole_line_once_while_it_is_written_in_pieces(tmp_path: Path, path: Path) -> None:
    written = write(path, ("start", 0), ("step", 1), ("resume", 0), ("step", 1), ("end", 1))
    content, copy, seen = path.read_bytes(), tmp_path / "copy.jsonl", list[Record]()
    tail = JournalTail(copy)
    for end in range(0, len(content) + 7, 7):
        seen += tail.read()
        assert seen == written[: content[: max(0, end - 7)].count(b"\n")]
        copy.write_bytes(content[:end])
    assert [*seen, *tail.read()] == written


def test_truncation_at_any_byte_leaves_a_prefix_of_the_records_and_the_next_stands_on_a_line_of_its_own(path: Path) -> None:
    records = write(path, ("start", 0), ("step", 1))
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole, tail = records[: content[:length].count(b"\n")], JournalTail(path)
        assert tail.read() == read_journal(path) == whole
        added = write(path, ("step", 3))
        assert tail.read() == added
        assert read_journal(path) == [*whole, *added]


@pytest.mark.parametrize(
    ("events", "left"),
    [
        (("start 0", "step 1", "step 2", "ref_sync 2", "resume 1", "step 2"), [0, 1, 4, 5]),
        (("step 1", "step 2", "resume 2", "step 3", "resume 0", "step 1"), [4, 5]),  # the last decides
        (("start 0", "step 1", "start 0", "step 1"), [0, 2, 3]),  # it died before its first checkpoint, and began again
    ],
)
def test_a_resume_supersedes_the_steps_after_it(path: Path, events: tuple[str, ...], left: list[int]) -> None:
    write(path, *((kind, int(step)) for kind, step in (event.split() for event in events)))
    assert [record.seq for record in read_journal(path)] == left


FIRST = b'{"seq":0,"time":"2026-01-01T00:00:00+00:00","kind":"step","step":1,"data":{}}'
DAMAGED = {
    "empty": b"",
    "no JSON": b"\xff{",
    "no record": b"[]",
    "a key is missing": b'{"seq":1}',
    "a figure is text": FIRST.replace(b"0,", b"1,", 1).replace(b"{}", b'{"metrics":{"kl/ref/drift":"high"}}'),
    "doubled": FIRST,
    "a line is missing": FIRST.replace(b"0,", b"2,", 1),
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(FIRST + b"\n" + line + b"\n")
    for read in (lambda: read_journal(path), lambda: JournalTail(path).read(), lambda: Journal(path)):
        with pytest.raises(JournalError, match="line 2: not a journal record"):
            read()
    with pytest.raises(JournalError, match="no journal there"):
        read_journal(tmp_path / "nowhere")
