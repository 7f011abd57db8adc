"""Jinja's sandbox with bounds on time and memory: it alone allows endless loops and huge texts.

All loops and calls of macros are counted. Whatever makes a text or list of others is checked for
its size, with all that it holds. Filters and methods are those that chat templates use.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sized, ValuesView
from functools import wraps
from time import monotonic
from typing import Any

from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from limelight.errors import UserError

_MOST_ROUNDS = 100_000  # in one chat
_SECONDS = 10  # for one chat; an honest template takes a thousandth
_LONGEST = 2**20  # characters, and items of lists, in one value
LONGEST_TEMPLATE = 100_000  # characters
ROUNDS = "_rounds"  # what a template is rendered with, besides its own names
_HOLDING = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)

_FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby int items join last "
    "length list lower map max min reject rejectattr replace reverse safe select selectattr sort "
    "string sum title trim unique upper"
)
_OF_TEXTS = (
    "capitalize count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric "
    "isspace isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex "
    "rpartition rsplit rstrip split splitlines startswith strip title upper"
)
_METHODS: dict[type, set[str]] = {
    str: set(_OF_TEXTS.split()),
    dict: {"copy", "get", "items", "keys", "values"},
    list: {"copy", "count", "index"},
    tuple: {"count", "index"},
    int: set(),
    float: set(),
}


class Rounds:
    """Counts the rounds of all loops and the calls of macros, and looks at the clock."""

    def __init__(self) -> None:
        self.left, self.until = _MOST_ROUNDS, monotonic() + _SECONDS

    def take(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.left -= 1
            if self.left < 0 or monotonic() > self.until:
                raise _endless()
            yield item


def _endless() -> UserError:
    return UserError("the chat template loops without end")


def _too_long() -> UserError:
    return UserError("the chat template writes without end")


def bounded(value: Any) -> Any:
    """The value itself, unless it holds too much; what is in it twice counts twice."""
    found, left = [value], _LONGEST
    while found:
        one = found.pop()
        if isinstance(one, Namespace):  # its values may change after they were counted
            raise UserError("the chat template has a namespace where a value belongs")
        inside = [*one, *one.values()] if isinstance(one, dict) else one
        left -= len(inside) + 1 if isinstance(inside, (str, *_HOLDING)) else 1
        if left < 0:
            raise _too_long()
        if isinstance(inside, _HOLDING):
            found += inside
    return value


def joined(parts: Iterable[Any], separator: str = "") -> str:
    """All parts as one text, unless it is too long."""
    texts, length = list[str](), 0
    for part in parts:
        texts.append(str(bounded(part)))
        length += len(texts[-1]) + len(separator)
        if length > _LONGEST:
            raise _too_long()
    return separator.join(texts)


def _concat(*parts: Any) -> str:
    return joined(parts)


def _range(*bounds: int) -> range:
    if len(found := range(*bounds)) > _MOST_ROUNDS:
        raise _endless()
    return found


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    text = str(bounded(text))
    if len(text) + text.count(old) * len(new) > _LONGEST:
        raise _too_long()
    return text.replace(old, new, count)


def _bounded_filter(apply: Any) -> Any:
    """A filter of values that are not too long, whose result is not either."""

    @wraps(apply)  # with the marks by which Jinja knows what else it takes
    def checked(*args: Any, **named: Any) -> Any:
        for value in (*args, *named.values()):
            bounded(value)
        return bounded(apply(*args, **named))

    return checked


class _Counted(NodeTransformer):
    """Puts calls of the methods of `Sandbox` into a template, which no name in it can hide."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        node.iter = _call("count_rounds", nodes.ContextReference(), node.iter)
        node.recursive = False  # its rounds would not be counted
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        node.body.insert(0, nodes.ExprStmt(_call("count_call", nodes.ContextReference())))
        return self.generic_visit(node)

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concat_texts", *node.nodes)

    def _visit_holding(self, node: nodes.Expr) -> nodes.Node:
        return _call("bounded", self.generic_visit(node))

    visit_List = visit_Dict = _visit_holding  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._visit_holding(node) if node.ctx == "load" else node  # not names to set


def _call(name: str, *given: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), [*given], [], None, None)


class Sandbox(ImmutableSandboxedEnvironment):
    """What a chat template is compiled by."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))
    concat = staticmethod(joined)  # of blocks, macros, set blocks
    concat_texts = staticmethod(_concat)
    bounded = staticmethod(bounded)

    def __init__(self) -> None:
        given = {"trim_blocks": True, "lstrip_blocks": True, "extensions": [loopcontrols]}
        super().__init__(**given, finalize=bounded)
        own = {**self.filters, "join": joined, "replace": _replace}
        self.filters = {name: _bounded_filter(own[name]) for name in _FILTERS.split()}
        self.globals |= {"range": _range}
        del self.globals["lipsum"]

    def _parse(self, *source: Any) -> Any:
        return _Counted().visit(super()._parse(*source))

    def count_rounds(self, context: Any, items: Iterable[Any]) -> Any:
        return context.parent[ROUNDS].take(items)

    def count_call(self, context: Any) -> None:
        next(context.parent[ROUNDS].take("1"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if sum(len(side) for side in (left, right) if isinstance(side, Sized)) > _LONGEST:
                raise _too_long()
            return bounded(left + right)
        most = 64 if operator == "**" else 1e6
        if not all(type(x) in (int, float) and abs(x) < most for x in (left, right)):
            raise UserError("the chat template multiplies what is no small number")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        if allowed is not None and attr not in allowed:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, *args: Any, **named: Any) -> Any:
        text, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(text, str) and name in ("join", "replace"):
            return joined(args[0], text) if name == "join" else _replace(text, *args)
        found = super().call(context, obj, *args, **named)
        return found if isinstance(found, Namespace) else bounded(found)
