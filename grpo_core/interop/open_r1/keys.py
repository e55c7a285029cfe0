"""open-r1's recipes: the keys of TRL that they share, and its own (`src/open_r1/configs.py`, `rewards.py`, `grpo.py`).

open-r1 pins trl 0.18.0, so defaults are those of that release. A recipe of another time meant the defaults of its own time;
which one that is, a file does not say.
"""

from grpo_core.interop.open_r1 import rewards
from grpo_core.interop.records import Conclusion, Rule, Settings, System, mapped, no_counterpart
from grpo_core.interop.rules import (
    OFF,
    anything,
    choice,
    copied,
    feature,
    group,
    number,
    numbers,
    optional,
    positive,
    text,
    texts,
    whole,
    with_defaults,
    with_rules,
)
from grpo_core.interop.trl.keys import TRL
from grpo_core.interop.trl.versions import TRL_0_18

LANGUAGES = ("python", "javascript", "r", "java", "bash", "cpp")


def question_column(settings: Settings, key: str) -> Conclusion:
    """Convert the data set: a column of questions, put into a conversation."""
    return mapped({"data.source": f"hub:{settings[key]}", **rewards.system_prompt_targets(settings)})


def only_configuration(settings: Settings, key: str) -> Conclusion:
    """Convert the list in which early recipes name the configuration of a data set."""
    names = settings[key]
    if len(names) > 1:
        return no_counterpart(f"one configuration here, not {len(names)}: set data.hub_config", differs=True)
    return mapped({"data.hub_config": names[0]})


def chat_template(_settings: Settings, _key: str) -> Conclusion:
    """Return what becomes of a chat template."""
    return no_counterpart(
        "the tokenizer's own chat template is applied here; save the tokenizer with this one beside the model, and name that "
        "folder as model.source",
        differs=True,
    )


OWN = (
    Rule("reward_funcs", texts, ["accuracy", "format", "tag_count"], rewards.open_r1_rewards,
         "rewards[].fn, rewards[].args, data.answer_column, filtering.overlong_buffer_tokens",
         "accuracy = math_answer on the column solution; format and code_format = format with open-r1's pattern; "
         "soft_overlong_punishment = filtering.overlong_buffer_tokens; the others have none: `grpo check` refuses the result "
         "until each is written or removed"),
    Rule("reward_weights", optional(numbers), None, rewards.open_r1_rewards, "rewards[].weight", unset=no_counterpart(OFF)),
    Rule("dataset_name", optional(text), None, question_column, "data.source, data.prompt_column, data.answer_column",
         "hub:<name>; the answer column is solution where a reward reads it", unset=no_counterpart(OFF)),
    Rule("dataset_configs", optional(texts), None, only_configuration, "data.hub_config", "of early recipes",
         unset=no_counterpart(OFF)),
    copied("dataset_prompt_column", "data.prompt_column", text, "prompt"),
    copied("system_prompt", "data.system_prompt", optional(text), None),
    Rule("chat_template", optional(text), None, chat_template, "", "the tokenizer's own is applied here",
         unset=no_counterpart(OFF)),
    feature("dataset_mixture", anything, None, "one data source here", off=(None, {})),
    Rule("code_language", choice(*LANGUAGES), "python", rewards.option, "rewards[].args", "of code_format"),
    Rule("max_completion_len", positive, 16384, rewards.option, "filtering.overlong_buffer_tokens",
         "of soft_overlong_punishment, in tokens"),
    Rule("soft_punish_cache", whole, 4096, rewards.option, "filtering.overlong_buffer_tokens",
         "of soft_overlong_punishment, in tokens"),
    Rule("cosine_min_value_wrong", number, 0.0, rewards.option, "", "of cosine"),
    Rule("cosine_max_value_wrong", number, -0.5, rewards.option, "", "of cosine"),
    Rule("cosine_min_value_correct", number, 0.5, rewards.option, "", "of cosine"),
    Rule("cosine_max_value_correct", number, 1.0, rewards.option, "", "of cosine"),
    Rule("cosine_max_len", positive, 1000, rewards.option, "", "of cosine"),
    Rule("repetition_n_grams", positive, 3, rewards.option, "", "of repetition_penalty"),
    Rule("repetition_max_penalty", number, -1.0, rewards.option, "", "of repetition_penalty"),
)  # fmt: skip

OWN_IGNORED = (
    group("evaluation is on held-out prompts: see the section evaluation", "benchmarks"),
    group("no callbacks here", "callbacks"),
    group("nothing is uploaded", "hub_model_revision overwrite_hub_revision push_to_hub_revision"),
    group("logging is by MLflow, every step", "wandb_entity wandb_project wandb_run_group"),
    group(
        "of reward functions that run code, which are not here",
        """code_eval_test_batch_size code_eval_scoring_mode parallel_code_exec_per_proc e2b_router_url morph_router_url
        code_provider ioi_provider enforce_same_language""",
    ),
)

OPEN_R1 = System(
    name="open-r1",
    title="open-r1",
    version="open-r1 as of mid-2025 (13 rewards, the arguments of its GRPO script), with the defaults of trl 0.18.0, its pin",
    rules=with_rules(with_defaults(TRL.rules, TRL_0_18), *OWN),
    ignored=(*TRL.ignored, *OWN_IGNORED),
    dead=TRL.dead,
    always=TRL.always,
    assumptions=TRL.assumptions,
    aliases=TRL.aliases,
)
OWN_KEYS = frozenset({rule.key for rule in OWN} | {key for keys in OWN_IGNORED for key in keys.keys}) - set(TRL.known())
"""Keys that TRL has not."""
