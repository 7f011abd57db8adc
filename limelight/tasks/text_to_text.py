"""Ask, paraphrase, summarise: what a model that turns texts into texts does, by its tag.

A model without tags was trained for one thing, as an imported Pegasus for summaries: it reads the
text as it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from limelight.data.questions import ask_source
from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.tasks.text_model import TextModel
from limelight.tasks.translate import (
    Constraints,
    InvalidLine,
    Translation,
    longest_source,
    translate,
)

_HINTS = {
    **dict.fromkeys(("ask", "paraphrase"), "the bundled model helper does"),
    "summarise": "no bundled model does; import one (google/pegasus-xsum), or train text-to-text",
}


def tag_of(trained: TextModel, task: str) -> str:
    """The tag of a task, which the model must have learned if it learned several."""
    trained.require(task)
    if task in trained.tags:
        return task
    if not trained.tags and trained.kind != "dialogues":
        return ""
    learned = ", ".join(trained.tags) or "chat"
    raise UserError(f"this model did not learn to {task}, but {learned}: {_HINTS[task]}")


def ask(
    trained: TextModel,
    questions: Iterable[str | InvalidLine],
    context: str,
    config: DecodeConfig | None = None,
) -> Iterator[Translation]:
    """Answers to questions about a paragraph, which the model must be able to read at once."""
    tag, config = tag_of(trained, "ask"), config or trained.decode
    if not context.strip():
        raise UserError("the context is empty: there is no paragraph to ask about")
    longest = longest_source(trained, config) - bool(tag)
    for question in questions:
        if isinstance(question, InvalidLine):
            yield Translation("", problem=question.why)
            continue
        asked = " ".join(question.split())
        source = ask_source(asked, " ".join(context.split())) if asked else ""
        if (count := len(trained.tokenizer.source.encode(source))) > longest:
            reads = f"the model reads {longest}: shorten the paragraph"
            yield Translation(source, problem=f"question and context are {count} tokens, {reads}")
        else:
            yield from translate(trained, [source], config, constraints=Constraints(tag=tag))


def paraphrase(
    trained: TextModel, texts: Iterable[str | InvalidLine], config: DecodeConfig | None = None
) -> Iterator[Translation]:
    """Each text in other words: of all that the beam found, the best one that differs."""
    tag, config = tag_of(trained, "paraphrase"), config or trained.decode
    count = 1 if config.temperature else config.beam
    return map(different_first, translate(trained, texts, config, count, Constraints(tag=tag)))


def different_first(done: Translation) -> Translation:
    """Those that differ from the source before those that repeat it."""
    source = _bare(done.source)
    outputs = sorted(done.outputs, key=lambda output: _bare(output.text) == source)
    return replace(done, outputs=tuple(outputs))


def _bare(text: str) -> str:
    """A text without case and marks: what differs in these alone is the same."""
    return "".join(filter(str.isalnum, text)).casefold()


def summarise(
    trained: TextModel, texts: Iterable[str | InvalidLine], config: DecodeConfig | None = None
) -> Iterator[Translation]:
    """Summaries; of a text that is too long, those of its parts one after another (`parts`)."""
    tag = tag_of(trained, "summarise")
    return translate(trained, texts, config, constraints=Constraints(tag=tag))
