"""The READMEs tell the truth about names: what the walk through the pipeline names exists, and links lead somewhere."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (".github", "cli", "kernels", "pipeline", "presets", "public", "tests")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")))
)
MOST_HOPS = 25


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """Fenced blocks and inline code may hold brackets that are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def found(name: str) -> Any:
    """The module, class, function or method of this dotted name. Raises ImportError or AttributeError."""
    parts = name.split(".")
    for known in range(len(parts), 0, -1):
        module = ".".join(parts[:known])
        try:
            value: Any = import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # a module that it imports
                raise
            continue
        for part in parts[known:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


def names_in(text: str) -> list[str]:
    return sorted(set(re.findall(r"`(tvae(?:\.\w+)+)`", text)))


def hops_in(text: str) -> list[str]:
    _, _, walk = text.partition("## The way of a frame")
    return re.findall(r"^\d+\. .*$", walk.split("\n## ")[0], re.MULTILINE)


def links_in(text: str) -> list[str]:
    """Targets of relative links, without what follows a ``#``."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    files = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    return [file for file in files if file]


def imports_in(text: str) -> list[str]:
    """What the examples import."""
    lines = re.findall(r"^from (tvae(?:\.\w+)+) import (.+)$", text, re.MULTILINE)
    return sorted({f"{module}.{name.strip()}" for module, names in lines for name in names.split(",")})


@pytest.mark.parametrize("name", names_in(text_of("pipeline/README.md")))
def test_every_name_exists(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize("page", PAGES)
def test_what_examples_import_exists(page: str) -> None:
    for name in imports_in(text_of(page)):
        assert found(name) is not None, name


def test_the_walk_is_short_and_begins_each_hop_with_a_name() -> None:
    hops = hops_in(text_of("pipeline/README.md"))
    assert 1 <= len(hops) <= MOST_HOPS
    assert [hop.partition(". ")[0] for hop in hops] == [str(n) for n in range(1, len(hops) + 1)]
    for hop in hops:
        assert re.match(r"\d+\. `tvae(\.\w+)+`: ", hop), hop


def test_all_pages_are_looked_at() -> None:
    assert {"README.md", "pipeline/README.md", "pipeline/engine/README.md", "pipeline/latents/FORMAT.md"} <= {*PAGES}
    assert {"kernels/README.md", "presets/README.md", "tests/README.md", "cli/EVENTS.md"} <= {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    folder = (ROOT / page).parent
    assert [target for target in links_in(text_of(page)) if not (folder / target).exists()] == []


def test_the_table_of_kernels_is_that_of_the_package() -> None:
    from tvae.kernels import LEVELS, OPERATIONS
    from tvae.kernels.operations import operation_of

    page = text_of("kernels/README.md")
    footnotes = re.findall(r"^- \*\*(\w)\*\*: ([^.;]+)", page, re.MULTILINE)
    reasons = {reason: letter for letter, reason in footnotes}
    written = [line.strip("| ").split(" | ") for line in page.splitlines()]
    rows = {cells[0].strip("`"): cells[-len(LEVELS) :] for cells in written if len(cells) > len(LEVELS)}
    for name in OPERATIONS:
        left_out = operation_of(name).left_out
        told = [reasons.get(left_out[level], left_out[level]) if level in left_out else "+" for level in LEVELS]
        assert rows.get(name) == told, f"the row of {name} in kernels/README.md"


def names_in_docstrings() -> dict[str, str]:
    """What the kernels name between double backticks that belongs to a module or is a file, and where."""
    modules = {path.stem for path in (ROOT / "kernels").iterdir()}
    names = {}
    for path in (ROOT / "kernels").rglob("*.*"):
        if path.suffix in (".py", ".cu"):
            for name in re.findall(r"``(\w+(?:\.\w+)+)", path.read_text(encoding="utf-8")):
                if name.partition(".")[0] in {*modules, "tvae"} or name.endswith((".py", ".cu")):
                    names[name] = path.name
    return names


def test_what_docstrings_of_the_kernels_name_exists() -> None:
    files = {path.name for path in (ROOT / "kernels").rglob("*.*")}
    names = names_in_docstrings()
    assert {"operations.norm_act", "bulk.cu"} <= {*names}
    for name, where in names.items():
        if name.endswith((".py", ".cu")):
            assert name in files, f"{where} names {name}"
        else:
            assert found(name if name.startswith("tvae.") else f"tvae.kernels.{name}") is not None, where


@pytest.mark.parametrize("name", ["tvae.pipeline.nothing", "tvae.pipeline.jobs.run.nothing", "tvae.nothing.at.all"])
def test_a_wrong_name_is_found_out(name: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        found(name)


def test_links_are_told_from_code() -> None:
    text = "[a](x/y.md#part) `[b](c.md)` [d](https://e.org) [f](#g)\n```\n[h](i.md)\n```\n![j](k.png)"
    assert links_in(text) == ["x/y.md", "k.png"]
