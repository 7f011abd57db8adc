"""Jinja's sandbox with bounds on time and memory: it alone allows endless loops and huge texts.

All loops and calls of macros are counted. Whatever makes a text of others checks its length first.
Filters and methods that pad a text to any width are removed.
"""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from limelight.errors import UserError

_MOST_ROUNDS = 100_000  # in one chat
_LONGEST = 2**22  # characters, or items of a list
ROUNDS = "_rounds"  # what a template is rendered with, besides its own names
_WIDENING = {
    *("center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "indent"),
    *("wordwrap", "lipsum"),
}


class Rounds:
    """Counts the rounds of all loops, and the calls of macros."""

    left = _MOST_ROUNDS

    def take(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.left -= 1
            if self.left < 0:
                raise _endless()
            yield item


def _endless() -> UserError:
    return UserError("the chat template loops without end")


def _range(*bounds: int) -> range:
    if len(found := range(*bounds)) > _MOST_ROUNDS:
        raise _endless()
    return found


def joined(parts: Iterable[Any], separator: str = "") -> str:
    """All parts as one text, unless it is too long."""
    texts, length = list[str](), 0
    for part in parts:
        texts.append(str(part))
        length += len(texts[-1]) + len(separator)
        if length > _LONGEST:
            raise UserError("the chat template writes without end")
    return separator.join(texts)


def _concat(*parts: Any) -> str:
    return joined(parts)


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    text = str(text)
    if len(text) + text.count(old) * len(new) > _LONGEST:
        raise UserError("the chat template writes without end")
    return text.replace(old, new, count)


class _Counted(NodeTransformer):
    """Puts calls of the methods of `Sandbox` into a template, which no name in it can hide."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        node.iter = _call("count_rounds", nodes.ContextReference(), node.iter)
        node.recursive = False  # its rounds would not be counted
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        node.body.insert(0, nodes.ExprStmt(_call("count_call", nodes.ContextReference())))
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concat_texts", *node.nodes)


def _call(name: str, *given: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), [*given], [], None, None)


class Sandbox(ImmutableSandboxedEnvironment):
    """What a chat template is compiled by."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))
    concat_texts = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters |= {"join": joined, "replace": _replace}
        self.globals["range"] = _range
        for name in _WIDENING:
            self.filters.pop(name, None)
            self.globals.pop(name, None)

    def _parse(self, *source: Any) -> Any:
        return _Counted().visit(super()._parse(*source))

    def count_rounds(self, context: Any, items: Iterable[Any]) -> Any:
        return context.parent[ROUNDS].take(items)

    def count_call(self, context: Any) -> None:
        next(context.parent[ROUNDS].take("1"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if sum(len(side) for side in (left, right) if isinstance(side, Sized)) > _LONGEST:
                raise UserError("the chat template writes without end")
            return left + right
        if not all(type(x) in (int, float) and abs(x) < 1e6 for x in (left, right)):
            raise UserError("the chat template multiplies what is no small number")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _WIDENING and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, *args: Any, **named: Any) -> Any:
        text, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(text, str) and name in ("join", "replace"):
            return joined(args[0], text) if name == "join" else _replace(text, *args)
        return super().call(context, obj, *args, **named)
