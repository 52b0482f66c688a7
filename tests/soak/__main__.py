"""``python -m tests.soak MINUTES``; exits with 1 if anything was wrong. See ``make soak``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.soak.soak import files, memory, soak


def main(minutes: float) -> int:
    with tempfile.TemporaryDirectory() as directory:
        report = asyncio.run(soak(Path(directory) / "tiny", 60 * minutes))
    print(dict(report.load.happened))
    print(report.counters)
    print(f"memory {report.growth(memory):+.1%}, open files {report.growth(files):+.1%} since the warm-up")
    faults = report.faults()
    for fault in faults[:20]:
        print("FAULT", fault)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
