"""How a model writes, as data. The defaults are the paper's (section 6.1)."""

from typing import Annotated

from pydantic import Field

from limelight.settings import Count, table


@table
class DecodeConfig:
    """The paper: beam 4 with length penalty 0.6, at most 50 tokens more than the input has."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 4
    length_penalty: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.6  # alpha
    extra_tokens: Count = 50  # the output may be longer than the input by so many
