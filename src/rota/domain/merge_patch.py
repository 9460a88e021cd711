"""Changes to a definition that name only what is to change: a JSON merge patch (RFC 7396)."""

from collections.abc import Mapping
from typing import Any, Final

TAGS: Final = {"schedule": "kind", "misfire": "policy"}
"""Members that are of one kind or another, and what tells it: one of another kind replaces the whole."""


def patched(definition: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's definition with the changes: null removes a member, an object changes the members that it names.

    A schedule or misfire policy of another kind than the one that stands replaces it.
    """
    kept = {
        name: value for name, value in definition.items() if not _is_of_another_kind(name, value, changes.get(name))
    }
    return _merged(kept, changes)


def _merged(target: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(target)
    for name, change in changes.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, Mapping):
            stands = result.get(name)
            result[name] = _merged(stands if isinstance(stands, Mapping) else {}, change)
        else:
            result[name] = change
    return result


def _is_of_another_kind(name: str, stands: object, change: object) -> bool:
    tag = TAGS.get(name)
    if tag is None or not isinstance(stands, Mapping) or not isinstance(change, Mapping):
        return False
    return tag in change and change[tag] != stands.get(tag)
