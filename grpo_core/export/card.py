"""The model card of an export: front matter for the hub, and what is known of the policy, every figure with its error.

Its words are in `card.md.j2`. All text of users, models and data is shown as text (`text.py`), without passwords and without
folders of this machine.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from grpo_core.config import Origin, RunConfig, changes_between, run_name
from grpo_core.config.origin import flatten
from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE, Estimate, evaluations_after
from grpo_core.export.choice import ExportPlan
from grpo_core.metrics import LAST_STEPS
from grpo_core.policy.lora.facts import START
from grpo_core.policy.sources.find import MADE_HERE, folder_of
from grpo_core.run.journal import Record
from grpo_core.run.provenance import sources_of
from grpo_core.run.summary import compare_evaluations
from grpo_core.text import for_code, for_markdown, markdown_table, redact_uri

if TYPE_CHECKING:
    import jinja2

FILE, HUB = "file:", "hub:"
_FOLDERS = re.compile(r"(?:(?<=file:)|(?<![\w<./:~-]))(?:~[\w.-]*)?/(?:[^\s/'\"<>|]+/)+")
"""The folders of an absolute path; of an address (`https://...`) and of a closing tag (`</answer>`) it matches nothing."""
PLACES = ("model.source", "data.source", "training.python", "rollout.vllm.python", "model.lora.init_from")
"""Keys whose value may be a path: of one that is, only the last name is shown."""


def public_text(text: str) -> str:
    """Return a text without the folders of the paths in it, and without passwords.

    >>> public_text("read /home/ada/data/train.jsonl, see https://host/a/b"), public_text("<answer>1</answer>")
    ('read …/train.jsonl, see https://host/a/b', '<answer>1</answer>')
    """
    return _FOLDERS.sub("…/", redact_uri(text))


def public_value(key: str, value: Any) -> str:
    """Return the value of a key of the configuration as a card shows it.

    >>> public_value("model.source", "/home/ada/my models/tiny"), public_value("loss.beta", None)
    ('…/tiny', 'null')
    """
    if key in PLACES and isinstance(value, str):
        return public_source(value)
    return public_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def public_source(source: str) -> str:
    """Return what a model or data source is called: of a file or folder that is not given from here on, its last name.

    >>> public_source("file:/home/ada/train.jsonl"), public_source("hub:openai/gsm8k"), public_source("bundled:smollm2-135m")
    ('file:…/train.jsonl', 'hub:openai/gsm8k', 'bundled:smollm2-135m')
    """
    kind = FILE if source.startswith(FILE) else ""
    path = PurePath(source.removeprefix(FILE))
    is_elsewhere = path.is_absolute() or path.parts[:1] == ("..",) or source.startswith("~")
    return f"{kind}…/{redact_uri(path.name)}" if is_elsewhere else public_text(source)


def hub_id(source: str) -> str | None:
    """Return the id on the hub of a `model.source`; None where it is something else.

    >>> hub_id("Qwen/Qwen2.5-0.5B"), hub_id("bundled:smollm2-135m"), hub_id("../models/tiny")
    ('Qwen/Qwen2.5-0.5B', None, None)
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    if source.startswith(MADE_HERE) or "/" not in source or folder_of(source) is not None:
        return None
    try:
        validate_repo_id(source)
    except HFValidationError:
        return None
    return source


KL = (
    ("kl/ref/drift", "kl/ref/drift_se", "the reference", "k1"),
    ("kl/init/drift", "kl/init/drift_se", "the initial policy", "k1"),
    ("kl/probe/full", "kl/probe/se", "the reference", "exact, on the probe prompts"),
    ("kl/probe/full_init", "kl/probe/se_init", "the initial policy", "exact, on the probe prompts"),
)
"""(figure, its standard error, from what, how measured); a step's drift is exact where the step has the sum."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One KL, in nats a token."""

    key: str
    what: str
    """To which policy, and how measured. Of a reference: after which step it was synchronised, as there may be several."""
    value: float
    error: float | None
    """Its standard error."""
    policy_step: int
    """The policy that was measured: the one after this step."""

    def __str__(self) -> str:
        """Return `0.096 ± 0.01, policy after step 8, to the reference synchronised after step 4, k1`."""
        error = "" if self.error is None else f" ± {self.error:.2g}"
        return f"{self.value:.4g}{error}, policy after step {self.policy_step}, {self.what}"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One figure of one evaluation set, of the base and of the policy."""

    key: str
    set_name: str
    num_prompts: int
    base: str | None
    """With its 95 % interval; None = not evaluated."""
    policy: str | None


def drift_of(history: Sequence[Record], step: int) -> list[Drift]:
    """Return the newest measurement of each KL up to the policy after a step.

    A step is measured before its update, so that of step k is of the policy after step k - 1: for a policy that the training
    has gone on from, the next step has measured it.

    Args:
        history: of the run.
        step: after which the policy was saved.
    """
    steps = [record for record in history if record.kind == "step" and record.step <= step + 1]
    found = []
    for key, error, origin, how in KL:
        record = next((record for record in reversed(steps) if key in record.metrics), None)
        if record is not None:
            since = max((sync.step for sync in history if sync.kind == "ref_sync" and sync.step < record.step), default=None)
            synced = f" synchronised after step {since}" if origin == "the reference" and since is not None else ""
            measured = "exact" if key.replace("/drift", "/full") in record.metrics and how == "k1" else how
            size = record.metrics.get(error, math.nan)
            found.append(
                Drift(
                    key=key,
                    what=f"to {origin}{synced}, {measured}",
                    value=record.metrics[key],
                    error=None if math.isnan(size) else size,  # of one prompt none is known
                    policy_step=record.step - 1,
                )
            )
    return found


def evaluations_of(history: Sequence[Record], step: int) -> list[Evaluated]:
    """Return the figures of a policy's evaluations beside those of the base on the same set; only of this very step."""
    base, policy = (evaluations_after(history, wanted) for wanted in (0, step))
    found = []
    for name in dict.fromkeys((HELD_OUT, HELD_OUT_SAMPLE, *policy, *base)):
        records = [evaluations[name].data if name in evaluations else {} for evaluations in (policy, base)]
        after, before = ({key: str(Estimate(**facts)) for key, facts in data.get("estimates", {}).items()} for data in records)
        num_prompts = (records[0] or records[1]).get("num_prompts", 0)
        found += [
            Evaluated(key=key, set_name=name, num_prompts=num_prompts, base=before.get(key), policy=after.get(key))
            for key in {**after, **before}
        ]
    return found


CARD_FILE = "README.md"
TASK = "text-generation"
MOST_CHARACTERS = 300
"""Of a value in a table."""
HIDDEN_KEYS = ("tracking.uri", "tracking.parent", "rollout.vllm.url")
"""Places, and what only this machine's MLflow knows."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A model card, and the figures in it for whoever registers the policy."""

    text: str
    title: str
    drift: tuple[Drift, ...]
    evaluations: tuple[Evaluated, ...]
    digests: Mapping[str, str]
    """Of data, base, the adapter at the start if there was one, and configuration."""


def write_card(plan: ExportPlan, history: Sequence[Record], notes: Sequence[str]) -> Card:
    """Return the card of an export.

    Args:
        plan: the export.
        history: of the run's journal.
        notes: what its user has to know.
    """
    run_dir, config, step = plan.run_dir, plan.config, plan.step
    origin, facts = run_dir.read_origin(), run_dir.read_provenance()
    title = f"{run_name(config, origin)}, step {step}"
    drift, evaluations = drift_of(history, step), evaluations_of(history, step)
    evaluated = any(one.policy is not None for one in evaluations)
    paired = compare_evaluations(run_dir) if evaluated else None
    steps = {record.step: record.metrics for record in history if record.kind == "step" and record.step <= step}
    keys = ("data_digest", "model_digest", "adapter_digest", "config_digest")
    text = _template().render(
        plan=plan,
        config=config,
        state=plan.state,
        origin=origin,
        facts=facts,
        notes=notes,
        title=title,
        front_matter=front_matter(plan),
        base=hub_id(config.model.source) or "FOLDER_OF_THE_BASE",
        adapter=sources_of(config).get(START),
        folder=run_dir.path.resolve().name,
        evaluated=evaluated,
        paired=paired if paired and paired.step == step else None,
        measured=[one.key for one in drift],
        last={at: metrics["kl/ref/drift"] for at, metrics in [*steps.items()][-LAST_STEPS:]},
        evaluations=_evaluations(evaluations, step),
        drift=_drifts(drift),
        configuration=_configuration(config, origin),
        versions=_versions(facts),
    )
    return Card(
        text=text,
        title=public_text(title),
        drift=tuple(drift),
        evaluations=tuple(evaluations),
        digests={key: str(facts[key]) for key in keys if facts.get(key)},
    )


def _template() -> "jinja2.Template":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=False,  # it is Markdown
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"text": _text, "code": _code, "source": public_source}
    return environment.get_template("card.md.j2")


def front_matter(plan: ExportPlan) -> str:
    """Return the YAML block by which the hub files a model."""
    from huggingface_hub import ModelCardData

    base, source, is_adapter = hub_id(plan.config.model.source), plan.config.data.source, plan.form == "adapter"
    data = hub_id(source.removeprefix(HUB)) if source.startswith(HUB) else None
    facts = ModelCardData(
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag=TASK,
        base_model=base,
        datasets=[data] if data else None,
        tags=["grpo", "grpo-flow", "reinforcement-learning", *(["lora"] if plan.config.model.lora else [])],
        base_model_relation=("adapter" if is_adapter else "finetune") if base else None,
    )
    return f"---\n{facts.to_yaml()}\n---\n"


def _evaluations(evaluations: Sequence[Evaluated], step: int) -> str:
    rows = [
        [
            _code(one.set_name),
            str(one.num_prompts),
            _code(one.key.rpartition("/")[2]),
            one.base or "not evaluated",
            one.policy or "not evaluated",
        ]
        for one in evaluations
    ]
    return _table(["Set", "Prompts", "Figure", "Base", f"Step {step}"], rows)


def _drifts(drift: Sequence[Drift]) -> str:
    rows = [
        [_code(one.key), one.what, f"{one.value:.4g}", "" if one.error is None else f"{one.error:.2g}", str(one.policy_step)]
        for one in drift
    ]
    return _table(["Figure", "KL of the policy, nats a token", "Value", "Standard error", "Policy after step"], rows)


def _configuration(config: RunConfig, origin: Origin) -> str:
    defaults, values = flatten(RunConfig()), flatten(config)
    rows = []
    for key in dict.fromkeys((*changes_between(RunConfig(), config), *origin.changes)):
        if key in HIDDEN_KEYS or key.startswith("tracking.labels") or key not in values:
            continue
        shown = (values[key], origin.changes[key][0] if key in origin.changes else values[key], defaults.get(key))
        rows.append([for_code(key), *(_cell(key, value) for value in shown)])
    return _table(["Key", "This run", f"Preset {_text(origin.preset)}", "Default"], rows)


def _cell(key: str, value: Any) -> str:
    text = public_value(key, value)
    return for_markdown(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)")


def _versions(facts: Mapping[str, Any]) -> str:
    hardware = ", ".join(map(str, facts.get("gpus") or [])) or facts.get("processor")
    versions = {"python": facts.get("python"), **(facts.get("packages") or {}), "hardware": hardware}
    return _table(["Package", "Version"], [[_text(name), _text(str(of))] for name, of in versions.items() if of])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, rows) if rows else ""


def _text(text: str) -> str:
    return for_markdown(public_text(text))


def _code(text: str) -> str:
    return for_code(public_text(text))
