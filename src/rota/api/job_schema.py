"""A job's definition in OpenAPI's words. The domain decides; this tells people and tools what it will accept."""

from typing import Any, Final, get_args

from rota.domain.job import (
    CONCURRENCY_LIMIT,
    COST_LIMIT,
    DESCRIPTION_LIMIT,
    LIMIT_NAME,
    LIMITS_LIMIT,
    MAX_ATTEMPTS_LIMIT,
    MAX_LOSSES_LIMIT,
    NAME_LIMIT,
    PAUSE_AFTER_LIMIT,
    PRIORITIES,
    Overlap,
)

_INSTANT: Final = {"type": "string", "format": "date-time"}
_WINDOW: Final = {"start": {**_INSTANT, "description": "No slot before it."}, "end": _INSTANT}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": NAME_LIMIT}


def _count(high: int, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": high, **more}


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

LIMITS: Final[dict[str, Any]] = {
    "description": "Limits by their names, and what a run costs of each; a list of names costs 1 of each.",
    "oneOf": [
        {
            "type": "object",
            "maxProperties": LIMITS_LIMIT,
            "propertyNames": {"pattern": f"^{LIMIT_NAME.pattern}$"},
            "additionalProperties": _count(COST_LIMIT),
        },
        {
            "type": "array",
            "maxItems": LIMITS_LIMIT,
            "uniqueItems": True,
            "items": {"type": "string", "pattern": f"^{LIMIT_NAME.pattern}$"},
        },
    ],
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
        "max_attempts": _count(MAX_ATTEMPTS_LIMIT, description="Failures and timeouts before a run is dead."),
        "max_losses": _count(MAX_LOSSES_LIMIT, description="Lost workers before a run is dead."),
        "pause_after": _count(
            PAUSE_AFTER_LIMIT, type=["integer", "null"], description="Dead letters in a row that pause the job."
        ),
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
        "overlap": {"type": "string", "enum": list(get_args(Overlap))},
        "start_deadline": _seconds(0.001, 31 * 86400, type=["number", "null"]),
        "max_concurrency": _count(CONCURRENCY_LIMIT, type=["integer", "null"]),
        "concurrency_key": {"type": ["string", "null"], "maxLength": NAME_LIMIT, "examples": ["payload.customer"]},
        "key_concurrency": _count(CONCURRENCY_LIMIT, description="Runs at once with one value of the key."),
        "limits": LIMITS,
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "description": {"type": "string", "maxLength": DESCRIPTION_LIMIT},
    },
}

CHANGES: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A JSON merge patch of a job's definition: what is named changes; null gives a field its default.",
    "additionalProperties": False,
    "properties": {name: {} for name in DEFINITION["properties"]},
}
