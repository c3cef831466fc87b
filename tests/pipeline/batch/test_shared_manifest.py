"""A manifest that several runs add to: a line for each output, whatever the others do."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from job_files import NAME

from tvae.pipeline.batch.shared_manifest import SharedManifest


def output(folder: Path, name: str, content: bytes = b"x") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / NAME).read_bytes().splitlines()]


def test_several_runs_share_a_manifest(tmp_path: Path) -> None:
    """Here as writers of one process, whose calls come in any order, with half lines of others that were killed."""
    chance = random.Random(6)
    for turn in range(6):
        folder = tmp_path / str(turn)
        folder.mkdir()
        made: set[str] = set()
        with ExitStack() as stack:
            writers = [stack.enter_context(SharedManifest(folder)) for _ in range(3)]
            for _ in range(60):
                name, writer = f"{chance.randrange(12)}.png", chance.choice(writers)
                if chance.randrange(3) == 0 or name not in made:
                    output(folder, name, chance.randbytes(chance.randrange(1, 99)))
                    made.add(name)
                writer.done(folder / name, {"turn": turn})
                if chance.randrange(5) == 0:
                    with (folder / NAME).open("ab") as file:
                        file.write(b'{"output": "half a')
                if chance.randrange(9) == 0:
                    with SharedManifest(folder):
                        pass  # it leaves out what does not count
        found = lines(folder)
        assert {line["output"] for line in found} == made
        assert len(found) == len(made)
        assert all(line["bytes"] == (folder / line["output"]).stat().st_size for line in found)
