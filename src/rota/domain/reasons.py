"""The reasons why a run or a job does not run, each with a sentence for people, told from facts.

A function that gives None says: this is not what holds it. `services.why` asks them one after the other.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from rota.domain.duration import format_duration
from rota.domain.instants import format_instant
from rota.domain.run import Gate
from rota.domain.why import Cause, Held, Hold, LimitLook, PoolWorkers, QueueLook, Reason, Waiting

NAMED: Final = 3
"""How many of the runs that hold a limit its sentence names; `held_by` has more of them."""

_ASIDE_WORDS: Final = {
    "slot": "slot",
    "runs": "waiting runs",
    "leases": "runs that lost their worker",
    "resume": "resume",
}


def aside_words(reasons: Mapping[str, str]) -> str | None:
    """Return what of a job is set aside, and why, in a sentence without its end; None: nothing."""
    told = [f"{_ASIDE_WORDS.get(what, what)}: {_bare(reason)}" for what, reason in reasons.items()]
    return "; ".join(told) or None


def _tried_again(reason: str) -> str:
    return f"it is set aside: {_bare(reason)}. It is tried again, at least once a minute."


def _bare(reason: str) -> str:
    return reason.rstrip(".")


# runs that do not wait ------------------------------------------------------------------------------------------------


def finished(run_id: UUID, *, state: str, at: datetime | None, reason: str | None) -> Reason:
    """Return the reason of a run that is over."""
    why = f": {reason}" if reason else ""
    when = "" if at is None else f" since {format_instant(at)}"
    return Reason(gate=Hold.FINISHED, cause=state, run_id=run_id, at=at, text=f"It is {state}{when}{why}.")


def running(
    run_id: UUID, *, worker_id: str, since: datetime, until: datetime, cancel_requested_at: datetime | None,
    set_apart: str | None = None, aside: str | None = None,
) -> Reason:  # fmt: skip
    """Return the reason of a run that runs. `aside`: why its lost attempt cannot be ended for now."""
    told = "" if cancel_requested_at is None else f"; since {format_instant(cancel_requested_at)} it is asked to stop"
    text = f"It runs on worker {worker_id} since {format_instant(since)}, leased until {format_instant(until)}{told}."
    if set_apart is not None:
        text = (
            f"It ran on worker {worker_id} since {format_instant(since)}, which was lost."
            f" It is {set_apart.rstrip('.')}. That is tried again at {format_instant(until)}."
        )
    elif aside is not None:
        text = f"Worker {worker_id} was lost with it at {format_instant(until)}, and {_tried_again(aside)}"
    cause = Cause.SET_ASIDE if set_apart is not None or aside is not None else None
    return Reason(gate=Hold.RUNNING, cause=cause, run_id=run_id, worker_id=worker_id, since=since, at=until, text=text)


# gates that a run stands behind by itself -----------------------------------------------------------------------------


def past_deadline(run: Waiting, *, now: datetime, aside: str | None = None) -> Reason | None:
    """Return the reason of a run that no claim takes any more, since it would start too late."""
    if run.deadline_at is None or now < run.deadline_at:
        return None
    was = f"It was to start before {format_instant(run.deadline_at)}"
    if aside is not None:
        text = f"{was}, so it is to be skipped, and {_tried_again(aside)}"
        return Reason(
            gate=Hold.DEADLINE, cause=Cause.SET_ASIDE, run_id=run.run_id, at=run.deadline_at, text=text
        )  # fmt: skip
    text = f"{was}, so it is skipped at a scheduler's next tick."
    return Reason(gate=Hold.DEADLINE, run_id=run.run_id, at=run.deadline_at, text=text)


def before_its_time(
    run: Waiting, *, schedulers: int, now: datetime, aside: str | None = None
) -> Reason | None:  # fmt: skip
    """Return the reason of a run whose time has not come, or whose time no scheduler has seen come yet."""
    if run.gate != Gate.TIME:
        return None
    at = format_instant(run.available_at)
    if run.available_at <= now and aside is not None:
        return Reason(
            gate=Hold.TIME, cause=Cause.SET_ASIDE, run_id=run.run_id, since=run.available_at,
            text=f"Its time came at {at}, and {_tried_again(aside)}",
        )  # fmt: skip
    if run.available_at <= now:
        next_step = "a scheduler lets it through at its next tick" if schedulers else "no scheduler is live to see it"
        return Reason(
            gate=Hold.TIME, cause=Cause.SCHEDULER, run_id=run.run_id, since=run.available_at,
            text=f"Its time came at {at}, and {next_step}.",
        )  # fmt: skip
    cause, because = _time_cause(run, now=now)
    return Reason(
        gate=Hold.TIME, cause=cause, run_id=run.run_id, at=run.available_at, text=f"It waits until {at}: {because}."
    )


def _time_cause(run: Waiting, *, now: datetime) -> tuple[Cause, str]:
    if run.attempt - run.losses >= run.max_attempts or run.losses >= run.max_losses or run.last_outcome == "gave_up":
        return Cause.REPLAY, "dead letters that are sent back together start one after another"
    if run.last_outcome == "snoozed":
        return Cause.SNOOZE, "its handler asked for it with RetryLater"
    if run.last_outcome is not None:
        return Cause.BACKOFF, f"it backs off after attempt {run.attempt}, which ended as {run.last_outcome}"
    if run.available_at == run.scheduled_for or run.jitter <= timedelta(0):
        return Cause.SLOT, "that is its slot"
    return Cause.JITTER, f"its slot is {format_instant(run.scheduled_for)}, and jitter moves its start"


def on_upstream(run: Waiting) -> Reason | None:
    """Return the reason of a run that waits for the runs it depends on."""
    if run.gate != Gate.UPSTREAM:
        return None
    return Reason(gate=Hold.UPSTREAM, run_id=run.run_id, text="It waits for the runs that it depends on.")


# limits ---------------------------------------------------------------------------------------------------------------


def in_turn(run: Waiting, looks: Sequence[LimitLook]) -> list[LimitLook]:
    """Return the run's limits: that on which it is parked, then as a claim would park it, by their keys."""
    parked = run.limit_key if run.gate == Gate.LIMIT else None
    return sorted(looks, key=lambda look: (look.limit_key != parked, look.limit_key))


def on_limit(run: Waiting, look: LimitLook, held: Held, *, now: datetime) -> Reason | None:
    """Return the reason of a run for which a limit has no room."""
    cause = look.full()
    if cause is None:
        return None
    name = _limit_name(look)
    if cause is Cause.TOKENS:
        at = look.refilled_at(now=now)
        text = f"The bucket of {name} is empty until {format_instant(at)}{_parked(look.ahead)}."
        return _limited(run, look, cause, text, at=at)
    if cause is Cause.CLOSED:
        return _limited(run, look, cause, f"{name[0].upper()}{name[1:]} is closed: it has 0 permits.")
    wants = "" if look.cost == 1 else f", of which it takes {look.cost},"
    room = f"{look.in_use} of {look.permits} permits{wants} are in use"
    room += f", and {look.saved} are kept for a run that takes as many" if look.saved else ""
    return _limited(
        run, look, cause, f"{name[0].upper()}{name[1:]} is full: {room}{_by(held)}{_parked(look.ahead)}.", held
    )


def behind_others(run: Waiting, looks: Sequence[LimitLook]) -> Reason | None:
    """Return the reason of a run for which there is room, and which has to let others have it.

    It is parked itself, or would be: runs of its tenant that rank better are parked on a limit of its.
    """
    if run.gate != Gate.LIMIT:
        for look in looks:
            if look.ahead:
                wait = "that ranks better waits" if look.ahead == 1 else "that rank better wait"
                text = f"{_counted(look.ahead, 'run')} of its tenant {wait} for {_limit_name(look)} as well."
                return _limited(run, look, Cause.BEHIND, text)
        return None
    for look in looks:
        if look.limit_key == run.limit_key:
            text = f"{_limit_name(look)} has room again: it is let back in, best rank first".replace(
                "limit", "Limit", 1
            )
            return _limited(run, look, Cause.RETURNING, f"{text}{_parked(look.ahead)}.")
    text = "The limit that it waited for is no limit of its any more: it is let back in."
    return Reason(gate=Hold.LIMIT, cause=Cause.RETURNING, run_id=run.run_id, text=text)


def _limited(
    run: Waiting, look: LimitLook, cause: Cause, text: str, held: Held | None = None, *, at: datetime | None = None
) -> Reason:
    by = held or Held()
    return Reason(
        gate=Hold.LIMIT, cause=cause, run_id=run.run_id, text=text, at=at, limit=look.name, permits=look.permits,
        in_use=None if look.permits is None else look.in_use, held_by=by.own, held_by_others=by.others,
        ahead=look.ahead,
    )  # fmt: skip


def _limit_name(look: LimitLook) -> str:
    match look.kind:
        case "job":
            return "the limit of its job's own runs"
        case "key":
            return "the limit of runs with its key"
    return f"limit {look.name}"


def _by(held: Held) -> str:
    """Say who holds a limit; of others' runs only how many."""
    names = [f"run {holder.run_id}" for holder in held.own[:NAMED]]
    if (more := held.own_count - len(names)) > 0:
        names.append(f"{more} more" if names else _counted(more, "run"))
    if held.others:
        names.append(f"{held.others} of other tenants")
    return f", by {' and '.join(names)}" if names else ""


def _parked(ahead: int) -> str:
    return f"; {_counted(ahead, 'run')} of better rank {'waits' if ahead == 1 else 'wait'} for it too" if ahead else ""


# workers and the queue ------------------------------------------------------------------------------------------------


def without_worker(run: Waiting, workers: Sequence[PoolWorkers]) -> Reason | None:
    """Return the reason of a run that no live worker of its pool can take."""
    here = [kind for kind in workers if kind.pool == run.pool]
    knowing = [kind for kind in here if kind.knows and not kind.is_draining]
    where = f"pool {run.pool}"
    if knowing and run.gate != Gate.HANDLER:
        return None
    elsewhere = tuple(sorted({k.pool for k in workers if k.knows and not k.is_draining and k.pool != run.pool}))
    if knowing:
        cause, text = Cause.RETURNING, f"A worker of {where} knows handler {run.handler} by now: it is let back in"
    elif any(kind.knows for kind in here):
        cause, text = Cause.DRAINING, f"Whoever knows handler {run.handler} in {where} is draining and claims no more"
    elif here:
        cause, text = Cause.UNKNOWN, f"No live worker of {where} knows handler {run.handler}"
    else:
        cause, text = Cause.NO_WORKER, f"No worker of {where} is live"
    if elsewhere and not knowing:
        text += f"; workers of {'pool' if len(elsewhere) == 1 else 'the pools'} {', '.join(elsewhere)} know it"
    return Reason(
        gate=Hold.HANDLER, cause=cause, run_id=run.run_id, pool=run.pool, handler=run.handler, pools=elsewhere,
        text=f"{text}.",
    )  # fmt: skip


def queued(run: Waiting, queue: QueueLook, workers: Sequence[PoolWorkers]) -> Reason:
    """Return the reason of a run that can start and waits for its turn."""
    more = queue.ahead >= queue.most
    seconds = _seconds_until(queue, [kind for kind in workers if kind.pool == run.pool])
    turns = ""
    if queue.tenants:
        others = _counted(queue.tenants, "other tenant")
        take = "takes" if queue.tenants == 1 else "take"
        turns = f", in turn with {others}" if queue.ahead == 0 else f", and {others} {take} turns with its own"
    if queue.ahead == 0:
        text = f"It is the next of pool {run.pool}{turns}: a worker takes it as soon as one is free."
    else:
        count = f"More than {queue.most:,} runs" if more else _counted(queue.ahead, "run")
        verb = "goes" if queue.ahead == 1 and not more else "go"
        text = f"{count} of its tenant {verb} before it in pool {run.pool}{turns}{_about(seconds)}."
    return Reason(
        gate=Hold.OPEN, cause=Cause.QUEUE if queue.ahead else Cause.NEXT, run_id=run.run_id, ahead=queue.ahead,
        ahead_is_more=more, tenants=queue.tenants, seconds=seconds, pool=run.pool, handler=run.handler, text=text,
    )  # fmt: skip


def _seconds_until(queue: QueueLook, workers: Sequence[PoolWorkers]) -> float | None:
    """Return how long the runs ahead take, at the rate at which the pool claimed of late; None: nobody knows it."""
    if queue.ahead == 0 and queue.tenants == 0:
        return None
    share = queue.weight / (queue.weight + queue.other_weight)
    takers = [kind for kind in workers if kind.knows and not kind.is_draining]
    rate = sum((kind.rate or 0.0) * (1.0 if kind.is_own else share) for kind in takers)
    return round((queue.ahead + 1) / rate, 1) if rate > 0 else None


def _about(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f": about {format_duration(timedelta(seconds=math.ceil(min(seconds, 1e9))))} at the present rate"


# jobs -----------------------------------------------------------------------------------------------------------------


def paused(
    *, since: datetime, reason: str | None, resume_at: datetime | None, aside: str | None = None
) -> Reason:  # fmt: skip
    """Return the reason of a job that makes no runs until it is resumed. `aside`: why it cannot be for now."""
    end = "" if resume_at is None else f", until {format_instant(resume_at)}"
    why = f": {reason}" if reason else ""
    text = f"It is paused since {format_instant(since)}{end}{why}."
    if aside is not None:
        text += f" It was to be resumed, and {_tried_again(aside)}"
    cause = None if aside is None else Cause.SET_ASIDE
    return Reason(gate=Hold.PAUSED, cause=cause, since=since, at=resume_at, text=text)


def frozen(*, since: datetime, reason: str, everywhere: bool, run_id: UUID | None = None) -> Reason:
    """Return the reason of what a freeze holds."""
    what = "Everything" if everywhere else "The tenant"
    why = f": {reason}" if reason else ""
    return Reason(
        gate=Hold.FROZEN, run_id=run_id, since=since, text=f"{what} is frozen since {format_instant(since)}{why}."
    )  # fmt: skip


def quarantined(reason: str) -> Reason:
    """Return the reason of a job whose definition cannot be carried out."""
    return Reason(gate=Hold.QUARANTINED, text=f"It is quarantined: {reason}.")


def on_demand() -> Reason:
    """Return the reason of a job without a schedule."""
    return Reason(gate=Hold.ON_DEMAND, text="It has no schedule, so it runs when somebody asks for it.")


def no_further_slot() -> Reason:
    """Return the reason of a job whose schedule is over."""
    return Reason(gate=Hold.FINISHED, text="Its schedule names no further slot.")


def slot_aside(slot: datetime, *, due_at: datetime, aside: str) -> Reason:
    """Return the reason of a job whose slot has come, and whose run cannot be made for now."""
    text = f"Its slot {format_instant(slot)} has come, and {_tried_again(aside)}"
    return Reason(gate=Hold.TIME, cause=Cause.SET_ASIDE, since=due_at, text=text)


def next_slot(slot: datetime, *, due_at: datetime, jitter: timedelta, schedulers: int, now: datetime) -> Reason:
    """Return the reason of a job of which nothing waits: its next slot has not come, or no scheduler has seen it."""
    at = format_instant(slot)
    if due_at <= now:
        next_step = (
            "a scheduler makes its run at its next tick" if schedulers else "no scheduler is live to make its run"
        )
        text = f"Its slot {at} has come, and {next_step}."
        return Reason(gate=Hold.TIME, cause=Cause.SCHEDULER, since=due_at, text=text)
    late = f", and jitter moves its start by up to {format_duration(jitter)}" if jitter else ""
    return Reason(gate=Hold.TIME, cause=Cause.SLOT, at=slot, text=f"Its next slot is {at}{late}.")


def _counted(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
