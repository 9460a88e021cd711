"""A job's definition in OpenAPI's words. The domain decides; this tells people and tools what it will accept."""

from typing import Any, Final

from rota.domain.job import (
    DESCRIPTION_LIMIT,
    MAX_ATTEMPTS_LIMIT,
    NAME_LIMIT,
    PRIORITIES,
)

_INSTANT: Final = {"type": "string", "format": "date-time"}
_WINDOW: Final = {"start": {**_INSTANT, "description": "No slot before it."}, "end": _INSTANT}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": NAME_LIMIT}


def _seconds(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high, "description": "Seconds.", **more}


SCHEDULE: Final[dict[str, Any]] = {
    "oneOf": [
        {
            "type": "object",
            "required": ["kind", "expression"],
            "additionalProperties": False,
            "properties": {
                "kind": {"const": "cron"},
                "expression": {"type": "string", "examples": ["0 2 * * *"]},
                "tz": {"type": "string", "examples": ["Europe/Berlin"]},
                "dst": {"type": "string"},
                "seconds": {"type": "boolean"},
                **_WINDOW,
            },
        },
        {
            "type": "object",
            "required": ["kind", "every"],
            "additionalProperties": False,
            "properties": {
                "kind": {"const": "interval"},
                "every": {"type": ["number", "string"], "description": "Seconds, or a length such as 1h30m."},
                "anchor": _INSTANT,
                **_WINDOW,
            },
        },
        {
            "type": "object",
            "required": ["kind", "at"],
            "additionalProperties": False,
            "properties": {"kind": {"const": "once"}, "at": _INSTANT},
        },
    ]
}

MISFIRE: Final[dict[str, Any]] = {
    "oneOf": [
        {"type": "string", "enum": ["skip", "fire_once"]},
        {
            "type": "object",
            "required": ["policy"],
            "properties": {
                "policy": {"type": "string", "enum": ["skip", "fire_once", "catch_up"]},
                "limit": {"type": "integer", "minimum": 1},
                "max_age": {"type": "number", "description": "Seconds."},
            },
        },
    ]
}

DEFINITION: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["handler"],
    "additionalProperties": False,
    "properties": {
        "job_id": {**_NAME, "description": "The path says it; if it stands here too, both must agree."},
        "tenant_id": {**_NAME, "description": "The token says it; if it stands here too, both must agree."},
        "handler": {"type": "string", "minLength": 1, "description": "A handler's name, shell, or https://..."},
        "schedule": {"oneOf": [SCHEDULE, {"type": "null"}]},
        "payload": {"type": "object"},
        "pool": _NAME,
        "priority": {"type": "integer", "minimum": PRIORITIES.start, "maximum": PRIORITIES.stop - 1},
        "max_attempts": {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS_LIMIT},
        "retry": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "initial": {"type": "number", "minimum": 0, "description": "Seconds."},
                "factor": {"type": "number", "minimum": 1, "maximum": 100},
                "cap": {"type": "number", "minimum": 0, "description": "Seconds."},
                "jitter": {"type": "number", "minimum": 0, "maximum": 1},
            },
        },
        "misfire": MISFIRE,
        "misfire_grace": _seconds(0, 31 * 86400),
        "timeout": _seconds(0.001, 7 * 86400),
        "lease_duration": _seconds(1, 3600),
        "jitter": _seconds(0, 86400),
        "overlap": {"type": "string", "enum": ["allow", "skip"]},
        "start_deadline": _seconds(0.001, 31 * 86400, type=["number", "null"]),
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "description": {"type": "string", "maxLength": DESCRIPTION_LIMIT},
    },
}
