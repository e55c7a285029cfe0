"""What a row asks, before any template: text, or chat messages, with a place for each of its images.

As in TRL: images go before the text of the row's first user message, unless its messages name the places themselves, in parts:
[{"type": "image"}, {"type": "text", "text": "Which is larger?"}, {"type": "image"}].
"""

from typing import Any

from grpo_core.config import DataConfig
from grpo_core.data.endings import require_question
from grpo_core.data.row_images import RowImages, images_of
from grpo_core.data.sources import Row
from grpo_core.errors import DataError, shown
from grpo_core.types import Conversation, Message

IMAGE: dict[str, Any] = {"type": "image"}


def raw_content(row: Row, index: int, config: DataConfig) -> str | Conversation:
    """Return a row's prompt as it is before any template: text, or chat messages.

    Raises:
        DataError: it is neither, messages that no template is applied to, messages that ask nothing, or that have more or fewer
            places than the row has images.
    """
    value: Any = row.get(config.prompt_column)
    is_text = isinstance(value, str) and bool(value)
    if not is_text and not (value and isinstance(value, list) and all(map(_is_message, value))):
        raise DataError(
            f"data.prompt_column {config.prompt_column!r}, row {index}: expected text or a list of chat messages "
            f"(role and content; content is text, or parts of the types text and image), got {shown(value)}"
        )
    system = [] if config.system_prompt is None else [config.system_prompt]
    if not config.chat_template:
        if not is_text:
            raise DataError("data.chat_template: off needs text prompts, but data.prompt_column holds chat messages")
        return "\n\n".join([*system, *(f"{question}\n{answer}" for question, answer in config.examples), value])
    earlier = [turn for example in config.examples for turn in zip(("user", "assistant"), example, strict=True)]
    opening = ({"role": role, "content": content} for role, content in (*(("system", text) for text in system), *earlier))
    own: list[Message] = [{"role": "user", "content": value}] if is_text else [_as_one(turn) for turn in value]
    messages = (*opening, *_with_places(own, *images_of(row), index, config))
    require_question(messages, index, config.prompt_column)
    return messages


def _is_message(turn: Any) -> bool:
    if not (isinstance(turn, dict) and isinstance(turn.get("role"), str)):
        return False
    content = turn.get("content")
    return isinstance(content, str) or (isinstance(content, list) and bool(content) and all(map(_is_part, content)))


def _is_part(part: Any) -> bool:
    """Return whether it is a part of a message; of a table, parts have all the keys that one of them has, None in others."""
    if not isinstance(part, dict):
        return False
    given = {key for key, value in part.items() if value is not None}
    return (given == {"type"} and part["type"] == "image") or (
        given == {"type", "text"} and part["type"] == "text" and isinstance(part["text"], str)
    )


def _as_one(turn: Message) -> Message:
    """Return a message whose content is text where it has no image, and parts without keys that say nothing otherwise."""
    if isinstance(turn["content"], str):
        return turn
    parts = [IMAGE if part["type"] == "image" else {"type": "text", "text": part["text"]} for part in turn["content"]]
    has_image = any(part["type"] == "image" for part in parts)
    return {**turn, "content": parts if has_image else "".join(part["text"] for part in parts)}


def _with_places(messages: list[Message], column: str, images: RowImages, index: int, config: DataConfig) -> list[Message]:
    """Return messages with a place for each image."""
    places = sum(
        part["type"] == "image" for turn in messages if not isinstance(turn["content"], str) for part in turn["content"]
    )
    what = f"data.prompt_column {config.prompt_column!r}, row {index}:"
    if places not in (0, len(images)):
        raise DataError(f"{what} its messages have {places} places for images, and column {column!r} holds {len(images)}")
    if places or not images:
        return messages
    first = next((number for number, turn in enumerate(messages) if turn["role"] == "user"), None)
    if first is None:
        raise DataError(f"{what} no message is of the user, before whose text the images of column {column!r} would be put")
    parts = [*(dict(IMAGE) for _ in images), {"type": "text", "text": messages[first]["content"]}]
    return [*messages[:first], {**messages[first], "content": parts}, *messages[first + 1 :]]
