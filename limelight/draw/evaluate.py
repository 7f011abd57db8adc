"""Pictures drawn for captions that are held out, judged by a checker that knows no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.draw.checker import Verdict, judge, read_objects
from limelight.draw.examples import GeneratedPictures, Pictures, seeded
from limelight.draw.image_tokenizer import ImageTokenizer
from limelight.draw.sampling import sample_pictures


@dataclass(frozen=True)
class Scores:
    """Verdicts on a number of pictures."""

    verdicts: Sequence[Verdict]

    def means(self, form: str = "") -> dict[str, float]:
        """Shares of objects, relations and pictures that are right, of all or of one form."""
        some = [one for one in self.verdicts if form in ("", one.form)]
        if not some:
            return {}
        relations = sum(one.relations for one in some)
        return {
            "objects": sum(one.right for one in some) / sum(one.objects for one in some),
            "relations": sum(one.relations_right for one in some) / max(1, relations),
            "pictures": sum(one.exact for one in some) / len(some),
        }

    def by_form(self) -> dict[str, dict[str, float]]:
        forms = sorted({one.form for one in self.verdicts})
        counts = {form: sum(one.form == form for one in self.verdicts) for form in forms}
        return {form: {"count": counts[form], **self.means(form)} for form in forms}


@dataclass(frozen=True)
class Judged:
    """What is needed to draw for held-out captions, and to judge the result."""

    pictures: Pictures
    tokenizer: Tokenizer
    image_tokenizer: ImageTokenizer
    images: ImageConfig
    decode: DecodeConfig

    def draw(self, model: Any, captions: Tensor) -> Tensor:
        """A picture for each caption, B 3 S S; the seeds count up from that of the recipe."""
        seeds = [self.decode.seed + i for i in range(len(captions))]
        rows = captions.tolist()
        drawn = sample_pictures(model, rows, seeds, self.tokenizer, self.images, self.decode)
        return self.image_tokenizer.decode(drawn.ids)

    def samples(self, model: Any, split: str, count: int) -> tuple[list[str], Tensor]:
        """Captions, and pictures drawn for them."""
        rows = torch.arange(count).numpy()
        _, captions, _ = self.pictures.batch(split, 0, 1, rows, self.tokenizer)
        texts = [self.tokenizer.decode(row).strip() for row in captions.tolist()]
        return texts, self.draw(model, captions)


def score_pictures(judged: Judged, model: Any, count: int, split: str = "test") -> Scores:
    """Draw for this many captions of generated scenes, and judge."""
    source = judged.pictures
    if not isinstance(source, GeneratedPictures) or not hasattr(source.world, "colours"):
        return Scores([])
    generator = seeded(source.device, "judged", split)
    scenes = source.world.sampler.sample(split, count, generator)
    described = source.world.wording.describe(scenes, generator)
    drawn = judged.draw(model, source.tokens(described.words, judged.tokenizer))
    return Scores(judge(scenes, described.sized, read_objects(drawn)))
