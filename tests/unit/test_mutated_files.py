"""Mutations of valid configurations, data files, journals and manifests: a clear refusal or a valid value, nothing else.

Each search counts the different mutations that it tried, and how many of them a plain parser reads: PLAN is asserted.
"""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.config import (
    DataConfig,
    RunConfig,
    apply_overrides,
    check_consistency,
    load,
    load_config,
    parse_overrides,
    run_name,
    validate_config,
)
from grpo_core.config.derived import advantage_rms_factor, effective_beta, optimizer_steps, weight_of_kl
from grpo_core.config.origin import flatten
from grpo_core.data.frozen import freeze, load_frozen
from grpo_core.data.prompts import PromptSplit, build_prompts
from grpo_core.data.sources import read_rows
from grpo_core.errors import shown
from grpo_core.run.provenance import config_digest
from tests.mutated.oracle import REFUSED, Tally, outcome, parses, search
from tests.mutated.plan import PLAN
from tests.mutated.strategies import as_flow, as_json, as_yaml, mutated_bytes, mutated_trees, nudged, yaml_values

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))
KEYS = (*RunConfig.model_fields, ": unknown key", ": keys should be strings", "config: ")
"""What a refusal of a configuration names."""


def test_the_plan_is_as_large_as_promised() -> None:
    mutations, past_parser = (sum(column) for column in zip(*PLAN.values(), strict=True))
    assert mutations >= 1500
    assert past_parser >= mutations / 2


# Configurations


@pytest.fixture(scope="module")
def config_trees(tiny_values: dict[str, Any]) -> list[Any]:
    """The trees of all presets and of the tests' own configuration, and that of all defaults, where every key can be hit."""
    defaults = RunConfig().model_dump(mode="json")
    return [defaults, tiny_values, *(yaml.safe_load(path.read_text()) for path in CONFIGS)]


def assert_usable(config: RunConfig, path: Path) -> None:
    """All that is asked of a configuration before anything starts; RUN_DIR's config.json holds the same one."""
    check_consistency(config)
    beta = effective_beta(config)
    assert math.isnan(beta) or 0 <= beta < math.inf
    assert weight_of_kl(config)
    factor = advantage_rms_factor(config)
    assert factor is None or 0 < factor < 2
    assert optimizer_steps(config) >= 1
    assert load_config(path) == config
    assert run_name(config, load(path)).endswith(path.stem)
    assert flatten(config).keys() >= {"loss.beta", "training.steps"}
    values = config.model_dump(mode="json")
    text = json.dumps(values, allow_nan=False)
    assert validate_config(json.loads(text)) == config
    assert config_digest(json.loads(text)) == config_digest(values)
    text.encode("utf-8")


def judge_config(path: Path, content: bytes, tally: Tally, loader: Any = yaml.CSafeLoader) -> None:
    path.write_bytes(content)
    config = outcome(lambda: load_config(path), str(path), *KEYS)
    tally.count(content, parses(lambda: yaml.load(content, Loader=loader)), config is not REFUSED)
    if config is not REFUSED:
        assert_usable(config, path)


@pytest.mark.proof
def test_mutated_trees_of_configurations(config_trees: list[Any], tmp_path: Path) -> None:
    tally = Tally([as_yaml(tree) for tree in config_trees])

    @search(900)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        tree = data.draw(mutated_trees(data.draw(st.sampled_from(config_trees)), yaml_values()))
        judge_config(tmp_path / "run.yaml", as_yaml(tree, allow_unicode=data.draw(st.booleans())), tally)

    run()
    tally.check("trees of configurations", *PLAN["trees of configurations"])


@pytest.mark.proof
def test_mutated_texts_of_configurations(config_trees: list[Any], tmp_path: Path) -> None:
    texts = [*(path.read_bytes() for path in CONFIGS), as_yaml(config_trees[1])]
    tally = Tally(texts)

    @search(480)
    @given(content=st.sampled_from(texts).flatmap(mutated_bytes))
    def run(content: bytes) -> None:
        judge_config(tmp_path / "run.yaml", content, tally, yaml.SafeLoader)  # libyaml's own dies of deep nesting

    run()
    tally.check("texts of configurations", *PLAN["texts of configurations"])


PATH_PIECES = [".", "..", "0", ".0", ".²", ".٣", "." + "9" * 5000, ".-1", " ", "=", ".a" * 3000]


@st.composite
def mutated_overrides(draw: st.DrawFn, defaults: dict[str, Any]) -> list[str]:
    """One or two overrides, each with another value than the default or another path."""
    texts = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        key = draw(st.sampled_from(sorted(defaults)))
        value = draw(st.one_of(*[nudged(defaults[key], yaml_values())] * 3, yaml_values()))
        at, piece = draw(st.integers(0, len(key))), draw(st.one_of(st.just(""), st.just(""), st.sampled_from(PATH_PIECES)))
        texts.append(f"{key[:at]}{piece}{key[at:]}={as_flow(value)}")
    return texts


def test_mutated_overrides(tiny_values: dict[str, Any]) -> None:
    tally = Tally([])

    @search(350)
    @given(texts=mutated_overrides(flatten(RunConfig())))
    def run(texts: list[str]) -> None:
        config: Any = REFUSED
        overrides = outcome(lambda: parse_overrides(texts), "override", "given twice")
        if overrides is not REFUSED:
            named = (shown(key)[1:60] for key in overrides)
            config = outcome(lambda: validate_config(apply_overrides(tiny_values, overrides)), *named, *KEYS)
        tally.count("\n".join(texts).encode(errors="surrogatepass"), overrides is not REFUSED, config is not REFUSED)

    run()
    tally.check("overrides", *PLAN["overrides"])


# Data files


ROWS = [
    *({"question": f"{a} + {b} =", "answer": f"so #### {a + b}", "level": a} for a in range(3) for b in range(3)),
    {"question": [{"role": "system", "content": "Add"}, {"role": "user", "content": "2 + 2 ="}], "answer": "#### 4"},
    {"question": 'a\u2028b, "c"', "answer": "é #### 1", "level": None, "tags": ["x", {"y": 1.5}]},
]
PLAIN_ROWS = [{key: str(row[key]) for key in ("question", "answer")} for row in ROWS]
WAYS = [{"eval_fraction": 0}, {"eval_fraction": 0.3, "answer_after": "####"}, {"chat_template": False, "answer_column": None}]


def as_jsonl(rows: Any) -> bytes:
    return b"".join(as_json(row) + b"\n" for row in (rows if isinstance(rows, list) else [rows]))


def as_csv(rows: Any) -> bytes:
    """Whatever the rows are by now; a row that is none becomes a line of its own."""
    text = io.StringIO()
    writer = csv.writer(text)
    rows = [row for row in rows if row] if isinstance(rows, list) else [rows]
    writer.writerow(rows[0] if rows and isinstance(rows[0], dict) else ["question", "answer"])
    for row in rows:
        writer.writerow(list(row.values()) if isinstance(row, dict) else [row])
    return text.getvalue().encode(errors="surrogatepass")


def as_parquet(rows: Any) -> bytes:
    """As columns, where Arrow takes them; else as text."""
    stream = io.BytesIO()
    try:
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, stream)
    except Exception:  # noqa: BLE001  (Arrow raises many types for rows that are no table)
        pandas.DataFrame({"question": [str(rows)], "answer": [b"\xff"]}).to_parquet(stream)
    return stream.getvalue()


FORMATS = {".jsonl": (as_jsonl, ROWS), ".csv": (as_csv, PLAIN_ROWS), ".parquet": (as_parquet, PLAIN_ROWS)}


def parse_rows(suffix: str, content: bytes) -> Any:
    """Read a data file with a library."""
    if suffix == ".jsonl":
        return [json.loads(line) for line in content.split(b"\n") if line.strip()]
    if suffix == ".csv":
        return list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    return pyarrow.parquet.read_table(io.BytesIO(content))


def judge_rows(path: Path, content: bytes, way: dict[str, Any], tokenizer: Any, tally: Tally) -> None:
    path.write_bytes(content)
    config = DataConfig(source=f"file:{path}", **way)

    def prepare() -> PromptSplit:
        split = build_prompts(read_rows(config), config, tokenizer, 5000)
        freeze(split, config.source, path.parent / "data")
        return split

    split = outcome(prepare, str(path), "data.", "row ")
    tally.count(path.suffix.encode() + content, parses(lambda: parse_rows(path.suffix, content)), split is not REFUSED)
    if split is REFUSED:
        return
    assert len(split.train) + len(split.eval) > 0
    for prompt in (*split.train, *split.eval):
        assert isinstance(prompt.text, str)
        assert prompt.text.strip("\0")
        assert prompt.token_ids
        turns = [prompt.content] if isinstance(prompt.content, str) else [turn["content"] for turn in prompt.content]
        assert all(isinstance(text, str) for text in turns)
        assert config.answer_column is None or isinstance(prompt.columns["answer"], str | int | float)
    # Rows may hold NaN, which equals nothing: what is frozen is compared as text.
    assert repr(load_frozen(path.parent / "data")) == repr((split.train, split.eval)).replace("np.float64(nan)", "nan")


def test_mutated_rows_of_data_files(tiny_tokenizer: Any, tmp_path: Path) -> None:
    tally = Tally([])

    @search(240)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        suffix = data.draw(st.sampled_from([".jsonl", ".jsonl", ".csv", ".parquet"]))
        encode, rows = FORMATS[suffix]
        content = encode(data.draw(mutated_trees(rows)))
        judge_rows(tmp_path / f"rows{suffix}", content, data.draw(st.sampled_from(WAYS)), tiny_tokenizer, tally)

    run()
    tally.check("rows of data", *PLAN["rows of data"])


def test_mutated_bytes_of_data_files(tiny_tokenizer: Any, tmp_path: Path) -> None:
    tally = Tally([])

    @search(240)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        suffix = data.draw(st.sampled_from([*FORMATS]))
        encode, rows = FORMATS[suffix]
        content = data.draw(mutated_bytes(encode(rows)))
        judge_rows(tmp_path / f"rows{suffix}", content, data.draw(st.sampled_from(WAYS)), tiny_tokenizer, tally)

    run()
    tally.check("bytes of data", *PLAN["bytes of data"])
