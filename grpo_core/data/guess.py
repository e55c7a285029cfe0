"""What `grpo init` finds in rows and a model: the columns, whether there is a chat template, how long the prompts are."""

from grpo_core.config import DataConfig
from grpo_core.config.section import MOST_TOKENS
from grpo_core.data.prompts import tokenized
from grpo_core.data.sources import read_rows
from grpo_core.policy.sources.find import lacks_chat_template, load_tokenizer, model_here

QUESTIONS = ("question", "prompt", "problem", "query", "instruction", "input")
ANSWERS = ("answer", "solution", "ground_truth", "gold", "response", "output", "label", "target")


def guess(source: str, model: str) -> tuple[DataConfig, int | None]:
    """Return how the rows of a source become prompts for a model, and the tokens of the longest; None without the model.

    The first 200 rows are looked at. Columns are taken by name, else the first two that hold text.

    Args:
        source: as `data.source`.
        model: as `model.source`.

    Raises:
        DataError: the rows cannot be read, or are no prompts.
        ModelError: the tokenizer cannot be read.
    """
    rows, folder = read_rows(DataConfig(source=source), 200), model_here(model)
    texts = [name for name, value in rows[0].items() if isinstance(value, str)]
    question = next((name for name in (*QUESTIONS, *texts) if name in rows[0]), QUESTIONS[0])
    answer = next((name for name in (*ANSWERS, *texts) if name in rows[0] and name != question), None)
    data = DataConfig(source=source, prompt_column=question, answer_column=answer, chat_template=not lacks_chat_template(model))
    if folder is None:
        return data, None
    prompts = tokenized(rows, data, load_tokenizer(folder, trust_remote_code=False), MOST_TOKENS, ())
    return data, max(len(prompt.token_ids) for prompt in prompts if prompt is not None)
