"""Made-up sentences, and systems that get a known share of their words wrong."""

import random

TEXT = "Haus Baum geht über die alte Straße und sieht den großen Hund nicht mehr heute"
WORDS = TEXT.split()


def sentences(seed, count=60):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 14))) + "." for _ in range(count)]


def spoiled(lines, share, seed):
    """The same with some words replaced."""
    draw = random.Random(f"{seed} {share}")
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]
