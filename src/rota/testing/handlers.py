"""A handler's call in a test: in this process, with the same meaning of what it raises as in a worker."""

import asyncio

from rota.domain.attempt import Claim, Report
from rota.worker.context import RunContext
from rota.worker.ending import Ending, call, ending_of, succeeded
from rota.worker.handlers import Handler


async def run_handler(handler: Handler, claim: Claim) -> Report:
    """Call the handler for a claim; isolation "process" is not isolated here. Returns what a worker would report."""
    ending = await _call(handler, RunContext.of(claim))
    return Report(
        key=claim.key,
        outcome=ending.outcome,
        error=ending.error,
        retry_after=ending.retry_after,
        result=ending.result,
    )


async def _call(handler: Handler, context: RunContext) -> Ending:
    arguments = (context,) if handler.takes_run else ()
    if not handler.is_async:
        return await asyncio.to_thread(call, handler.function, *arguments)
    try:
        returned = await handler.function(*arguments)
    except Exception as raised:
        return ending_of(raised)
    return succeeded(returned)
