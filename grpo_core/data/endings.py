"""The end of a prompt, where the completion begins: what the tokenizer and its chat template make of a conversation."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import DataError, cause, shown
from grpo_core.types import Conversation, Message, Prompt, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWERED = ("user", "tool", "function", "ipython", "observation")
"""Roles that an assistant answers: the user's, and those of tools in the templates of several families."""
ANSWER = "Fortytwo"
"""An assistant's answer, by which it is found in a rendered text."""
SHOWN_TOKENS = 24


def require_question(messages: Conversation, index: int, column: str) -> None:
    """Refuse messages of a row that leave the assistant nothing to answer.

    Raises:
        DataError: the last is not of the user or a tool, or all of theirs are empty.
    """
    what, last = f"data.prompt_column {column!r}, row {index}:", messages[-1]
    if last["role"] not in ANSWERED:
        turn = "a turn of the assistant that was begun is not continued, " if last["role"] == "assistant" else ""
        raise DataError(
            f"{what} the last message is of the role {shown(last['role'])} ({shown(text_of(last['content']), 60)}); {turn}"
            "a prompt has to end with a message of the user or of a tool"
        )
    asked = [turn["content"] for turn in messages if turn["role"] in ANSWERED]
    if not any(not isinstance(content, str) or content.strip() for content in asked):
        raise DataError(f"{what} the conversation is empty: its {last['role']} message is blank; remove the row")


def prompt_text(content: str | Conversation, index: int, tokenizer: "PreTrainedTokenizerBase", *, opened: bool = True) -> str:
    """Return the text of a prompt: of messages, what the chat template makes of them.

    Args:
        content: of the prompt.
        index: of its row.
        tokenizer: with the template.
        opened: whether the template is asked to begin the assistant's turn.

    Raises:
        DataError: there is no template, or it fails.
    """
    if isinstance(content, str):
        return content
    if tokenizer.chat_template is None:
        raise DataError("data.chat_template: on, but the model's tokenizer has no chat template; set it to false")
    try:
        text = tokenizer.apply_chat_template(list(content), add_generation_prompt=opened, tokenize=False)
        texts = [turn["content"].strip() for turn in content if isinstance(turn["content"], str)]
        if any(one not in text for one in texts) and _reads_parts_alone(tokenizer):
            text = tokenizer.apply_chat_template(list(map(_in_parts, content)), add_generation_prompt=opened, tokenize=False)
    except Exception as error:  # a template is a program of the model's author: it may refuse an order of roles, or fail
        raise DataError(
            f"data.chat_template: the tokenizer's template refuses the messages of row {index} ({type(error).__name__}: "
            f"{cause(error)})"
        ) from error
    assert isinstance(text, str)
    return text


def _in_parts(turn: Message) -> Message:
    return {**turn, "content": [{"type": "text", "text": turn["content"]}]} if isinstance(turn["content"], str) else turn


def _reads_parts_alone(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Return whether a template loses content that is text, as those of some models that read images do (LLaVA)."""

    def rendered(turn: Message) -> str:
        try:
            return str(tokenizer.apply_chat_template([turn], tokenize=False))
        except Exception:  # noqa: BLE001  (what it refuses of a row is told with the row)
            return ""

    plain = {"role": "user", "content": ANSWER}
    return ANSWER not in rendered(plain) and ANSWER in rendered(_in_parts(plain))


def require_open_end(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", end_tokens: Collection[int]) -> None:
    """Refuse a prompt whose last token ends a text, as if its completion were over already.

    A template may begin the assistant's turn with such a token (Phi-3 does).

    Raises:
        DataError: names the row, the token and the end of the prompt.
    """
    if prompt.token_ids[-1] in end_tokens and not _begins_answer(prompt, tokenizer):
        token, is_text = tokenizer.convert_ids_to_tokens(prompt.token_ids[-1]), isinstance(prompt.content, str)
        raise DataError(
            f"row {prompt.id}: its prompt ends in {shown(token)}, which ends a completion (…{end_of(prompt, tokenizer)!r}); "
            f"take it out of {'the data or the post_processor in tokenizer.json' if is_text else 'the chat template'}"
        )


def doubtful_template(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", end_tokens: Collection[int]) -> Iterator[str]:
    """Yield what is doubtful about the chat template that has made a prompt.

    Args:
        prompt: made by `prompt_text`.
        tokenizer: with the template.
        end_tokens: ids that end a completion.
    """
    if isinstance(prompt.content, str):
        return
    if prompt.text == prompt_text(prompt.content, prompt.id, tokenizer, opened=False) and not _begins_answer(prompt, tokenizer):
        yield (
            "data.chat_template: the tokenizer's template does not begin the assistant's turn (it takes no notice of "
            f"add_generation_prompt), so completions begin after …{end_of(prompt, tokenizer)!r}"
        )
    _, answer, rest = _answered(prompt, tokenizer).rpartition(ANSWER)
    closing = tokenizer(rest, add_special_tokens=False)["input_ids"] if answer else []
    if closing and not set(closing) & set(end_tokens):
        first = next((token for token in closing if tokenizer.decode([token]).strip()), closing[0])
        ends = ", ".join(str(tokenizer.convert_ids_to_tokens(token)) for token in end_tokens)
        yield (
            f"data.chat_template: the tokenizer's template ends the assistant's turn with {rest!r}, of which no token ends a "
            f"completion ({ends} do), so completions may run on to rollout.max_completion_tokens; add {first} "
            f"({tokenizer.convert_ids_to_tokens(first)}) to eos_token_id of generation_config.json"
        )


def end_of(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the last tokens of a prompt as text, special ones among them."""
    return str(tokenizer.decode(list(prompt.token_ids[-SHOWN_TOKENS:])))


def end_tokens_of(folder: Path, tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return the ids that end a completion of the model in a folder, without loading it; see `eos_token_ids`."""
    files = [file for file in (folder / "generation_config.json", folder / "config.json") if file.is_file()]
    try:
        ids = json.loads(files[0].read_text(encoding="utf-8")).get("eos_token_id") if files else None
    except (OSError, ValueError, AttributeError):  # what loads the model refuses it
        ids = None
    configured = ids if isinstance(ids, list) else [ids]
    return tuple(dict.fromkeys(token for token in (tokenizer.eos_token_id, *configured) if isinstance(token, int)))


def _begins_answer(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Return whether an assistant's answer would stand just after a prompt."""
    answered = _answered(prompt, tokenizer)
    return answered.startswith(prompt.text) and answered.removeprefix(prompt.text).lstrip().startswith(ANSWER)


def _answered(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the text of a prompt with an answer; empty where there is none."""
    if isinstance(prompt.content, str):
        return ""
    try:
        return prompt_text((*prompt.content, {"role": "assistant", "content": ANSWER}), prompt.id, tokenizer, opened=False)
    except DataError:  # the template refuses an answer, which no prompt needs
        return ""
