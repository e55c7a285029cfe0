"""What the model's tokenizer and chat template make of the first rows of a run's data, before its start."""

import re
from collections.abc import Iterator, Sequence

from grpo_core.config import RunConfig
from grpo_core.data.endings import doubtful_template, end_of, end_tokens_of
from grpo_core.data.prompts import tokenized
from grpo_core.data.sources import Row
from grpo_core.policy.sources.find import model_here
from grpo_core.rewards.simple import FORMAT
from grpo_core.types import Prompt

NOT_OPTIONAL = r"\\?<{tag}\\?>(?!(\\[sn][*+?]?|\s)*\)(\?|\*|\{{0))"
"""A tag in a regular expression that is not the end of an optional group."""


def look_at_prompts(rows: Sequence[Row], config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the end of the first prompt (`notes`) and what is doubtful (`warnings`); nothing where the tokenizer is not here.

    Raises:
        DataError: the training would refuse a row.
    """
    # Half a second; torch, which AutoTokenizer imports, would take two more.
    from transformers import PreTrainedTokenizerFast

    folder = model_here(config.model.source)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception:  # noqa: BLE001  (the look at the model refuses it)
        return
    if config.data.chat_template and tokenizer.chat_template is None:  # refused with the model
        return
    ends = end_tokens_of(folder, tokenizer)
    prompts = [prompt for prompt in tokenized(rows, config.data, tokenizer, config.rollout.max_prompt_tokens, ends) if prompt]
    for prompt in prompts[:1]:
        end = end_of(prompt, tokenizer)
        yield "notes", f"the first prompt ends with …{end!r}"
        yield from (("warnings", text) for text in doubtful_template(prompt, tokenizer, ends))
        yield from (("warnings", text) for text in _formats_out_of_reach(prompt, end, config))


def _formats_out_of_reach(prompt: Prompt, end: str, config: RunConfig) -> Iterator[str]:
    """Yield that a prompt begins with a tag what a pattern wants to begin with it in the completion."""
    tags = _open_tags(prompt)
    for index, reward in enumerate(config.rewards):
        pattern = str(reward.args.get("pattern", FORMAT))
        wanted = [tag for tag in tags if re.search(NOT_OPTIONAL.format(tag=tag), pattern)]
        if reward.fn == "format" and wanted:
            yield (
                f"rewards.{index}.fn format: prompts end with …{end!r}, and the pattern {pattern!r} wants <{wanted[0]}> in the "
                f"completion, so it scores 0 if the policy does not repeat the tag; leave <{wanted[0]}> out of "
                f"rewards.{index}.args.pattern, or out of the prompt"
            )


def _open_tags(prompt: Prompt) -> list[str]:
    """Return the tags that the template, or the end of a text, opens without closing them."""
    question = prompt.text if isinstance(prompt.content, str) else prompt.content[-1]["content"].strip()
    opened = prompt.text.rpartition(question)[2] if question in prompt.text else ""
    last = re.findall(r"<(\w+)>\s*$", prompt.text)
    return [*last, *(tag for tag in re.findall(r"<(\w+)>", opened) if f"</{tag}>" not in opened)]
