"""What all documents have in common."""

from typing import Final

from pydantic import BaseModel, ConfigDict

PAGE_LIMIT: Final = 1000
"""The most entries of one page."""


class Document(BaseModel):
    """A frozen answer. A reader passes over what it does not know, so that a newer server may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Question(BaseModel):
    """What somebody asks. What nobody knows is refused: a misspelt field would be a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
