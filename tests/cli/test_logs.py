"""What the log shows, and what it never does."""

import pytest
import structlog

from rota.cli import logs
from rota.worker.line_writer import write_out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_shows_no_local_variables(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    before = structlog.get_config()
    logs.configure("warning", as_json=as_json)
    try:
        _fail_with("lease-token-in-hand")
        write_out()
    finally:
        structlog.configure(**before)
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "lease-token-in-hand" not in said


def _fail_with(lease_token: str) -> None:
    try:
        len(lease_token) / 0
    except ZeroDivisionError:
        structlog.get_logger().warning("loop.failed", exc_info=True)
