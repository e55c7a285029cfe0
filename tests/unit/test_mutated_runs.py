"""Mutations of what a run leaves behind: journal, checkpoint, frozen prompts, and the small files of a RUN_DIR.

A damaged file is refused by its name; a damaged checkpoint is never loaded as if it were whole.
"""

import json
import math
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.config import Origin, RunConfig, run_name, validate_config
from grpo_core.data.frozen import load_frozen, read_manifest
from grpo_core.data.prepare import prepare
from grpo_core.evaluation.plan import find_subject
from grpo_core.policy.checkpoint import load_checkpoint, verify_checkpoint
from grpo_core.policy.reference import Reference
from grpo_core.policy.saved import TrainingState, list_checkpoints, read_mark, read_state
from grpo_core.policy.trainable import Trainable
from grpo_core.run.alerts import add_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import KINDS, Journal, JournalTail, Record, read_journal
from grpo_core.run.record import Chain
from grpo_core.run.summary import describe_result, run_status
from grpo_core.run.tables import sync_table
from grpo_core.training.__main__ import main
from tests.conftest import build_model
from tests.mutated.files import Files, sealed, sha256
from tests.mutated.oracle import REFUSED, Tally, outcome, parses, search
from tests.mutated.plan import PLAN
from tests.mutated.strategies import as_json, mutated_bytes, mutated_trees
from tests.policies import policy_of


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> RunDir:
    """A finished training of the tiny model: three steps, a sync, two checkpoints, and what a monitor adds."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    changes = {"training": {**tiny_values["training"], "steps": 3, "checkpoint_every": 2}}
    config = validate_config({**tiny_values, **changes})
    made = RunDir(tmp_path_factory.mktemp("runs") / "run")
    made.create(config, Origin(preset="tiny", changes={"training.steps": (4, 3), "training.checkpoint_every": (None, 2)}))
    prepare(config, made.data)
    assert main([str(made.path)]) == 0
    add_alert(made, 1, "kl/ref/drift is 0.7, over 0.5")
    add_alert(made, 2, "a second alert\u2028")
    tracked = {"uri": "sqlite:///mlflow.db", "experiment_id": "1", "run_id": "f" * 32, "name": "tiny"}
    made.tracking_file.write_text(json.dumps(tracked))
    made.process_file.write_text(json.dumps({"pid": 4711, "returncode": 0, "left": False}))
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    make_repeatable(made)
    return made


def make_repeatable(run_dir: RunDir) -> None:
    """Give the journal the same times and durations in every run of these tests, and its checkpoints the marks that fit."""
    records = json_lines(run_dir.journal_file.read_bytes())
    chain, lines, digests = Chain(), [], []
    for record in records:
        record["time"] = f"2026-01-01T00:00:{record['seq']:02}.000000+00:00"
        record["data"].pop("config", None)  # it names a folder of this session
        metrics = record["data"].get("metrics", {})
        metrics.update({key: 1.0 for key in metrics if key.startswith(("time/", "perf/"))})
        del record["digest"]
        line, digest = chain.seal(json.dumps(record, separators=(",", ":")).encode())
        chain.digest = digest
        lines.append(line + b"\n")
        digests.append(digest)
    run_dir.journal_file.write_bytes(b"".join(lines))
    for folder in list_checkpoints(run_dir.checkpoints):
        files = Files(folder)
        mark = json.loads(files["journal.json"])
        damage = {"journal.json": as_json({**mark, "digest": digests[mark["records"] - 1]})}
        for name, content in sealed(files, damage).items():
            assert content is not None
            (folder / name).write_bytes(content)


# Journals


def json_lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def assert_records(records: list[Record]) -> None:
    for record in records:
        assert record.kind in KINDS
        assert type(record.seq) is type(record.step) is int
        assert record.seq >= 0 <= record.step
        assert record.timestamp_ms > 0
        assert all(isinstance(key, str) and isinstance(value, float) for key, value in record.metrics.items())
    assert [record.seq for record in records] == sorted({record.seq for record in records})


def min_records(run_dir: RunDir) -> int:
    """Return how many records the newest checkpoint was saved after: a run's status is not given for fewer."""
    marks = [read_mark(checkpoint) for checkpoint in list_checkpoints(run_dir.checkpoints)]
    return max((mark.records for mark in marks if mark is not None), default=0)


def judge_journal(run_dir: RunDir, content: bytes, intact: bytes, tally: Tally) -> None:
    path = run_dir.journal_file
    path.write_bytes(content)
    records = outcome(lambda: read_journal(path), str(path))
    tally.count(content, parses(lambda: json_lines(content)), records is not REFUSED)
    tailed = outcome(lambda: list(JournalTail(path).read()), str(path))
    status = outcome(lambda: run_status(run_dir), str(path))
    assert (tailed is REFUSED) == (records is REFUSED)
    assert status is REFUSED or records is not REFUSED
    whole = content[: content.rfind(b"\n") + 1]
    if records is not REFUSED:
        assert_records(records)
        if records:  # whatever was changed within a journal that has digests is refused; only its end can be missing
            assert intact.startswith(whole) or not any(record.digest for record in records)
        assert status is REFUSED or whole.count(b"\n") >= min_records(run_dir)
        assert status is REFUSED or status.state in ("finished", "stopped", "failed", "died", "not started")
        facts = outcome(lambda: describe_result(records, None), "step")
        assert facts is REFUSED or all(isinstance(fact, str) for fact in facts)
        syncs = outcome(lambda: sync_table(records), "ref_sync")
        assert syncs is REFUSED or len(syncs) == sum(record.kind == "ref_sync" for record in records)
    appended = outcome(lambda: append(path), str(path))
    assert (appended is REFUSED) == (records is REFUSED)
    if appended is not REFUSED:
        assert path.read_bytes() == whole + json.dumps(asdict(appended), separators=(",", ":")).encode() + b"\n"
        assert read_journal(path)[-1] == appended


def append(path: Path) -> Record:
    journal = Journal(path)
    try:
        return journal.append("resume", 1, {"steps": 3})
    finally:
        journal.close()


@pytest.fixture
def journal(run_dir: RunDir) -> Iterator[bytes]:
    """The journal's content; it is put back after the test."""
    content = run_dir.journal_file.read_bytes()
    yield content
    run_dir.journal_file.write_bytes(content)


@pytest.fixture
def older(run_dir: RunDir, journal: bytes) -> Iterator[list[Any]]:
    """The journal's records without digests, which let mutations through that a chain refuses; checkpoints are away."""
    away = run_dir.checkpoints.rename(run_dir.path / "away")
    yield [{key: value for key, value in record.items() if key != "digest"} for record in json_lines(journal)]
    away.rename(run_dir.checkpoints)


def test_mutated_records_of_a_journal_of_an_older_version(run_dir: RunDir, journal: bytes, older: list[Any]) -> None:
    records = older
    tally = Tally([journal])

    @search(400)
    @given(tree=mutated_trees(records))
    def run(tree: Any) -> None:
        lines = tree if isinstance(tree, list) else [tree]
        judge_journal(run_dir, b"".join(as_json(line) + b"\n" for line in lines), journal, tally)

    run()
    tally.check("records of a journal", *PLAN["records of a journal"])


def test_mutated_bytes_of_a_journal(run_dir: RunDir, journal: bytes) -> None:
    tally = Tally([journal])

    @search(300)
    @given(content=mutated_bytes(journal))
    def run(content: bytes) -> None:
        judge_journal(run_dir, content, journal, tally)

    run()
    tally.check("bytes of a journal", *PLAN["bytes of a journal"])


# The small files of a RUN_DIR


def read_facts(run_dir: RunDir, name: str) -> Any:
    """Read one of the small files as the product does; return what must be valid about it."""
    if name == "config.json":
        return run_dir.read_config()
    if name == "origin.json":
        return run_dir.read_origin()
    if name == "alerts.jsonl":
        return [alert.text for alert in monitor_alerts(run_dir)]
    if name == "tracking.json":
        from tasks.tracking.store import read_tracked

        return read_tracked(run_dir)
    return run_status(run_dir)


def assert_facts(run_dir: RunDir, facts: Any) -> None:
    if isinstance(facts, RunConfig):
        assert validate_config(json.loads(json.dumps(facts.model_dump(mode="json"), allow_nan=False))) == facts
    elif isinstance(facts, Origin):
        assert run_name(run_dir.read_config(), facts)
    elif isinstance(facts, list):
        assert all(isinstance(text, str) for text in facts)
    elif hasattr(facts, "run_id"):
        values = asdict(facts)
        assert all(isinstance(value, str) for value in values.values())
    else:
        assert facts.state == "finished"


SMALL_FILES = ("config.json", "origin.json", "tracking.json", "alerts.jsonl", "process.json")


@pytest.mark.parametrize("name", SMALL_FILES)
def test_mutated_small_files(run_dir: RunDir, name: str) -> None:
    path = run_dir.path / name
    content = path.read_bytes()
    lines = name.endswith("l")
    tree = json_lines(content) if lines else json.loads(content)
    tally = Tally([content, as_json(tree)])

    def encoded(mutated: Any) -> bytes:
        if lines:
            return b"".join(as_json(line) + b"\n" for line in (mutated if isinstance(mutated, list) else [mutated]))
        return as_json(mutated)

    @search(110)
    @given(mutated=st.one_of(mutated_trees(tree).map(encoded), mutated_trees(tree).map(encoded), mutated_bytes(content)))
    def run(mutated: bytes) -> None:
        path.write_bytes(mutated)
        facts = outcome(lambda: read_facts(run_dir, name), name, *RunConfig.model_fields, "config: ", ": unknown key")
        tally.count(mutated, parses(lambda: json_lines(mutated) if lines else json.loads(mutated)), facts is not REFUSED)
        if facts is not REFUSED:
            assert_facts(run_dir, facts)

    try:
        run()
    finally:
        path.write_bytes(content)
    tally.check(f"small files: {name}", *PLAN["small files"], refuses=name != "process.json")


# Frozen prompts


def test_mutated_frozen_prompts(run_dir: RunDir) -> None:
    files = Files(run_dir.data)
    expected = load_frozen(run_dir.data)
    manifest = json.loads(files["manifest.json"])
    tally = Tally(list(files.values()))

    @search(150)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(["manifest.json", "manifest.json", "train.jsonl", "eval.jsonl"]))
        tree = mutated_trees(manifest).map(as_json) if name == "manifest.json" else mutated_bytes(files[name][:2000])
        content = data.draw(st.one_of(tree, mutated_bytes(files[name])))
        with files.changed({name: content}):
            outcome(lambda: read_manifest(run_dir.data), "manifest.json")
            prompts = outcome(lambda: load_frozen(run_dir.data), "manifest", name)
        tally.count(
            content, parses(lambda: json_lines(content) if name.endswith("l") else json.loads(content)), prompts is not REFUSED
        )
        assert prompts is REFUSED or prompts == expected

    run()
    tally.check("frozen prompts", *PLAN["frozen prompts"])


def test_mutated_frozen_prompts_with_the_right_digest(run_dir: RunDir) -> None:
    files = Files(run_dir.data)
    manifest, rows = json.loads(files["manifest.json"]), json_lines(files["train.jsonl"])[:3]
    tally = Tally([])

    @search(150)
    @given(tree=mutated_trees(rows))
    def run(tree: Any) -> None:
        lines = tree if isinstance(tree, list) else [tree]
        content = b"".join(as_json(line) + b"\n" for line in lines)
        facts = {**manifest, "train_sha256": sha256(content), "num_train": len(lines)}
        with files.changed({"train.jsonl": content, "manifest.json": as_json(facts)}):
            prompts = outcome(lambda: load_frozen(run_dir.data), "train.jsonl", "manifest.json")
        tally.count(content, parsed=True, accepted=prompts is not REFUSED)
        for prompt in () if prompts is REFUSED else prompts[0]:
            assert isinstance(prompt.text, str)
            assert prompt.token_ids
            assert all(type(token) is int and token >= 0 for token in prompt.token_ids)
            assert prompt.content

    run()
    tally.check("frozen rows", *PLAN["frozen rows"])


# Checkpoints


@pytest.fixture(scope="module")
def live() -> Trainable:
    """What a checkpoint is restored into."""
    policy = policy_of(build_model(seed=1))
    optimizer = AdamW(policy.parameters(), lr=1e-3, fused=True)
    schedule = LambdaLR(optimizer, lambda _index: 1.0)
    return Trainable(policy=policy, reference=Reference(policy), optimizer=optimizer, schedule=schedule)


def snapshot(live: Trainable, state: TrainingState) -> tuple[Any, ...]:
    """Everything that a checkpoint restores, in a form that can be compared."""
    models = (live.policy, live.reference.current, live.reference.initial)
    weights = [None if model is None else [bytes(p.detach().numpy().data) for p in model.parameters()] for model in models]
    moments = [bytes(value.numpy().data) for slot in live.optimizer.state.values() for value in slot.values()]
    return state, weights, moments, live.schedule.state_dict(), live.reference.sync_count, live.reference.last_sync_step


MANIFEST = "manifest.json"
NEEDED = ("policy/model.safetensors", "reference.safetensors", "initial.json", "optimizer.pt", "state.json")


@st.composite
def damages(draw: st.DrawFn, files: Files) -> dict[str, bytes | None]:
    """Return {file: its new content, None where it is gone} of a damaged checkpoint."""
    kind = draw(st.sampled_from(["manifest tree", "manifest tree", "manifest", "state tree", "file", "file", "gone", "more"]))
    name = draw(st.sampled_from([*NEEDED, MANIFEST]))
    if kind == "gone":
        return {name: None}
    if kind == "more":
        return {draw(st.sampled_from(["notes.txt", "policy/x.py", "policy/adapter_config.json", ".hidden"])): b"{}"}
    if kind == "manifest tree":
        return {
            MANIFEST: as_json(
                draw(st.one_of(mutated_trees(json.loads(files[MANIFEST])), manifests(json.loads(files[MANIFEST]))))
            )
        }
    if kind == "state tree":
        return {"state.json": as_json(draw(mutated_trees(json.loads(files["state.json"]))))}
    name = MANIFEST if kind == "manifest" else name
    if len(files[name]) > 10_000:
        at, bit = draw(st.integers(0, len(files[name]) - 1)), draw(st.integers(0, 7))
        cut = (
            files[name][:at]
            if draw(st.booleans())
            else files[name][:at] + bytes([files[name][at] ^ 1 << bit]) + files[name][at + 1 :]
        )
        return {name: cut}
    return {name: draw(mutated_bytes(files[name]))}


@st.composite
def manifests(draw: st.DrawFn, manifest: dict[str, str]) -> dict[str, Any]:
    """Return a manifest that names files outside, or leaves needed ones out."""
    name = draw(st.sampled_from(sorted(manifest)))
    outside = [
        "../step_000002/state.json",
        "../../config.json",
        "/etc/passwd",
        "policy/../state.json",
        "./state.json",
        "",
        ".",
        "x" * 5000,
    ]
    if draw(st.booleans()):
        other = draw(st.sampled_from(outside))
        digest = draw(st.sampled_from(["0" * 64, manifest["state.json"], sha256(Path("/etc/passwd").read_bytes())]))
        return {**manifest, other: digest}
    return {key: value for key, value in manifest.items() if key != name}


def test_a_damaged_checkpoint_never_loads_as_if_it_were_whole(run_dir: RunDir, live: Trainable) -> None:
    folder = list_checkpoints(run_dir.checkpoints)[-1]
    files = Files(folder)
    whole = snapshot(live, load_checkpoint(folder, live))
    tally = Tally([])

    @search(350)
    @given(damage=damages(files))
    def run(damage: dict[str, bytes | None]) -> None:
        (name,) = damage
        before = snapshot(live, whole[0])
        with files.changed(damage):
            outcome(lambda: read_state(folder), "state.json")
            checked = outcome(lambda: verify_checkpoint(folder), folder.name)
            state = outcome(lambda: load_checkpoint(folder, live), folder.name)
            subject = outcome(lambda: find_subject(str(folder)), "state.json")
            assert subject is REFUSED or Path(subject.source).name
            assert set(list_checkpoints(run_dir.checkpoints)) >= {folder} - (
                {folder} if damage.get(MANIFEST, b"") is None else set()
            )
        assert (checked is REFUSED) == (state is REFUSED)
        # It is whole again as far as anything reads it, or nothing was touched.
        assert snapshot(live, whole[0] if state is REFUSED else state) == (before if state is REFUSED else whole)
        content = damage[name] or b""
        parsed = parses(lambda: json.loads(content)) if name.endswith(".json") else damage[name] is not None
        tally.count(name.encode() + repr(damage[name]).encode(), parsed, state is not REFUSED)

    run()
    tally.check("checkpoints", *PLAN["checkpoints"])


def test_a_checkpoint_of_something_else_is_refused_and_nothing_is_touched(run_dir: RunDir, live: Trainable) -> None:
    """Damage that the manifest vouches for: the digests are right, what is in the files is not."""
    folder = list_checkpoints(run_dir.checkpoints)[-1]
    files = Files(folder)
    load_checkpoint(folder, live)
    tally = Tally([])

    @search(200)
    @given(damage=damages(files))
    def run(damage: dict[str, bytes | None]) -> None:
        (name,) = damage
        if name == MANIFEST:
            return
        before = snapshot(live, read_state(folder))
        with files.changed(sealed(files, damage)):
            state = outcome(lambda: load_checkpoint(folder, live), folder.name)
        if state is REFUSED:
            assert snapshot(live, before[0]) == before
        else:
            counters = asdict(state)
            accuracy, best_step = counters.pop("best_accuracy"), counters.pop("best_step")
            numbers = [counters.pop("reference_error_bound"), counters.pop("reference_lag")]
            assert all(type(number) is float and 0 <= number < math.inf for number in numbers)
            assert all(type(value) is int and value >= 0 for value in counters.values())
            assert best_step is None or (type(best_step) is int and best_step >= 0)
            assert accuracy is None or (type(accuracy) is float and math.isfinite(accuracy))
        load_checkpoint(folder, live)
        tally.count(name.encode() + repr(damage[name]).encode(), parsed=True, accepted=state is not REFUSED)

    run()
    tally.check("sealed checkpoints", *PLAN["sealed checkpoints"])
