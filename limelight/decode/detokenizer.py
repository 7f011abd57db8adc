"""Tokens become text as they come: never half a character, never part of a stop string."""

import codecs
from collections.abc import Sequence

from limelight.data.tokenizer import Tokenizer
from limelight.decode.constraints import as_phrases


class IncrementalDetokenizer:
    """Turns tokens into text that is certain; joined, it is what `decode` returns."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), needs_leading_space: bool = False
    ) -> None:
        self.tokenizer = tokenizer
        self.stops = as_phrases(stops, "stops")
        self.stopped = False  # a stop string has come; it and what follows are not shown
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaced = needs_leading_space  # the space that comes first is there already
        self._held = ""  # text that may turn out to be the beginning of a stop string

    def feed(self, token: int, *more: int) -> str:
        """The text that has become certain with this token, or several."""
        raw = self.tokenizer.token_bytes(token)
        raw, self._spaced = (raw.removeprefix(b" ") if self._spaced else raw), False
        raw += b"".join(map(self.tokenizer.token_bytes, more))
        return self._show(self._bytes.decode(raw))

    def finish(self) -> str:
        """What was held back, when nothing more comes."""
        shown = self._show(self._bytes.decode(b"", final=True))
        rest, self._held = ("" if self.stopped else self._held), ""
        return shown + rest

    def _show(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._held[: min(found)]
        starts = (stop[:n] for stop in self.stops for n in range(1, len(stop)))
        begun = (len(start) for start in starts if self._held.endswith(start))
        certain = len(self._held) - max(begun, default=0)
        shown, self._held = self._held[:certain], self._held[certain:]
        return shown
