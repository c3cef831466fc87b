"""Nothing waits for a ``SimpleQueue`` with a time-out: before Python 3.13 that may never end (see ``bell.py``)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [
    path
    for folder in ("cli", "kernels", "pipeline", "presets", "public")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def timed_waits(text: str) -> list[int]:
    """Lines with a ``get`` that has a time-out, in a module that has simple queues."""
    tree = ast.parse(text)
    imported = any(
        isinstance(node, ast.ImportFrom) and node.module == "queue" and "SimpleQueue" in {n.name for n in node.names}
        for node in ast.walk(tree)
    )
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    timed = [
        node.lineno
        for node in calls
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and any(word.arg == "timeout" for word in node.keywords)
    ]
    return timed if imported else []


@pytest.mark.long
def test_no_such_wait() -> None:
    assert len(FILES) > 300
    found = {str(path.relative_to(ROOT)): lines for path in FILES if (lines := timed_waits(path.read_text("utf-8")))}
    assert not found


@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue"])
def test_what_is_seen(kind: str) -> None:
    text = f"from queue import {kind}\nq = {kind}()\nq.get()\nq.get(timeout=1)\n"
    assert timed_waits(text) == ([4] if kind == "SimpleQueue" else [])
