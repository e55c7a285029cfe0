"""Values of configurations and sweeps: YAML 1.2, what is converted to nothing, and bounds that no reasonable run meets."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import RunConfig, check_consistency, load_config, parse_overrides
from grpo_core.config.loading import dump_yaml, parse_yaml
from grpo_core.errors import ConfigError
from grpo_core.sweep.plan import load_sweep

# Examples of the core schema, YAML 1.2.2 section 10.3.2, and what YAML 1.1 reads as something else.
YAML_1_2 = [
    ("null", None),
    ("~", None),
    ("true", True),
    ("FALSE", False),
    ("0o14", 12),
    ("0x3A", 58),
    ("-19", -19),
    ("0", 0),
    ("0.", 0.0),
    ("-0.0", 0.0),
    (".5", 0.5),
    ("+12e03", 12000.0),
    ("-2E+05", -200000.0),
    ("-.INF", -float("inf")),
    ("010", 10),
    ("1e-6", 1e-6),
    ("yes", "yes"),
    ("No", "No"),
    ("on", "on"),
    ("12:30:45", "12:30:45"),
    ("1_000", "1_000"),
    ("2026-01-01", "2026-01-01"),
    ("=", "="),
    ("0o8", "0o8"),
    ("1e", "1e"),
]


@pytest.mark.parametrize(("text", "value"), YAML_1_2)
def test_a_plain_scalar_is_what_yaml_1_2_says(text: str, value: Any) -> None:
    for parsed in (parse_yaml(text), parse_yaml(f"[{text}]")[0], parse_overrides([f"key={text}"])["key"]):
        assert (parsed, type(parsed)) == (value, type(value))
    assert parse_yaml(dump_yaml({"key": text})) == {"key": text}, "text that looks like a value reads back as text"


NONSENSE = [
    ("data.chat_template=yes", "data.chat_template: input should be true or false, got 'yes'"),
    ("data.chat_template=1", "data.chat_template: input should be true or false, got 1"),
    ("training.steps=yes", "training.steps: input should be a valid integer, got 'yes'"),
    ("training.steps=true", "training.steps: input should be a valid integer, got True"),
    ("training.seed=12:30:45", "training.seed: input should be a valid integer, got '12:30:45'"),
    ("loss.beta='0.1'", "loss.beta: input should be a valid number, got '0.1'"),
    ("evaluation.k=[true, 2]", "evaluation.k.0: input should be a valid integer"),
    ("loss.clip_eps=false", "loss.clip_eps: input should be a valid number"),
    (
        "data.source=ftp:x",
        "data.source: input should be reasoning_gym:<task>, shapes:<task>, file:<path> or hub:<dataset>, got 'ftp:x'",
    ),
    ("data.source='file:'", "data.source: input should be reasoning_gym:<task>"),
    ("data.source=rows.jsonl", "data.source: input should be reasoning_gym:<task>"),
    ("data.source=reasoning_gym:nonsense", "data.source: 'nonsense' is not on the allow-list of reasoning-gym tasks"),
    ("data.source=reasoning_gym:chain_sums", "did you mean chain_sum"),
    ("data.source=reasoning_gym:polynomial_multiplication", "its scorer may run model output as code"),
    ("data.source=shapes:where", "data.source: 'where' is no task of pictures of shapes, which are box, count, colour"),
    ("model.source=", "model.source: input should be one line of text"),
    ("model.source=' org/name'", "model.source: input should be one line of text"),
    ('model.source="org/na\\nme"', "model.source: input should be one line of text"),
    ("tracking.experiment=''", "tracking.experiment: string should have at least 1 character"),
    ("tracking.uri=ftp://host/x", "tracking.uri: input should begin with http://, https://, file://, sqlite://, postgresql://"),
    ("data.prompt_column=''", "data.prompt_column: string should have at least 1 character"),
    ("data.answer_after=''", "data.answer_after: string should have at least 1 character"),
    ("rewards=[{fn: exact}]", "rewards.0.fn: input is neither built in (box_format, box_iou, exact_answer, format,"),
    ("rewards=[{fn: exact_anser}]", "did you mean exact_answer?"),
    (
        "rewards=[{fn: format, args: {patern: x}}]",
        "rewards.0.args: 'patern' is no argument of format, which takes pattern",
    ),
    ("rewards=[{fn: exact_answer, args: {a: 1}}]", "rewards.0.args: 'a' is no argument of exact_answer, which takes none"),
    ("rewards=[{fn: ':f'}]", "rewards.0.fn: input is neither built in"),
    ("rewards=[{fn: '.math:f'}]", "rewards.0.fn: input is neither built in"),
    ("rewards=[{fn: 'a:b:c'}]", "of the form package.module:function"),
    (
        "rewards=[{fn: format, weight: 1e12}]",
        "rewards.0.weight: input should be less than or equal to 1000000, got 1000000000000",
    ),
    ("rewards=[{fn: format, dry_run: no}]", "rewards.0.dry_run: input should be true or false"),
    ("evaluation.pass_score=-1", "evaluation.pass_score: input should be greater than or equal to 0, got -1"),
    ("evaluation.pass_score=0", "evaluation.pass_score: 0 makes every completion correct: reasoning_gym scores from 0 to 1"),
    ("evaluation.pass_score=2", "evaluation.pass_score: 2 makes no completion correct"),
    ("rollout.group_size=1000000000000", "rollout.group_size: input should be less than or equal to 65536, got 1000000000000"),
    ("rollout.num_prompts_per_step=2000000000", "rollout.num_prompts_per_step: input should be less than or equal to 1000000"),
    (
        "rollout.max_completion_tokens=1000000000000",
        "rollout.max_completion_tokens: input should be less than or equal to 16777216",
    ),
    ("rollout.temperature=1e-30", "rollout.temperature: input should be greater than or equal to 0.001"),
    ("rollout.temperature=1e9", "rollout.temperature: input should be less than or equal to 100"),
    ("rollout.top_k=0", "rollout.top_k: input should be greater than or equal to 1, got 0"),
    ("optimizer.lr=-1e-9", "optimizer.lr: input should be greater than or equal to 0"),
    *(
        (f"tracking.labels={{{label}: x}}", f"tracking.labels: '{label}' is a tag of this project or MLflow, or a key of the")
        for label in (
            *("mlflow.runName", "grpo.stop", "run_dir", "sweep_dir", "preset", "seed", "git_commit", "answer"),
            *("adapter_digest", "best_policy_path", "policy_step", "loss.beta", "loss", "training", "rewards.0.fn"),
        )
    ),
    ("rollout.top_k=1000000000000000000", "rollout.top_k: input should be less than or equal to 10000000"),
    ("training.steps=1000000000000000", "training.steps: input should be less than or equal to 1000000"),
    ("training.checkpoint_every=1000000000", "training.checkpoint_every: input should be less than or equal to 1000000"),
    (
        "training.microbatch_tokens=1000000000000000000",
        "training.microbatch_tokens: input should be less than or equal to 1000000000",
    ),
    ("reference.sync_steps=1000000000", "reference.sync_steps: input should be less than or equal to 1000000"),
    ("optimizer.lr=1e6", "optimizer.lr: input should be less than or equal to 100"),
    ("optimizer.lr=.inf", "optimizer.lr: input should be a finite number"),
    ("loss.beta=.nan", "loss.beta: input should be a finite number"),
    ("loss.beta=1e30", "loss.beta: input should be less than or equal to 1000000"),
    ("loss.minibatches=1000000000000", "loss.minibatches: input should be less than or equal to 1000000"),
    ("data.size=1000000000000", "data.size: input should be less than or equal to 100000000"),
    ("data.size=90000000", "data.size: 90000000 rows of reasoning_gym:chain_sum would take hours to make"),
    (
        "rollout={group_size: 60000, num_prompts_per_step: 500}",
        "rollout.group_size: 60000 x rollout.num_prompts_per_step 500 = 30000000",
    ),
    ("evaluation.samples=1000000000", "evaluation.samples: input should be less than or equal to 65536"),
    (
        "monitor.rules=[{kind: stalled, bound: 1e300}]",
        "monitor.rules.0.bound: input should be less than or equal to 1000000000",
    ),
]


@pytest.mark.parametrize(("override", "said"), NONSENSE, ids=[override for override, _ in NONSENSE])
def test_nonsense_is_refused_by_key_bound_and_value(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, parse_overrides([override]))
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


OF_SWEEPS = [
    ("seeds=[true, 2]", "seeds.0: input should be a valid integer, got True"),
    ("seeds=[yes, no]", "seeds.0: input should be a valid integer"),
    ("trials=1000000000", "trials: input should be less than or equal to 10000, got 1000000000"),
    ("objective.metric=time/step_seconds", "objective.metric: time/step_seconds depends on the machine"),
    ("objective.metric=perf/train_tokens_per_second", "depends on the machine"),
    ("objective.metric=progress/tokens", "objective.metric: progress/tokens follows from the configuration alone"),
    ("objective.metric=optim/lr", "follows from the configuration alone"),
    ("objective.metric=reward", "objective.metric: 'reward' is no such metric"),
    ("objective.last_steps=1000000000000", "objective.last_steps: input should be less than or equal to 1000000"),
    ("budget.hours=1e12", "budget.hours: input should be less than or equal to 100000"),
    ("runs.concurrency=1000000000", "runs.concurrency: input should be less than or equal to 4096"),
    (
        "axes={loss.beta: [true, false], rollout.group_size: [2, 4]}",
        "loss.beta: input should be a valid number",
    ),
    (
        "axes={rollout.temperature: [yes, no], rollout.group_size: [2, 4]}",
        "rollout.temperature: input should be a valid number",
    ),
    ("study=''", "study: input should be one line of text"),
    ("study=http://host/x", "study: input should begin with sqlite://, postgresql://"),
]


@pytest.mark.parametrize(("override", "said"), OF_SWEEPS, ids=[override for override, _ in OF_SWEEPS])
def test_nonsense_in_a_sweep_is_refused_by_key_bound_and_value(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep("beta_group_sync_tiny", parse_overrides([override]))
    assert said in str(caught.value)


def test_every_number_has_two_bounds() -> None:
    """A bound is found in the JSON schema."""
    schema = RunConfig.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for name, field in section.get("properties", {}).items():
            for kind in (field, *field.get("anyOf", [])):
                if kind.get("type") in ("integer", "number"):
                    assert {"minimum", "exclusiveMinimum"} & kind.keys(), name
                    assert {"maximum", "exclusiveMaximum"} & kind.keys(), name


def test_a_duplicate_key_is_refused_by_name_in_yaml_and_json(tmp_path: Path) -> None:
    for name, text in (("run.yaml", "loss:\n  beta: 0.1\n  beta: 0.2\n"), ("run.json", '{"loss": {"beta": 0.1, "beta": 0.2}}')):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match='duplicate key "beta"'):
            load_config(tmp_path / name)


def test_doubtful_values_are_warned_about() -> None:
    def warnings(*overrides: str) -> str:
        return "\n".join(check_consistency(load_config(None, parse_overrides(overrides))))

    assert "optimizer.lr: 0 leaves the policy as it is: a control run" in warnings("optimizer.lr=0")
    assert "monitor.rules.0.bound: 0.001 s is shorter than most steps take" in warnings(
        "monitor.rules=[{kind: stalled, bound: 0.001}]"
    )
    short = ("training.steps=4", "monitor.rules=[{kind: zero_variance}, {kind: non_finite}]")
    assert "zero_variance is never a breach: it needs 10 measurements of group/zero_std_frac, and at most 4" in warnings(*short)
    assert "never a breach" not in warnings("training.steps=4")  # the default rules: nobody has chosen them


def test_doubtful_values_of_a_sweep_are_warned_about() -> None:
    def notes(*overrides: str) -> str:
        return "\n".join(load_sweep("beta_group_sync_tiny", parse_overrides(overrides)).notes)

    assert "data.seed: settings have other prompts, also held-out ones" in notes(
        "axes={data.seed: [0, 1], loss.beta: [0.1, 1]}", "hold=null"
    )
    assert "is more than training.steps" in notes("objective.metric=reward/mean", "objective.last_steps=5000")
    assert "more than training.steps" not in notes()
