"""Runs made and finished in a transaction of the caller's own, over the caller's own connection to the same database.

`trigger_in` makes a run that appears only if the caller's transaction commits, and `trigger_many_in` many of them.
`complete_in` finishes the run of a handler together with the handler's own writes, which makes their effect exactly
once. All only call a function of the database, `rota.trigger`, `rota.trigger_many` and `rota.complete`, which other
languages can call as well. They know connections of asyncpg, psycopg 3, SQLAlchemy and Django by the modules that these
come from, and import none of them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from rota.domain.attempt import check_result
from rota.domain.idempotency import check_key
from rota.domain.ids import to_milliseconds
from rota.domain.job import DEFAULT_TENANT, check_payload
from rota.errors import InvalidInput, KeyReused, LeaseLost, NotFound, RotaError, SlotTaken

_TRIGGER: Final = "SELECT rota.trigger(?::text, ?::text::jsonb, ?::text, ?::timestamptz, ?::text)"
_TRIGGER_MANY: Final = (
    "SELECT array_to_string(ARRAY(SELECT m FROM rota.trigger_many(?::text,"
    " ARRAY(SELECT nullif(p.value, 'null') FROM jsonb_array_elements(?::text::jsonb)"
    " WITH ORDINALITY p (value, item) ORDER BY p.item), ?::text,"
    " (SELECT array_agg(k.value ORDER BY k.item) FROM jsonb_array_elements_text(?::text::jsonb)"
    " WITH ORDINALITY k (value, item))) m), ' ')"
)
_COMPLETE: Final = "SELECT rota.complete(?::text::uuid, ?::text::uuid, ?::text::jsonb)"


MANY: Final = 10_000
"""The most runs of one call of `rota.trigger_many`; more are made by several, in the one transaction."""


class Leased(Protocol):
    """A run in its handler's hands: `rota.Run` is one."""

    @property
    def run_id(self) -> UUID: ...
    @property
    def lease_token(self) -> UUID: ...


async def trigger_in(
    connection: Any, job_id: str, *, payload: Mapping[str, Any] | None = None, tenant_id: str = DEFAULT_TENANT,
    scheduled_for: datetime | None = None, idempotency_key: str | None = None,
) -> UUID:  # fmt: skip
    """Make one run of a job in the connection's transaction, now or at a slot; returns its id.

    `connection`: asyncpg's, psycopg's AsyncConnection, SQLAlchemy's AsyncConnection or AsyncSession, with a transaction
    under way. The job's definition stays locked against edits until that ends. A worker that is idle is told of the run
    at the commit; another finds it at its next look.

    Raises NotFound, InvalidInput, SlotTaken, KeyReused; the transaction is then to be rolled back.
    """
    question = _trigger(job_id, payload, tenant_id, scheduled_for, idempotency_key)
    with _in_words_of_rota(job_id):
        return UUID(str(await _asynchronous(connection)(connection, question)))


async def trigger_many_in(
    connection: Any, job_id: str, payloads: Sequence[Mapping[str, Any] | None], *, tenant_id: str = DEFAULT_TENANT,
    idempotency_keys: Sequence[str | None] | None = None,
) -> list[UUID]:  # fmt: skip
    """Make a run of a job for each payload in the connection's transaction, all now; returns their ids, in order.

    A payload of None is the job's own. All runs are made, or none: whatever is refused, the transaction is then to be
    rolled back. Of a key that stands for the same request the id of its run is returned again. See `trigger_in`.

    Raises NotFound, InvalidInput which names the item, KeyReused, SlotTaken.
    """
    made: list[UUID] = []
    with _in_words_of_rota(job_id):
        for question in _trigger_many(job_id, payloads, tenant_id, idempotency_keys):
            made += _ids(await _asynchronous(connection)(connection, question))
    return made


async def complete_in(connection: Any, run: Leased, result: Any = None) -> None:
    """Finish a handler's run as succeeded in the connection's transaction, with a result if there is one (JSON).

    Call it last, and commit: until then the run's lease stays as it is, without renewal. What the handler returns
    afterwards changes nothing. Raises LeaseLost when the run is another attempt's, or was completed before: roll back,
    so that nothing of this transaction is kept. Raises InvalidInput.
    """
    question = _complete(run, result)
    with _in_words_of_rota(run.run_id):
        await _asynchronous(connection)(connection, question)


def trigger_in_sync(
    connection: Any, job_id: str, *, payload: Mapping[str, Any] | None = None, tenant_id: str = DEFAULT_TENANT,
    scheduled_for: datetime | None = None, idempotency_key: str | None = None,
) -> UUID:  # fmt: skip
    """Do as `trigger_in` over psycopg's Connection, SQLAlchemy's Connection or Session, or Django's connection."""
    question = _trigger(job_id, payload, tenant_id, scheduled_for, idempotency_key)
    with _in_words_of_rota(job_id):
        return UUID(str(_synchronous(connection)(connection, question)))


def trigger_many_in_sync(
    connection: Any, job_id: str, payloads: Sequence[Mapping[str, Any] | None], *, tenant_id: str = DEFAULT_TENANT,
    idempotency_keys: Sequence[str | None] | None = None,
) -> list[UUID]:  # fmt: skip
    """Do as `trigger_many_in` over psycopg's Connection, SQLAlchemy's Connection or Session, or Django's connection."""
    made: list[UUID] = []
    with _in_words_of_rota(job_id):
        for question in _trigger_many(job_id, payloads, tenant_id, idempotency_keys):
            made += _ids(_synchronous(connection)(connection, question))
    return made


def complete_in_sync(connection: Any, run: Leased, result: Any = None) -> None:
    """Do as `complete_in` over psycopg's Connection, SQLAlchemy's Connection or Session, or Django's connection."""
    question = _complete(run, result)
    with _in_words_of_rota(run.run_id):
        _synchronous(connection)(connection, question)


# what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    """A call of one function. Its texts are cast in SQL, so that no adapter's own codec has a say."""

    template: str
    values: tuple[str | datetime | None, ...]

    @property
    def numbered(self) -> str:
        """The statement with $1, $2 and so on."""
        head, *parts = self.template.split("?")
        return head + "".join(f"${number}{part}" for number, part in enumerate(parts, start=1))

    @property
    def formatted(self) -> str:
        """The statement with %s for each value."""
        return self.template.replace("?", "%s")


_Ask: TypeAlias = Callable[[Any, _Question], Any]
"""Puts a question over one library's connection and returns the answer, or an awaitable of it."""


def _trigger(
    job_id: str,
    payload: Mapping[str, Any] | None,
    tenant_id: str,
    scheduled_for: datetime | None,
    idempotency_key: str | None,
) -> _Question:
    if scheduled_for is not None:
        to_milliseconds(scheduled_for)
    content = None if payload is None else check_payload(payload)
    return _Question(_TRIGGER, (job_id, content, tenant_id, scheduled_for, idempotency_key))


def _trigger_many(
    job_id: str,
    payloads: Sequence[Mapping[str, Any] | None],
    tenant_id: str,
    idempotency_keys: Sequence[str | None] | None,
) -> list[_Question]:
    """Return the calls that make all of them; what could not be kept is refused before the first."""
    if idempotency_keys is not None and len(idempotency_keys) != len(payloads):
        raise InvalidInput(
            "idempotency_keys", f"has {len(idempotency_keys)} keys for {len(payloads)} payloads",
            hint="give one for each, or None in its place",
        )  # fmt: skip
    contents = [_content(payload, number) for number, payload in enumerate(payloads)]
    for number, key in enumerate(idempotency_keys or ()):
        if key is not None:
            check_key(key, field=f"idempotency_keys[{number}]")
    questions = []
    for start in range(0, len(contents), MANY):
        part = slice(start, start + MANY)
        keys = None if idempotency_keys is None else json.dumps(list(idempotency_keys[part]))
        questions.append(_Question(_TRIGGER_MANY, (job_id, f"[{','.join(contents[part])}]", tenant_id, keys)))
    return questions


def _content(payload: Mapping[str, Any] | None, number: int) -> str:
    if payload is None:
        return "null"
    try:
        return check_payload(payload)
    except InvalidInput as error:
        field = error.field.replace("payload", f"payloads[{number}]", 1)
        raise type(error)(field, error.reason, hint=error.hint) from None


def _ids(text: str) -> list[UUID]:
    return [UUID(part) for part in text.split()]


def _complete(run: Leased, result: Any) -> _Question:
    return _Question(_COMPLETE, (str(run.run_id), str(run.lease_token), check_result(result)))


# whom to ask ------------------------------------------------------------------------------------------------------


async def _ask_asyncpg(connection: Any, question: _Question) -> Any:
    _check_transaction(connection.is_in_transaction())
    return await connection.fetchval(question.numbered, *question.values)


async def _ask_psycopg_async(connection: Any, question: _Question) -> Any:
    _check_transaction(not connection.autocommit or connection.info.transaction_status != _PSYCOPG_IDLE)
    async with connection.cursor(row_factory=_plain_rows) as cursor:
        await cursor.execute(question.formatted, question.values)
        return (await cursor.fetchone())[0]


def _ask_psycopg(connection: Any, question: _Question) -> Any:
    _check_transaction(not connection.autocommit or connection.info.transaction_status != _PSYCOPG_IDLE)
    with connection.cursor(row_factory=_plain_rows) as cursor:
        cursor.execute(question.formatted, question.values)
        return cursor.fetchone()[0]


async def _ask_sqlalchemy_async(connection: Any, question: _Question) -> Any:
    below = await connection.connection() if hasattr(connection, "flush") else connection
    _check_transaction(not below.sync_connection.connection.dbapi_connection.autocommit)
    return (await below.exec_driver_sql(_driver_text(below, question), question.values)).scalar_one()


def _ask_sqlalchemy(connection: Any, question: _Question) -> Any:
    below = connection.connection() if hasattr(connection, "flush") else connection
    _check_transaction(not below.connection.dbapi_connection.autocommit)
    return below.exec_driver_sql(_driver_text(below, question), question.values).scalar_one()


def _ask_django(connection: Any, question: _Question) -> Any:
    _check_transaction(connection.in_atomic_block or not connection.get_autocommit())
    with connection.cursor() as cursor:
        cursor.execute(question.formatted, question.values)
        return cursor.fetchone()[0]


_ASYNCHRONOUS: Final[Mapping[str, _Ask]] = {
    "asyncpg": _ask_asyncpg,
    "psycopg.AsyncConnection": _ask_psycopg_async,
    "sqlalchemy.ext.asyncio": _ask_sqlalchemy_async,
}
_SYNCHRONOUS: Final[Mapping[str, _Ask]] = {
    "psycopg.Connection": _ask_psycopg,
    "sqlalchemy.engine": _ask_sqlalchemy,
    "sqlalchemy.orm": _ask_sqlalchemy,
    "django": _ask_django,
}
_PSYCOPG_IDLE: Final = 0
"""psycopg.pq.TransactionStatus.IDLE."""


def _asynchronous(connection: Any) -> _Ask:
    return _chosen(connection, _ASYNCHRONOUS, others=_SYNCHRONOUS, hint="it is synchronous: use the ..._sync functions")


def _synchronous(connection: Any) -> _Ask:
    return _chosen(
        connection, _SYNCHRONOUS, others=_ASYNCHRONOUS, hint="it is asynchronous: leave out _sync, and await"
    )


def _chosen(connection: Any, table: Mapping[str, _Ask], *, others: Mapping[str, _Ask], hint: str) -> _Ask:
    ask = _adapter(connection, table)
    # A pool and an engine come from the same modules, and have none of what makes a connection.
    if ask is not None and any(hasattr(connection, part) for part in _PARTS):
        return ask
    if ask is not None or _adapter(connection, others) is None:
        hint = "pass a connection or session of asyncpg, psycopg 3, SQLAlchemy or Django"
    raise InvalidInput("connection", f"{type(connection).__qualname__} cannot be used here", hint=hint)


_PARTS: Final = ("is_in_transaction", "cursor", "exec_driver_sql", "flush")


def _adapter(connection: Any, table: Mapping[str, _Ask]) -> _Ask | None:
    """Return the table's entry for the connection's class, or for one that it descends from."""
    for kind in type(connection).__mro__:
        for name, ask in table.items():
            if f"{kind.__module__}.{kind.__qualname__}.".startswith(f"{name}."):
                return ask
    return None


def _driver_text(below: Any, question: _Question) -> str:
    return question.numbered if below.dialect.paramstyle == "numeric_dollar" else question.formatted


def _plain_rows(_: Any) -> Callable[[Any], tuple[Any, ...]]:
    return tuple


def _check_transaction(is_under_way: bool) -> None:
    if not is_under_way:
        raise InvalidInput(
            "connection", "has no transaction under way", hint="begin one: what is asked for is part of it"
        )  # fmt: skip


# what went wrong --------------------------------------------------------------------------------------------------


@contextmanager
def _in_words_of_rota(subject: object) -> Iterator[None]:
    """Raise what the functions refuse as an error of Rota, whatever the driver makes of it."""
    try:
        yield
    except RotaError:
        raise
    except Exception as error:
        if (meant := _meant(error, subject)) is not None:
            raise meant from error
        raise


def _meant(error: BaseException, subject: object) -> RotaError | None:
    origin = _origin(error)
    # The first line is what the function said; drivers add details and context below it.
    message = str(origin).split("\n", 1)[0]
    hint = getattr(origin, "hint", None) or getattr(getattr(origin, "diag", None), "message_hint", None)
    match getattr(origin, "sqlstate", None):
        case "RT404":
            return NotFound(message, hint=hint)
        case "RT409":
            return LeaseLost(subject)
        case "RT410":
            return SlotTaken(message, hint=hint)
        case "RT411":
            return KeyReused(message, hint=hint)
        case "RT422":
            field, _, reason = message.partition(": ")
            return InvalidInput(field, reason, hint=hint)
        case _:
            return None


def _origin(error: BaseException) -> BaseException:
    """Return the driver's own error, which other libraries wrap in theirs."""
    below = getattr(error, "orig", None) or error.__cause__
    return error if below is None else _origin(below)
