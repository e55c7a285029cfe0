"""The journal: what is written is read back, whatever is torn, and each line reaches a tail once."""

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_core.errors import JournalError
from grpo_core.run.journal import Journal, JournalTail, Record, read_journal, read_records


def write(path: Path, *events: tuple[str, int]) -> list[Record]:
    journal = Journal(path)
    records = [journal.append(kind, step, {"metrics": {"kl/ref/drift": step / 10}}) for kind, step in events]
    journal.close()
    return records


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    written = write(path, ("start", 0), ("step", 1), ("ref_sync", 1), ("step", 2), ("end", 2))
    assert read_journal(path) == written
    assert [record.seq for record in written] == [0, 1, 2, 3, 4]


def test_nan_and_infinities_are_text_in_the_file_and_numbers_again_when_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("step", 1, {"metrics": {"loss/total": math.nan, "loss/kl": math.inf, "loss/policy": -math.inf}})
    journal.close()
    assert '"loss/total":"nan","loss/kl":"inf","loss/policy":"-inf"' in path.read_text()
    metrics = read_journal(path)[0].metrics
    assert math.isnan(metrics["loss/total"])
    assert (metrics["loss/kl"], metrics["loss/policy"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("text", ["line\nbreak", "\u2028\x85\r", "\U0001f600", "é"])
def test_any_text_keeps_to_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("alert", 1, {"text": text})
    journal.append("alert", 2, {"text": text})
    journal.close()
    assert [record.data["text"] for record in read_journal(path)] == [text, text]


def test_a_tail_yields_each_whole_line_once_while_it_is_written_in_pieces(tmp_path: Path) -> None:
    source, path = tmp_path / "source.jsonl", tmp_path / "journal.jsonl"
    written = write(source, ("start", 0), ("step", 1), ("resume", 0), ("step", 1), ("end", 1))
    content = source.read_bytes()
    tail = JournalTail(path)
    assert list(tail.read()) == []
    seen: list[Record] = []
    for start in range(0, len(content), 7):
        with path.open("ab") as file:
            file.write(content[start : start + 7])
        seen += tail.read()
        assert len(seen) == content[: start + 7].count(b"\n")
    assert seen == written
    assert list(tail.read()) == []


def test_a_tail_follows_a_journal_that_was_torn_and_reopened(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = write(path, ("step", 1))
    with path.open("ab") as file:
        file.write(b'{"seq":1')
    tail = JournalTail(path)
    assert list(tail.read()) == first
    second = write(path, ("step", 2))
    assert list(tail.read()) == second


def test_an_unregistered_metric_is_refused_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with pytest.raises(JournalError, match="kl/ref/k9"):
        journal.append("step", 1, {"metrics": {"kl/ref/drift": 0.1, "kl/ref/k9": 0.1}})
    journal.close()
    assert path.read_bytes() == b""


def test_truncation_at_any_byte_leaves_a_prefix_of_the_records(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    records = write(path, ("start", 0), ("step", 1))
    content = path.read_bytes()
    for length in range(len(content) + 1):
        kept = content[:length]
        path.write_bytes(kept)
        assert read_journal(path) == records[: kept.count(b"\n")]
        added = write(path, ("step", 3))
        assert read_journal(path) == [*records[: kept.count(b"\n")], *added]


def test_the_mark_is_the_digest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, ("start", 0))
    journal = Journal(path)
    journal.append("step", 1, {})
    content = path.read_bytes()
    assert journal.mark == (len(content), hashlib.sha256(content).hexdigest())
    journal.close()


def test_records_of_two_threads_are_numbered_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with ThreadPoolExecutor(max_workers=4) as threads:
        list(threads.map(lambda step: journal.append("step", step, {"metrics": {}}), range(1, 60)))
    journal.close()
    assert sorted(record.step for record in read_records(path)) == list(range(1, 60))
    assert journal.last_step == 59


@pytest.mark.parametrize(
    ("events", "left"),
    [
        (("start 0", "step 1", "step 2", "ref_sync 2", "resume 1", "step 2"), [0, 1, 4, 5]),
        (("step 1", "step 2", "resume 2", "step 3", "resume 0", "step 1"), [4, 5]),  # the last decides
        (("start 0", "step 1", "start 0", "step 1"), [0, 2, 3]),  # it died before its first checkpoint, and began again
    ],
)
def test_a_resume_supersedes_the_steps_after_it(tmp_path: Path, events: tuple[str, ...], left: list[int]) -> None:
    path = tmp_path / "journal.jsonl"
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
