"""What all documents have in common."""

from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, model_validator

T = TypeVar("T")

PAGE_LIMIT: Final = 1000
"""The most entries of one page."""
FEW: Final = 10
"""So many unknown fields of a question are named one by one."""


Many = Annotated[tuple[T, ...], FailFast()]
"""Parts of a question, refused for the first of them that is wrong: a list of all faults takes seconds of millions."""


class Document(BaseModel):
    """A frozen answer. A reader passes over what it does not know, so that a newer server may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Question(BaseModel):
    """What somebody asks. What nobody knows is refused: a misspelt field would be a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many(cls, value: Any) -> Any:
        """Refuse many unknown fields as one fault; each would be a fault of its own, as a few are."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + FEW:
            unknown = next(str(name)[:200] for name in value if name not in cls.model_fields)
            raise ValueError(f"{unknown!r} is not permitted; known are {', '.join(cls.model_fields)}")
        return value
