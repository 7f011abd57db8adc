"""Does a chatbot use what was said before? It has to find the real next turn among ten.

python benchmarks/chat_topic.py chat --turns 1 3 5

Of every unseen conversation of `small-talk` six turns are asked for, each with nine turns of other
conversations beside it. A turn counts for how much the conversation makes it likelier than a
full stop does: log p(turn | conversation) - log p(turn | .). Guessing finds one in ten.
"""

import argparse
import json
from random import Random

from limelight import load
from limelight.data import registry
from limelight.data.input_files import raw_lines
from limelight.tasks.score import score

OTHERS, ASKED = 9, 6


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted.add_argument("run")
    wanted.add_argument("--turns", type=int, nargs="+", default=[1, 3, 5])
    told = wanted.parse_args()
    loaded = load(told.run)
    file = registry.find("small-talk", registry.NAMED["small-talk"].test[0])
    talks = [json.loads(line)["turns"] for line in raw_lines(file)]
    draw = Random(2017)
    asked = []  # a conversation up to a turn, and ten candidates, the first of which is right
    for talk in talks:
        strange = [turn for other in talks if other is not talk for turn in other[6:]]
        for place in draw.sample(range(6, len(talk)), min(ASKED, len(talk) - 6)):
            asked.append((talk[:place], [talk[place], *draw.sample(strange, OTHERS)]))
    turns = sorted({turn for _, candidates in asked for turn in candidates})
    alone = {
        t: s.total for t, s in zip(turns, score(loaded, [(".", t) for t in turns]), strict=True)
    }
    for count in told.turns:
        pairs = [("\n".join(said[-count:]), turn) for said, some in asked for turn in some]
        scored = zip(score(loaded, pairs), pairs, strict=True)
        gains = [given.total - alone[turn] for given, (_, turn) in scored]
        rows = [gains[i : i + OTHERS + 1] for i in range(0, len(gains), OTHERS + 1)]
        right = sum(row[0] > max(row[1:]) for row in rows)
        print(f"{told.run}: {count} turns read, {right} of {len(rows)} found")


if __name__ == "__main__":
    main()
