"""Texts that tokenizers stumble over: spaces, accents, scripts, controls, and spelled tokens."""

# ruff: noqa: RUF001

import random

_S = "§"
_FIXED = [
    *" §  §\t a§a\u00a0b§a  b§ a §\u3000x\u3000§ﬁne ﬂow§①②③§Ａｂｃ§e\u0301§E\u0301\u0301".split(_S),
    *"Å\u0323§\u1100\u1161\u11a8§한국어§日本語テキスト§か\u3099§ｶﾞ§👩‍👩‍👧‍👦§🇩🇪§❤️§\u200bzero§a\u200cb".split(
        _S
    ),
    *"\ufeffbom§\x00nul§\x07bell§\u2028line§…§½ ¼§ﷺ§™©®§</s>§<unk>§<s> x§▁§▁▁a§a▁b§<0x41>".split(
        _S
    ),
    *"x</s>y§\u0301§\u0308a§नमस्ते§ภาษาไทย§مرحبا§שלום§’§``quote''§http://a.b/c?d=e&f§1,234.56".split(
        _S
    ),
    *"$5€6£7§\u0130\u0131§ß ẞ ﬀ§\ue000§\uffff§\U0010ffff§<|endoftext|>§<|im_start|>user".split(_S),
    *("", "\U0001f600" * 5, "a" * 300, "ab " * 100, "a@@ b", "@@", "a</w>", "1234567890"),
]
_WORDS = (
    "the of and to you Olá coração São não você está é à ü ñ Straße Été l'été don't GPT-2 C++ x=y"
)
_RANGES = [
    *((0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF)),
    *((0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFEF), (0x1D400, 0x1D7FF)),
    *((0x1F300, 0x1FAFF), (0, 9), (11, 31)),
]


def nasty_texts(count=1000, seed=0):
    draw, words, texts = random.Random(seed), _WORDS.split(), list(_FIXED)
    while len(texts) < count:
        parts = []
        for _ in range(draw.randrange(1, 8)):
            low, high = draw.choice(_RANGES)
            strange = "".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 6)))
            accents = "".join(
                chr(draw.randrange(0x300, 0x36F)) for _ in range(draw.randrange(1, 3))
            )
            spaces = draw.choice([" ", "  ", "\t", "\u00a0", "", "-", ", "])
            kinds = [draw.choice(words), draw.choice(words), spaces, draw.choice(words) + accents]
            parts.append(draw.choice([*kinds, strange, strange, strange]))
        texts.append(draw.choice(["", " ", " "]).join(parts))
    return texts[:count]
