"""The checked-in schema.sql is what the migrations make."""

from pathlib import Path

from rota.clock import SystemClock
from rota.store.snapshot import SCHEMA, schema_text, write_snapshot


async def test_the_snapshot_is_the_migrated_schema(dsn: str) -> None:
    assert SCHEMA.read_text(encoding="utf-8") == await schema_text(dsn), (
        "run `python -m rota.store.snapshot` and look at the difference"
    )


async def test_the_snapshot_holds_nothing_of_the_day_it_was_written(tmp_path: Path) -> None:
    await write_snapshot(tmp_path / "schema.sql", clock=SystemClock())
    text = (tmp_path / "schema.sql").read_text(encoding="utf-8")
    assert text == SCHEMA.read_text(encoding="utf-8")
    assert "ATTACH PARTITION rota.run_" not in text
    assert "OWNER" not in text
    assert "CREATE TABLE rota.lease" in text
    assert "-- One maker at a time" in text, "comments of a function's body stay"
