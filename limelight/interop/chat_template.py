"""How a chat model wants its messages laid out: a Jinja template that comes with it, as data.

It is rendered as Hugging Face's library does, in Jinja's sandbox, where a template can reach no
file, module or attribute of ours. Loops, macros, texts and lists that grow without end are refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn

from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.interop.tokenizers import ImportedTokenizer

Messages = Sequence[Mapping[str, str]]  # role and content of each


def prompt_of(template: str, tokenizer: Tokenizer) -> Callable[[Messages], list[int]]:
    """A function from messages to the tokens that a model reads before it answers."""
    if not isinstance(tokenizer, ImportedTokenizer):
        raise UserError("a chat template belongs to an imported tokenizer")
    return partial(_chat_prompt, template, tokenizer)


def _chat_prompt(template: str, tokenizer: ImportedTokenizer, messages: Messages) -> list[int]:
    symbols = tokenizer.coder.symbols
    special = {symbol for i in tokenizer.special_ids if i < len(symbols) and (symbol := symbols[i])}
    for message in messages:
        if spelled := sorted(token for token in special if token in message["content"]):
            raise UserError(
                f"the text has {spelled[0]}, which is a control token of this model: leave it out"
            )
    names = {"bos_token": tokenizer.start, "eos_token": tokenizer.end, "pad_token": tokenizer.pad}
    tokens = {name: symbols[i] or "" for name, i in names.items()}
    return tokenizer.encode_template(render(template, messages, tokens))


def render(template: str, messages: Messages, tokens: Mapping[str, str]) -> str:
    """The conversation as text, with special tokens spelled out."""
    from jinja2 import TemplateError

    from limelight.interop.template_sandbox import ROUNDS, Rounds, joined

    try:
        given = {"messages": list(messages), "add_generation_prompt": True, **tokens}
        return joined(_compiled(template).generate(**given, **{ROUNDS: Rounds()}))
    except UserError:
        raise
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"the chat template does not accept this: {error!s:.200}") from error
    except (RecursionError, MemoryError) as error:
        raise UserError("the chat template calls itself without end") from error


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError

    from limelight.interop.template_sandbox import LONGEST_TEMPLATE, Sandbox

    if len(template) > LONGEST_TEMPLATE:
        raise UserError(f"the chat template has {len(template):,} characters, too many")
    sandbox = Sandbox()
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    try:
        return sandbox.from_string(template)
    except (TemplateError, RecursionError) as error:
        raise UserError(f"the chat template cannot be read: {error!s:.200}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    from limelight.interop.template_sandbox import bounded, joined

    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent and min(indent, 16))
    return joined(encoder.iterencode(bounded(value)))


def _now(form: str) -> str:
    if len(form) > 100:
        raise UserError(f"the chat template asks for a date as {form:.30}, which is too long")
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise UserError(f"the chat template refuses: {message!s:.200}")
