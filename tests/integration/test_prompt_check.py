"""What is found in the end of a prompt, where the completion begins: before a run, and again when its prompts are frozen."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grpo_core.data.prepare import read_prompts
from grpo_core.errors import DataError
from grpo_core.run.preflight import Preflight, check_start
from grpo_core.run.rehearsal import look_at_data
from tests.conftest import CHAT_TEMPLATE

pytestmark = pytest.mark.proof

ASKED = {"role": "user", "content": "3+4="}
TOOL = {"role": "tool", "content": "7"}
NO_OPENING = CHAT_TEMPLATE.replace("<|assistant|>", "")
THINKING = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|><think>")
INSTRUCTIONS = (  # as Mistral's: the answer follows the question at once
    "{% for m in messages %}{% if m['role'] == 'user' %}[{{ m['content'] }}]{% else %} {{ m['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
)


@dataclass(frozen=True)
class Found:
    faults: tuple[str, ...]
    warnings: tuple[str, ...]


def look(config: Any) -> Found:
    """Return what the process that looks at the data of a run says, without the process."""
    said: dict[str, list[str]] = {"faults": [], "warnings": []}
    try:
        for kind, text in look_at_data(config, ()):
            said.setdefault(kind, []).append(text)
    except DataError as error:
        said["faults"].append(str(error))
    return Found(tuple(said["faults"]), tuple(said["warnings"]))


class Desk:
    """A folder with rows and a model, whose tokenizer a test changes."""

    def __init__(self, folder: Path, model: Path, make: Callable[..., Any]) -> None:
        """Copy the model."""
        self.folder, self.model, self._make = folder, folder / "model", make
        shutil.copytree(model, self.model)

    def config(self, prompts: list[Any], **values: Any) -> Any:
        """Return the configuration of a run on these prompts."""
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"question": prompt, "answer": "7"}) + "\n" for prompt in prompts))
        return self._make(
            {
                "data.source": f"file:{rows}",
                "data.task_args": {},
                "data.eval_fraction": 0.0,
                "model.source": str(self.model),
                "rollout.max_prompt_tokens": 100,
                "rewards": [{"fn": "exact_answer"}],
                **{key.replace("__", "."): value for key, value in values.items()},
            }
        )

    def check(self, prompts: list[Any], **values: Any) -> Found:
        """Return what is found before a run, whose refusals have to be those of the training."""
        config = self.config(prompts, **values)
        found = look(config)
        if found.faults:
            with pytest.raises(DataError) as error:
                read_prompts(config)
            assert found.faults == (str(error.value),)
        else:
            read_prompts(config)
        return found

    def template(self, text: str) -> None:
        """Give the tokenizer another chat template."""
        (self.model / "chat_template.jinja").write_text(text)

    def end_with(self, tokens: list[int]) -> None:
        """Let other tokens end a completion."""
        (self.model / "generation_config.json").write_text(json.dumps({"eos_token_id": tokens}))


@pytest.fixture
def desk(tmp_path: Path, tiny_model_dir: Path, tiny_config: Callable[..., Any]) -> Desk:
    return Desk(tmp_path, tiny_model_dir, tiny_config)


def about_prompts(found: Found | Preflight) -> list[str]:
    return [text for text in found.warnings if "chat_template" in text or "pattern" in text]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([ASKED, {"role": "assistant", "content": "Let me see.\n<think>"}], "the role 'assistant' ('Let me see.\\n<think>')"),
        ([{"role": "system", "content": "Answer."}], "the role 'system'"),
        ([ASKED, {"role": "system", "content": "Answer."}], "the role 'system'"),
        ([{"role": "system", "content": "Answer."}, {"role": "user", "content": " \n"}], "the conversation is empty"),
        (" ", "the conversation is empty"),
    ],
)
def test_messages_that_leave_nothing_to_answer_are_refused_with_their_row(desk: Desk, messages: Any, text: str) -> None:
    (fault,) = desk.check(["1+1=", [ASKED], messages]).faults
    assert fault.startswith("data.prompt_column 'question', row 2: ")
    assert text in fault


@pytest.mark.parametrize(
    ("ends", "template", "prompt", "fault"),
    [
        (None, None, "1+1=<|end|>", "row 1: its prompt ends in '<|end|>', which ends a completion (…'1+1=<|end|>')"),
        (None, CHAT_TEMPLATE + "<|end|>", "1+1=", "row 0: its prompt ends in '<|end|>'"),
        (None, CHAT_TEMPLATE + "<|system|>", "1+1=", None),
        ([1, 2, 4], CHAT_TEMPLATE + "<|system|>", "1+1=", "row 0: its prompt ends in '<|system|>'"),  # the model knows it
        ([1, 2, 4], CHAT_TEMPLATE, [ASKED, {"role": "assistant", "content": "calculate"}, TOOL], None),
    ],
)
def test_a_prompt_may_not_end_in_what_ends_a_completion(
    desk: Desk, ends: list[int] | None, template: str | None, prompt: Any, fault: str | None
) -> None:
    """But a template may begin an answer with a token that ends one: 4 is <|assistant|>, as in Phi-3."""
    if ends is not None:
        desk.end_with(ends)
    if template is not None:
        desk.template(template)
    found = desk.check(["3+4=", prompt], data__chat_template=template is not None)
    if fault is None:
        assert found.faults == ()
    else:
        assert found.faults[0].startswith(fault)


def test_a_template_that_does_not_begin_the_assistants_turn_is_doubtful(desk: Desk) -> None:
    desk.template(NO_OPENING.replace("<|end|>", "<|end|>\n"))
    (warning,) = about_prompts(desk.check(["3+4="]))
    assert "does not begin the assistant's turn" in warning
    assert "…'<|user|>3+4=<|end|>\\n'" in warning
    desk.template(INSTRUCTIONS)
    assert about_prompts(desk.check(["3+4="])) == []


def test_an_end_of_turn_that_ends_no_completion_is_doubtful(desk: Desk) -> None:
    desk.template(CHAT_TEMPLATE.replace("<|end|>", "<|system|>\n"))
    (warning,) = about_prompts(desk.check(["3+4="]))
    assert "ends the assistant's turn with '<|system|>\\n', of which no token ends a completion (<|end|> do)" in warning
    assert "add 2 (<|system|>) to eos_token_id of generation_config.json" in warning
    desk.end_with([1, 2])
    assert about_prompts(desk.check(["3+4="])) == []


def test_both_kinds_are_found_by_the_process_that_looks_before_a_run(desk: Desk) -> None:
    config = desk.config(["3+4=", [{"role": "system", "content": "Answer."}]])
    assert check_start(config, ()).faults == look(config).faults != ()
    desk.template(NO_OPENING.replace("<|end|>", "<|end|>\n"))
    config = desk.config(["3+4="])
    assert about_prompts(check_start(config, ())) == about_prompts(look(config)) != []
