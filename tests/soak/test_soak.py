"""A short soak: everything that ``make soak`` does, for a few seconds."""

from __future__ import annotations

from pathlib import Path

from tests.soak.soak import soak

SECONDS = 8.0


async def test_nothing_leaks_hangs_or_changes(tmp_path: Path) -> None:
    report = await soak(tmp_path / "tiny", SECONDS)
    print(dict(report.load.happened), report.counters)
    assert not report.faults(), "\n".join(report.faults()[:5])
    kinds = ("whole", "streamed", "left", "cut", "wrong", "hung up in time")
    assert {kind: report.load.happened[kind] for kind in kinds if not report.load.happened[kind]} == {}
    assert all(report.counters.values()), report.counters
