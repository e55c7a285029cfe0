"""What `grpo init` finds in rows and a model: the columns, whether there is a chat template, how long the prompts are."""

from grpo_core.config import DataConfig, RunConfig
from grpo_core.config.section import MOST_TOKENS
from grpo_core.data.prepare import load_encoder
from grpo_core.data.prompts import tokenized
from grpo_core.data.row_images import reads_images
from grpo_core.data.sources import read_rows
from grpo_core.policy.sources.find import lacks_chat_template, model_here

QUESTIONS = ("question", "prompt", "problem", "query", "instruction", "input")
ROWS_WITH_IMAGES = 20
ANSWERS = ("answer", "solution", "ground_truth", "gold", "response", "output", "label", "target")


def guess(source: str, model: str) -> tuple[DataConfig, int | None]:
    """Return how the rows of a source become prompts for a model, and the tokens of the longest; None without the model.

    The first 200 rows are looked at, 20 where the model reads images. Columns are taken by name, else the first two that hold
    text; images are found by `data.image_column` null.

    Args:
        source: as `data.source`.
        model: as `model.source`.

    Raises:
        DataError: the rows cannot be read, or are no prompts.
        ModelError: the tokenizer cannot be read.
    """
    folder = model_here(model)
    with_images = folder is not None and reads_images(folder)
    rows = read_rows(DataConfig(source=source), ROWS_WITH_IMAGES if with_images else 200, with_images=with_images)
    texts = [name for name, value in rows[0].items() if isinstance(value, str)]
    question = next((name for name in (*QUESTIONS, *texts) if name in rows[0]), QUESTIONS[0])
    answer = next((name for name in (*ANSWERS, *texts) if name in rows[0] and name != question), None)
    data = DataConfig(source=source, prompt_column=question, answer_column=answer, chat_template=not lacks_chat_template(model))
    if folder is None:
        return data, None
    tokenizer, encoder = load_encoder(RunConfig(data=data), folder)
    prompts = tokenized(rows, data, tokenizer, MOST_TOKENS, (), encoder=encoder)
    return data, max(len(prompt.token_ids) for prompt in prompts if prompt is not None)
