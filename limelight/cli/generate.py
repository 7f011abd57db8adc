"""Commands that use a trained model: translate, chat, write, fill, classify, embed, score."""

import json as json_format
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import count as count_from
from typing import TYPE_CHECKING, Annotated, Any

from limelight.cli.io import (
    InputLines,
    answer_lines,
    converse,
    load_for,
    note,
    on_one_line,
    print_json_line,
    print_line,
)
from limelight.cli.parser import (
    NO_SETTINGS,
    Argument,
    DecodeFloat,
    DecodeInt,
    Int,
    Json,
    JsonLines,
    Phrases,
    Run,
    Seed,
    Settings,
    Switch,
    Tag,
    Text,
    Texts,
    overrides,
)

if TYPE_CHECKING:
    from limelight.tasks.score import Scored
    from limelight.tasks.translate import AlternativeChoice, TokenProbability, Translation


def translate(
    run: Run,
    text: Texts = (),
    beam: DecodeInt = None,
    nbest: Int = 1,
    alternatives: Switch = False,
    temperature: DecodeFloat = None,
    seed: Seed = None,
    prefix: Annotated[str, Argument("TEXT")] = "",
    include: Phrases = (),
    exclude: Phrases = (),
    tag: Tag = "",
    ensemble: Annotated[tuple[str, ...], Argument("RUN")] = (),
    json: JsonLines = False,
    set: Settings = NO_SETTINGS,
) -> None:
    """Translate the arguments, or the lines of stdin, in order.

    Options that are not given have the values of the recipe's [decode] table. Exits with status 1
    if some lines could not be read.

    Args:
        text: the texts to translate; without any, the lines of stdin
        beam: beam size; 1 is greedy decoding
        nbest: print this many translations of each text with their scores; widens the beam
        alternatives: show the most likely tokens at every position
        temperature: above 0, sample without a beam; higher values are more varied
        prefix: how the translation must begin
        include: a word, or part of one or several, that must appear; case-sensitive, may be
            repeated, needs a beam
        exclude: the same for what must not appear; may be repeated
        ensemble: a run that decodes together with the first; may be repeated
        set: change the recipe's [decode]; --decode.length-penalty 1.0 works as well
    """
    from limelight.tasks import translate as task

    changes = overrides(set, beam=beam, temperature=temperature, seed=seed)
    loaded, config = load_for("translate", run, changes, ensemble)
    config, wishes = task.widen_beam(config, nbest), task.Constraints(tag, prefix, include, exclude)
    lines, numbers = InputLines(text, sys.stdin.buffer), count_from(1)
    for window in lines.windows():
        for done in task.translate(loaded, window, config, nbest, wishes):
            number = next(numbers)
            if done.problem:
                lines.complain(number, done.problem)
            if done.parts > 1:
                without = ", without alternatives" if alternatives else ""
                split = f"too long for the model, so translated in {done.parts} parts{without}"
                lines.note(number, split)
            source = done.source if alternatives and done.outputs and done.parts == 1 else ""
            if json:
                choices = source and task.alternative_choices(loaded, source, config, wishes=wishes)
                _print_translation_as_json(done, choices or ())
            else:
                tokens = source and task.alternative_tokens(loaded, source, config, wishes=wishes)
                _print_translation(done, tokens or (), nbest)
    lines.finish()


def _print_translation(
    done: "Translation", tokens: "Iterable[list[TokenProbability]]", nbest: int
) -> None:
    if nbest == 1 or not done.outputs:
        print_line(done.text)
    for output in done.outputs if nbest > 1 else ():
        print_line(f"{output.score:.4f}\t{output.text}")
    for ranked in tokens:
        print_line("  " + "   ".join(f"{_visible(c.piece)} {c.probability:.0%}" for c in ranked))


def _visible(piece: str) -> str:
    """A piece in quotes where it is only white space."""
    return piece.strip() or repr(piece)


def _print_translation_as_json(
    done: "Translation", choices: "Iterable[list[AlternativeChoice]]"
) -> None:
    facts: dict[str, Any] = {"source": done.source, "text": done.text, "parts": done.parts}
    facts["outputs"] = [asdict(output) for output in done.outputs]
    facts |= {"problem": done.problem} if done.problem else {}
    if alternatives := [list(map(asdict, ranked)) for ranked in choices]:
        facts["alternatives"] = alternatives
    print_json_line(facts)


def chat(
    run: Run,
    text: Texts = (),
    beam: DecodeInt = None,
    temperature: DecodeFloat = None,
    seed: Seed = None,
    tag: Tag = "",
    json: JsonLines = False,
    set: Settings = NO_SETTINGS,
) -> None:
    """Talk with a model at the terminal, or through arguments or lines of stdin.

    At the terminal, /reset forgets everything, /quit exits, and Ctrl-C stops an answer. Options
    that are not given have the values of the recipe's [decode] table.

    Args:
        text: your side of the conversation, turn by turn
        beam: beam size; 1 is greedy decoding
        temperature: above 0, sample without a beam and show each token at once
        set: change the recipe's [decode]; --decode.top-p 0.9 works as well
    """
    changes = overrides(set, beam=beam, temperature=temperature, seed=seed)
    loaded, config = load_for("chat", run, changes)

    from limelight.tasks.chat import Conversation

    conversation = Conversation(loaded, config, tag)

    def answer(text: str) -> None:
        if json:
            print_json_line({"text": text, "answer": conversation.reply(text)})
        elif not sys.stdout.isatty():
            print_line(conversation.reply(text))
        else:
            conversation.reply(text, lambda piece: print(on_one_line(piece), end="", flush=True))
            print(flush=True)
        if conversation.cut:
            note("too long for the model, so only its end was read")

    converse(text, answer, "say something", json, conversation.reset)


def write(
    run: Run,
    prompt: Annotated[tuple[str, ...], Argument("PROMPT", positional=True)] = (),
    max_tokens: Annotated[int | None, Argument("N", fallback="the recipe's, or 200")] = None,
    temperature: DecodeFloat = None,
    top_k: DecodeInt = None,
    top_p: DecodeFloat = None,
    seed: Seed = None,
    stop: Phrases = (),
    json: JsonLines = False,
    set: Settings = NO_SETTINGS,
) -> None:
    """Continue a text.

    Options that are not given have the values of the recipe's [decode] table.

    Args:
        prompt: texts to continue; without any, the lines of stdin, or a terminal
        max_tokens: generate at most this many tokens; 0 means 200
        temperature: above 0, sample, more varied with higher values; 0 is greedy decoding
        top_k: sample from the K most likely tokens; 0 means all
        top_p: nucleus sampling: sample from the smallest set of tokens whose probabilities sum
            to P; 1 means all
        stop: stop where this text appears; may be repeated
        set: change the recipe's [decode]; --decode.min-p 0.05 works as well
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    changes = overrides(set, max_tokens=max_tokens, **sampling)
    loaded, config = load_for("write", run, changes)

    from limelight.tasks import write as task

    task.refuse_beam(None if config.beam == loaded.recipe.decode.beam else config.beam)

    def answer(prompt: str) -> None:
        pieces = task.write(loaded, prompt, config, stop)
        if json:
            print_json_line({"prompt": prompt, "text": "".join(pieces)})
            return
        print(prompt, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)

    converse(prompt, answer, "type a text to continue", json)


def fill(run: Run, text: Text, count: Int = 5, json: Json = False) -> None:
    """Fill in the blanks of a text, written ___, and list the candidates.

    Args:
        text: a text with one or more blanks, such as "The ___ barks"
        count: how many candidates to list for each blank
    """
    loaded, _ = load_for("fill", run)
    filled = loaded.fill(text, count)
    if json:
        print_json_line(asdict(filled))
        return
    print_line(filled.text)
    for number, blank in enumerate(filled.blanks, start=1):
        found = "   ".join(f"{_visible(one.text)} {one.probability:.1%}" for one in blank)
        print_line(f"  {number}: {found}")


def classify(run: Run, text: Texts = (), json: Switch = False) -> None:
    """Print the most likely class of each text, and its probability.

    Args:
        text: the texts to classify; without any, the lines of stdin
        json: print the probabilities of all classes, one JSON document per line
    """
    loaded, _ = load_for("classify", run)

    from limelight.tasks.classify import classify

    def show(probabilities: dict[str, float]) -> str:
        best = next(iter(probabilities))
        if json:
            print_json_line(probabilities)
        else:
            print_line(f"{best}\t{probabilities[best]:.4f}")
        return ""

    answer_lines(text, lambda readable: classify(loaded, readable), show, json)


def embed(run: Run, text: Texts = ()) -> None:
    """Print a unit vector for each text, one JSON list per line: similar texts, similar vectors.

    Args:
        text: the texts to embed; without any, the lines of stdin
    """
    loaded, _ = load_for("embed", run)

    from limelight.tasks.classify import embed

    def show(vector: list[float]) -> str:
        print_line(json_format.dumps([round(value, 6) for value in vector]))
        return ""

    answer_lines(text, lambda readable: embed(loaded, readable), show)


def score(run: Run, text: Texts = (), tag: Tag = "", json: Switch = False) -> None:
    """Print the log-probability of each text, or of a target given its source and a tab.

    Args:
        text: the texts to score; without any, the lines of stdin
        json: print the log-probability of every token, one JSON document per line
    """
    loaded, _ = load_for("score", run)

    from limelight.tasks.score import score

    def show(scored: "Scored") -> str:
        if json and scored.problem:
            print_json_line({"problem": scored.problem})
        elif json:
            tokens = {"tokens": scored.tokens, "logprobs": scored.logprobs}
            print_json_line({"score": scored.total, **tokens})
        else:
            print_line("" if scored.problem else f"{scored.total:.4f}")
        return scored.problem

    def answer(readable: Iterable[str]) -> "Iterator[Scored]":
        return score(loaded, (tuple(line.split("\t")) for line in readable), tag)

    answer_lines(text, answer, show, json)
