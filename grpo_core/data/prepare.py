"""From a data configuration to prompts: the whole of data preparation in one call."""

from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.data.frozen import DataManifest, freeze
from grpo_core.data.prompts import PromptSplit, build_prompts
from grpo_core.data.sources import read_rows
from grpo_core.policy.loading import load_tokenizer
from grpo_core.policy.sources.find import resolve_model


def prepare(config: RunConfig, folder: Path) -> DataManifest:
    """Read, map, template, split and freeze the prompts of a run into `folder`.

    Raises:
        DataError, ModelError: as `read_prompts`.
    """
    return freeze(read_prompts(config), config.data.source, folder)


def read_prompts(config: RunConfig) -> PromptSplit:
    """Read, map, template and split the prompts of a run.

    Raises:
        DataError: the source cannot be used.
        ModelError: the model, whose tokenizer and chat template are needed, cannot be found.
    """
    rows = read_rows(config.data)
    tokenizer = load_tokenizer(
        resolve_model(config.model.source, config.model.trust_remote_code), config.model.trust_remote_code
    )
    return build_prompts(rows, config.data, tokenizer, config.rollout.max_prompt_tokens)
