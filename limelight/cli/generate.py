"""Commands that use a trained model, from translate to score."""

import json as json_format
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.errors import UserError

if TYPE_CHECKING:
    from limelight.tasks.score import Scored
    from limelight.tasks.translate import TokenProbability, Translation


def translate(
    run: arg.Run,
    text: arg.Texts = (),
    beam: arg.Beam = None,
    nbest: arg.Int = 1,
    alternatives: arg.Switch = False,
    temperature: arg.Temperature = None,
    seed: arg.Seed = None,
    prefix: arg.String = "",
    include: arg.Phrases = (),
    exclude: arg.Phrases = (),
    glossary: arg.File = "",
    tag: arg.Tag = "",
    ensemble: Annotated[tuple[str, ...], arg.Argument("RUN")] = (),
    engine: arg.Engine = None,
    input: arg.Input = "",
    output: arg.Output = "",
    json: arg.JsonLines = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Translate the arguments, or the lines of a file or of stdin, in order.

    Exits with status 1 if some lines could not be read.

    Args:
        nbest: print this many translations of each text with their scores; widens the beam
        alternatives: show the most likely tokens at every position
        prefix: how the translation must begin
        include: a word, part of one, or several that must appear (case-sensitive); may be
            repeated; needs a beam
        exclude: a word, part of one, or several that must not appear; may be repeated
        glossary: a file of terms and their translations, separated by tabs (.csv: commas); used
            where the source has the term; needs a beam
        ensemble: a run that decodes together with the first; may be repeated
    """
    lines = io.InputLines(text, file=input, output=output)
    overrides = arg.overrides(set, beam=beam, temperature=temperature, seed=seed, engine=engine)
    loaded, config = io.load_for("translate", run, overrides, ensemble)

    from limelight.tasks import translate as task

    config = task.widen_beam(config, nbest)
    constraints = task.Constraints(tag, prefix, include, exclude, glossary or {})
    job = {"nbest": nbest, "alternatives": alternatives, "json": json, **asdict(config)}
    named: Any = {"config": config, "nbest": nbest, "constraints": constraints, "logprobs": json}
    with lines.opened("translate", loaded, **job, **asdict(constraints)):
        for done in lines.outcomes(partial(task.translate, loaded, **named)):
            _note_problems(lines, done, alternatives)
            source = done.source if alternatives and done.outputs and done.parts == 1 else ""
            asked = (loaded, source, config)
            if json:
                choices = source and task.alternative_choices(*asked, constraints=constraints)
                io.print_translation(done, choices or ())
            else:
                tokens = source and task.alternative_tokens(*asked, constraints=constraints)
                _print_translation(done, tokens or (), nbest)


def _note_problems(lines: io.InputLines, done: "Translation", alternatives: bool) -> None:
    if done.problem:
        lines.complain(done.problem)
    if done.missing_terms:
        lines.note(f"of the glossary, not used: {', '.join(map(repr, done.missing_terms))}")
    if done.parts > 1:
        without = ", without alternatives" if alternatives else ""
        lines.note(f"too long for the model, so translated in {done.parts} parts{without}")


def _print_translation(
    done: "Translation", tokens: "Iterable[list[TokenProbability]]", nbest: int
) -> None:
    if nbest == 1 or not done.outputs:
        io.print_line(done.text)
    for output in done.outputs if nbest > 1 else ():
        io.print_line(f"{output.score:.4f}\t{output.text}")
    from limelight.explain.tokens import label_at

    for i, ranked in enumerate(tokens):
        labels = (label_at(done.outputs[0].tokens, i, c.piece).strip("·") or "·" for c in ranked)
        shares = (f"{c.probability:.0%}" for c in ranked)
        io.print_line("  " + "   ".join(map(" ".join, zip(labels, shares, strict=True))))


def chat(
    run: arg.Run,
    text: arg.Texts = (),
    beam: arg.Beam = None,
    temperature: arg.Temperature = None,
    seed: arg.Seed = None,
    tag: arg.Tag = "",
    engine: arg.Engine = None,
    json: arg.JsonLines = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Talk with a model at the terminal, or through arguments or lines of stdin.

    At the terminal, /reset forgets everything, /quit exits, and Ctrl-C stops an answer.

    Args:
        text: your side of the conversation, turn by turn
    """
    overrides = arg.overrides(set, beam=beam, temperature=temperature, seed=seed, engine=engine)
    loaded, config = io.load_for("chat", run, overrides)

    from limelight.tasks.chat import Conversation

    conversation = Conversation(loaded, config, tag)

    def answer(text: str) -> None:
        if json:
            io.print_json_line({"text": text, "answer": conversation.reply(text)})
        elif not sys.stdout.isatty():
            io.print_line(conversation.reply(text))
        else:
            conversation.reply(text, lambda piece: io.print_text(io.on_one_line(piece)))
            print(flush=True)
        if conversation.cut:
            io.note("too long for the model, so only its end was read")

    lines = io.InputLines(text, json)
    with lines.opened("chat", loaded):
        io.converse(lines, answer, "say something", conversation.reset)


def write(
    run: arg.Run,
    prompt: Annotated[tuple[str, ...], arg.Argument("PROMPT", positional=True)] = (),
    max_tokens: Annotated[int | None, arg.Argument("N", fallback="the recipe's, or 200")] = None,
    temperature: arg.Temperature = None,
    top_k: arg.DecodeInt = None,
    top_p: arg.DecodeFloat = None,
    seed: arg.Seed = None,
    stop: arg.Phrases = (),
    engine: arg.Engine = None,
    input: arg.Input = "",
    output: arg.Output = "",
    json: arg.JsonLines = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Continue a text.

    Args:
        prompt: texts to continue; without any, the lines of a file or of stdin, or a terminal
        max_tokens: generate at most this many tokens; 0 means 200
        top_k: sample from the N most likely tokens; 0 means all
        top_p: nucleus sampling: sample from the smallest set of tokens whose probabilities sum
            to X; 1 means all
        stop: stop where this text appears; may be repeated
    """
    lines = io.InputLines(prompt, json, input, output)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    overrides = arg.overrides(set, max_tokens=max_tokens, engine=engine, **sampling)
    loaded, config = io.load_for("write", run, overrides)

    from limelight.tasks import write as task

    task.refuse_beam(None if config.beam == loaded.recipe.decode.beam else config.beam)
    task.refuse_engine(loaded, config)

    def answer(prompt: str) -> None:
        pieces = task.write(loaded, prompt, config, stop)
        if json:
            io.print_json_line({"prompt": prompt, "text": "".join(pieces)})
            return
        first = next(pieces, "")  # a prompt that is refused is not shown
        for piece in chain([prompt, first], pieces):
            io.print_text(piece)
        print(flush=True)

    with lines.opened("write", loaded, stop=stop, json=json, **asdict(config)):
        io.converse(lines, answer, "type a text to continue")


def fill(run: arg.Run, text: arg.Text, count: arg.Int = 5, json: arg.Json = False) -> None:
    """Fill in the blanks of a text, written ___, and list the candidates.

    Args:
        text: a text with one or more blanks, such as "The ___ barks"
        count: how many candidates to list for each blank
    """
    loaded, _ = io.load_for("fill", run)
    filled = loaded.fill(text, count)
    if json:
        io.print_json_line(asdict(filled))
        return
    io.print_line(filled.text)
    for number, blank in enumerate(filled.blanks, start=1):
        found = (f"{one.text.strip() or repr(one.text)} {one.probability:.1%}" for one in blank)
        io.print_line(f"  {number}: {'   '.join(found)}")


def classify(
    run: arg.Run,
    text: arg.Texts = (),
    words: arg.Switch = False,
    input: arg.Input = "",
    output: arg.Output = "",
    json: arg.Switch = False,
) -> None:
    """Print the most likely class of each text, and its probability.

    Args:
        words: print also what each word adds to it: the word is removed, and the text classified
            again (leave-one-out); in percentage points
        json: print the probabilities of all classes, one JSON document per line
    """
    lines = io.InputLines(text, json, input, output)
    lines.refuse_empty()
    loaded, _ = io.load_for("classify", run)

    from limelight.tasks.classify import classify, word_effects

    def answer(texts: Iterable[str]) -> Iterator[tuple[str, dict[str, float]]]:
        return zip(texts, classify(loaded, texts), strict=True)  # of a list

    with lines.opened("classify", loaded, json=json, **({"words": True} if words else {})):
        for one, probabilities in lines.answered(answer):
            best = next(iter(probabilities))
            effects = word_effects(loaded, one) if words else []
            if json and words:
                each = [{"word": word, "effect": effect} for word, effect in effects]
                io.print_json_line({"classes": probabilities, "words": each})
            elif json:
                io.print_json_line(probabilities)
            else:
                io.print_line(f"{best}\t{probabilities[best]:.4f}")
                if words:
                    shown = (f"{word} {100 * effect:+.1f}" for word, effect in effects)
                    io.print_line("  " + "   ".join(shown))


def embed(
    run: arg.Run, text: arg.Texts = (), input: arg.Input = "", output: arg.Output = ""
) -> None:
    """Print a unit vector for each text, one JSON list per line: similar texts, similar vectors."""
    lines = io.InputLines(text, file=input, output=output)
    loaded, _ = io.load_for("embed", run)

    from limelight.tasks.embed import embed

    with lines.opened("embed", loaded):
        for vector in lines.answered(partial(embed, loaded)):
            io.print_line(json_format.dumps([round(value, 6) for value in vector]))


def search(
    run: arg.Run,
    query: Annotated[str, arg.Argument("QUERY", positional=True)],
    file: Annotated[tuple[str, ...], arg.Argument("FILE", positional=True)] = (),
    near: arg.String = "",
    top: arg.Int = 10,
    paragraphs: arg.Switch = False,
    why: arg.Switch = False,
    index: arg.Folder = "",
    json: arg.JsonLines = False,
) -> None:
    """Find the lines of files that are closest in meaning to a query.

    Every line is embedded once and kept in an index on disk; later, only new lines are.
    Sentence encoders such as minilm find most.

    Args:
        query: what to search for; with --near, the first file
        file: the files and folders to search
        near: instead of a query, a line of the files: find others like it
        top: print this many lines
        paragraphs: search paragraphs, separated by blank lines, instead of lines
        why: print for every token of the query the most similar one of the line
        index: keep the index in this folder instead of in the cache
    """
    files = (query, *file) if near else file
    loaded, _ = io.load_for("embed", run)

    from limelight.tasks import search as task
    from limelight.tasks.text_model import is_cut

    wanted = task.Query(near or query, top, near=bool(near))
    found = task.update_index(loaded, files, paragraphs, index or None)
    if skipped := sum(file.skipped for file in found):
        io.note(f"lines that are not UTF-8, and not searched: {skipped:,}")
    if not any(file.parts for file in found):
        empty = ", ".join(str(file.path) for file in found[:3]) + ", ..." * (len(found) > 3)
        raise UserError(f"there is nothing to search: no line with text in {empty}")
    if cut := sum(file.cut for file in found) + is_cut(loaded, wanted.text):
        io.note_cut(cut)
    for match in task.ranked(loaded, wanted, found):
        similar = task.why(loaded, wanted.text, match.text) if why else None
        if json:
            io.print_json_line(asdict(match) | ({"why": asdict(similar)} if similar else {}))
            continue
        io.print_line(f"{match.score:.4f}\t{match.file}:{match.line}\t{match.text}")
        if similar:
            pairs = (f"{token} ~ {other} {cosine:.2f}" for token, other, cosine in similar.best)
            io.print_line("  " + "   ".join(pairs))


def score(
    run: arg.Run,
    text: arg.Texts = (),
    tag: arg.Tag = "",
    input: arg.Input = "",
    output: arg.Output = "",
    json: arg.Switch = False,
) -> None:
    """Print the log-probability of each text, or of a target given its source and a tab.

    Args:
        json: print the log-probability of every token, one JSON document per line
    """
    lines = io.InputLines(text, json, input, output)
    loaded, _ = io.load_for("score", run)

    from limelight.tasks.score import score

    def answer(texts: Iterable[str]) -> "Iterator[Scored]":
        return score(loaded, (tuple(one.split("\t")) for one in texts), tag)

    with lines.opened("score", loaded, tag=tag, json=json):
        for scored in lines.answered(answer):
            _print_score(scored, json)
            if scored.problem:
                lines.complain(scored.problem)


def _print_score(scored: "Scored", json: bool) -> None:
    if json and not scored.problem:
        tokens = {"tokens": scored.tokens, "logprobs": scored.logprobs}
        total = {"score": scored.total, "log_probability": scored.total}  # two names, one sum
        io.print_json_line({**total, **tokens})
    elif json:
        io.print_json_line({"problem": scored.problem})
    else:
        io.print_line("" if scored.problem else f"{scored.total:.4f}")
