"""What people read uses standard words: the pages, the help of every command, and the messages of errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from program import invoke

from tvae.cli.app import whole

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cli", "kernels", "pipeline", "presets", "public")
PAGES = sorted(
    (*ROOT.glob("*.md"), *(page for name in (*FOLDERS, ".github", "tests") for page in (ROOT / name).rglob("*.md")))
)
WORDS = {
    r"untold": "cannot build a cache key",
    r"first[ _-]touch\w*": "prefetch",
    r"(read|fetch)\w* ahead": "prefetch",
    r"banded|inbands|in[ _-]bands": "height bands",
    r"in_parts": "in chunks",
    r"put back": "retry",
    r"by hand": "who does it, or nothing",
    r"go(es|ne)? on( with)?": "continue",
    r"anew": "again",
    r"meanwhile": "at the same time",
    r"behind": "after",
    r"amid": "among",
    r"dear": "expensive",
    r"ours": "tvae",
    r"(no|some|every)body( else)?": "who it is, or the passive voice",
    r"exclude one another": "cannot be used together",
    r"does not read as": "is not",
    r"of no use": "unusable",
    r"(no amount|is no) of": "is not",
    r"issue \d+|goal \d+(\.\d+)?": "what it says, as readers do not have it",
    r"DESIGN( section)?": "the page that readers have",
}
"""What is not to appear, as whole words in any case, and the standard words for it."""
BANNED = re.compile("|".join(rf"\b(?:{word})\b" for word in WORDS), re.IGNORECASE)


def banned(text: str) -> list[str]:
    """Every word of a text that is not to appear, and what to write."""
    found = (" ".join(match[0].split()) for match in BANNED.finditer(" ".join(text.split())))
    return [f"{word!r}: write {written(word)}" for word in found]


def written(word: str) -> str:
    return next(standard for old, standard in WORDS.items() if re.fullmatch(old, word, re.IGNORECASE))


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The program, its commands and their commands."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *path, name)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that is given to an error, or to a function that makes one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and re.search(
            r"(Error|Op|NoRule|Unsupported|Failed|BadParameter|refuse|_refused|_refusal)$", ast.unparse(node.func)
        ):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                for part in ast.walk(argument):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.lineno, part.value


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages(page: Path) -> None:
    assert banned(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "command", [*commands(typer.main.get_command(whole()))], ids=lambda path: " ".join(path) or "tvae"
)
def test_help(command: tuple[str, ...]) -> None:
    result = invoke([*command, "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert banned(re.sub(r"[│╭╮╰╯─]", " ", result.stdout)) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_of_errors(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT).as_posix()}:{line} {what}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in messages(path.read_text(encoding="utf-8"))
        for what in banned(text)
    ]
    assert wrong == []


FRAGMENT = re.compile(
    r"(Of|What|That|As|Has|Is|Are|Does|Whether|How|Where|And|So|Those|These|Such|One|Ones)\b"
    r"|.*\b(what it is given|that there (is|are) not?|as far as|of which)\b",
    re.DOTALL,
)
"""How a docstring begins that completes the name above it, and phrases of the old dialect."""
NOT_REBUILT = {
    *("cli", "cli/options", "kernels", "kernels/cuda", "kernels/operations", "kernels/triton", "pipeline"),
    *("pipeline/batch", "pipeline/bench", "pipeline/comfyui", "pipeline/comparison", "pipeline/doors"),
    *("pipeline/engine", "pipeline/files", "pipeline/jobs", "pipeline/latents", "pipeline/media", "pipeline/memory"),
    *("pipeline/models", "pipeline/session", "pipeline/settings", "pipeline/stores", "presets", "presets/builtin"),
}
"""Rooms with such docstrings, but for the folders in ``REBUILT``. The list only shrinks."""
REBUILT = {
    *("pipeline/engine/capture", "pipeline/engine/ir", "pipeline/engine/passes", "pipeline/engine/rules"),
    "pipeline/session/identity",
}


def fragments(path: Path) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    docs = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in nodes]
    return [f"{path.relative_to(ROOT).as_posix()}:{line} {doc[:60]!r}" for line, doc in docs if FRAGMENT.match(doc)]


def test_docstrings_are_sentences() -> None:
    wrong: dict[str, list[str]] = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        folders = path.relative_to(ROOT).parts[:-1]
        rebuilt = "/".join(folders[:3])
        wrong.setdefault(rebuilt if rebuilt in REBUILT else "/".join(folders[:2]), []).extend(fragments(path))
    assert [line for room, lines in wrong.items() if room not in NOT_REBUILT for line in lines] == []
    assert {room for room, lines in wrong.items() if lines} == NOT_REBUILT, "take rebuilt rooms from the list"


def test_all_of_it_is_looked_at() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {
        "README.md",
        "CHANGELOG.md",
        ".github/CONTRIBUTING.md",
        "cli/EVENTS.md",
        "presets/builtin/README.md",
    } <= names
    found = {*commands(typer.main.get_command(whole()))}
    assert {(), ("encode",), ("bench", "vae"), ("preset", "tune")} <= found
    texts = [text for _, text in messages((ROOT / "cli/arguments.py").read_text(encoding="utf-8"))]
    assert "--overwrite and --no-clobber cannot be used together" in texts


def test_a_word_that_is_not_to_appear_is_found() -> None:
    assert banned("It goes\non meanwhile.") == ["'goes on': write continue", "'meanwhile': write at the same time"]
    assert banned("Untold, by hand") == [
        "'Untold': write cannot build a cache key",
        "'by hand': write who does it, or nothing",
    ]
    assert banned("hours, handy, a rebuilt band, an issue") == []
    raised = "def f(n):\n    raise UsageError(f'{n} exclude one another', 'a')\n\nprint('behind')"
    assert [*messages(raised)] == [(2, " exclude one another"), (2, "a")]
