"""How a chat model wants its messages laid out: a Jinja template that comes with it, as data.

It is rendered as Hugging Face's library does, in Jinja's sandbox, where a template can reach no
file, module or attribute of ours. Loops and texts that grow without end are refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn

from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.interop.tokenizers import ImportedTokenizer

_MOST_ROUNDS = 100_000  # of all loops over `range` in one chat
_LONGEST = 2**22  # characters
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

    try:
        parts, length = list[str](), 0
        given = {"messages": list(messages), "add_generation_prompt": True, **tokens}
        for part in _compiled(template).generate(**given, range=_bounded_range()):
            parts.append(part)
            length += len(part)
            if length > _LONGEST:
                raise UserError("the chat template writes without end")
        return "".join(parts)
    except UserError:
        raise
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"the chat template does not accept this: {error!s:.200}") from error


def _bounded_range() -> Callable[..., range]:
    """`range` for a template, with a limit on all of them together."""
    left = _MOST_ROUNDS

    def bounded(*bounds: int) -> range:
        nonlocal left
        found = range(*bounds)
        left -= len(found)
        if left < 0:
            raise UserError("the chat template loops without end")
        return found

    return bounded


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if not all(type(x) in (int, float) and abs(x) < 1e6 for x in (left, right)):
                raise UserError("the chat template multiplies what is no small number")
            return super().call_binop(context, operator, left, right)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    try:
        return sandbox.from_string(template)
    except (TemplateError, RecursionError) as error:
        raise UserError(f"the chat template cannot be read: {error!s:.200}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise UserError(f"the chat template refuses: {message!s:.200}")
