"""Runs that are killed at any moment leave nothing that the next one does not mend."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import DECODE, ENCODE, NAME, photo, values

from tvae.pipeline.batch.manifest_lines import read_manifest

Batch = Callable[..., Any]
SCRIPT = """
import sys
from pathlib import Path
from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
run_batch(read_job_file(Path(sys.argv[1])), Options(), lambda event: print(event.type, flush=True))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_killed_at_any_moment_and_run_again(batch: Batch, photos: Path, tmp_path: Path) -> None:
    """All bytes are those of a run that nobody disturbed, and each output has one line."""
    for n in range(9, 40):
        photo(photos / f"{n}.png", n)
    batch(ENCODE + DECODE)
    whole = {name: values(tmp_path / name) for name in ("out", "back")}
    chance = random.Random(5)
    for _ in range(12):
        for name in whole:
            if (tmp_path / name).exists():
                (tmp_path / name).rename(tmp_path / f"{name}-{chance.random()}")
        for _ in range(3):
            command = [sys.executable, "-c", SCRIPT, str(tmp_path / "job.toml")]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                for _ in range(chance.randint(1, 90)):
                    process.stdout.readline()
                process.kill()
        results, _, _ = batch(ENCODE + DECODE)
        assert all(result.failed == 0 for result in results)
        for name, expected in whole.items():
            assert values(tmp_path / name) == expected
            found = (tmp_path / name / NAME).read_bytes().splitlines()
            assert len(found) == len(expected) == len(read_manifest(tmp_path / name / NAME))
            assert not [path for path in os.listdir(tmp_path / name) if path.startswith(".tvae")]
