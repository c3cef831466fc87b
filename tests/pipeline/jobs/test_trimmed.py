"""Memory that was given back goes to the system now and then, however small the pictures are."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tvae.pipeline.jobs import memory


def test_every_so_many_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, ended = list[int](), list[int]()
    monkeypatch.setattr(memory, "_malloc_trim", lambda: trims.append)
    monkeypatch.setattr(memory, "PICTURES", 3)
    end = memory.trimmed(lambda item, _outcome: ended.append(cast(int, item)))
    for n in range(7):
        end(cast(Any, n), cast(Any, None))
    assert (ended, trims) == ([*range(7)], [0, 0])
