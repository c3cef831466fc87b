"""No exception is swallowed unsaid: why stands in the code, and what it was is logged or handed on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BROAD = {"Exception", "BaseException"}


def broad(node: ast.ExceptHandler) -> bool:
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in BROAD) for kind in kinds)


def tells(handler: ast.ExceptHandler) -> bool:
    """Whether it raises, logs, or uses the exception."""
    for node in (n for statement in handler.body for n in ast.walk(statement)):
        match node:
            case ast.Raise():
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"))):
                return True
            case ast.Name(id=name) if name == handler.name:
                return True
    return False


def explained(handler: ast.ExceptHandler, lines: list[str]) -> bool:
    """A handler that only cleans up and raises the same again needs no word."""
    again = any(isinstance(statement, ast.Raise) and statement.exc is None for statement in handler.body)
    return again or "# " in lines[handler.lineno - 1]


def wrong(text: str) -> Iterator[str]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ExceptHandler() if broad(node) and not (tells(node) and explained(node, lines)):
                yield f"line {node.lineno}: {lines[node.lineno - 1].strip()}"
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args):
                if any(isinstance(arg, ast.Name) and arg.id in BROAD for arg in args):
                    yield f"line {node.lineno}: suppress"


def test_nothing_is_swallowed() -> None:
    found = {}
    for package in ("cli", "kernels", "pipeline", "presets", "public"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if re.search(r"Exception\b|except:", text) and (lines := list(wrong(text))):
                found[path.relative_to(ROOT).as_posix()] = lines
    assert found == {}


@pytest.mark.parametrize(
    ("code", "fine"),
    [
        ("try: f()\nexcept Exception: pass", False),
        ("try: f()\nexcept Exception:  # it may\n    pass", False),
        ("try: f()\nexcept:  # it may\n    pass", False),
        ("try: f()\nexcept (OSError, Exception): _log.debug('x')", False),
        ("try: f()\nexcept Exception:  # it may\n    _log.debug('x')", True),
        ("try: f()\nexcept Exception as e:  # it may\n    return_(e)", True),
        ("try: f()\nexcept BaseException:\n    g()\n    raise", True),
        ("try: f()\nexcept OSError: pass", True),
        ("with suppress(Exception): f()", False),
        ("with contextlib.suppress(BaseException): f()", False),
        ("with suppress(OSError): f()", True),
    ],
)
def test_the_test(code: str, fine: bool) -> None:
    assert (not list(wrong(code))) == fine
