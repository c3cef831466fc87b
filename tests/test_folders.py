"""Folders import one way: drawn from the sources, without importing them."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cli", "kernels", "pipeline", "presets", "public")
MOST = 600
"""Lines of a file."""


def sources() -> dict[str, Path]:
    """Every module of ours, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("tvae", *(parts[:-1] if parts[-1] == "__init__" else parts)))
            found[name.replace("tvae.public", "tvae")] = path
    return found


SOURCES = sources()


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules of ours that a module imports, anywhere in it, but for its types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in SOURCES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from imported(node)


def folder(module: str) -> str:
    """Of the engine and of a session the folders inside, too; a file beside folders counts by itself."""
    parts = SOURCES[module].relative_to(ROOT).with_suffix("").parts
    depth = 3 if parts[:2] in (("pipeline", "engine"), ("pipeline", "session")) else 2
    return "/".join(parts[:-1][:depth] if len(parts) > depth else parts[:depth])


def graph() -> dict[str, dict[str, str]]:
    """By folder: the folders that it imports, and one module that does."""
    found: dict[str, dict[str, str]] = {}
    for module, path in SOURCES.items():
        here = folder(module)
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if name in SOURCES and folder(name) != here:
                found.setdefault(here, {}).setdefault(folder(name), f"{module} imports {name}")
    return found


def test_folders_import_one_way() -> None:
    edges = graph()
    try:
        order = [*TopologicalSorter({here: [*others] for here, others in edges.items()}).static_order()]
    except CycleError as cycle:
        ring = cycle.args[1][::-1]
        pytest.fail("\n".join(edges[a][b] for a, b in pairwise(ring)))
    for low, high in (("engine/ir", "engine/plan"), ("engine/plan", "engine/run"), ("memory", "models")):
        assert order.index(f"pipeline/{low}") < order.index(f"pipeline/{high}")


def test_the_cycle_would_be_seen() -> None:
    assert folder("tvae.pipeline.engine.plan.schedule") == "pipeline/engine/plan"
    assert folder("tvae.pipeline.engine.lower") == "pipeline/engine/lower"
    assert folder("tvae.pipeline.errors") == "pipeline/errors"
    assert [*imported(ast.parse("def f():\n    from tvae.pipeline import errors"))] == ["tvae.pipeline.errors"]
    assert "pipeline/engine/ir" in graph()["pipeline/engine/run"]


def test_the_top_of_the_pipeline_has_few_files() -> None:
    here = {path.name for path in (ROOT / "pipeline").glob("*.py")} - {"__init__.py"}
    assert here <= {"tiled_vae.py", "errors.py", "device.py"}


def lengths(paths: Iterable[Path]) -> dict[str, int]:
    return {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in paths}


def test_files_are_short() -> None:
    assert {name for name, count in lengths(SOURCES.values()).items() if count > MOST} == set()


def test_files_of_tests_are_short() -> None:
    found = lengths((ROOT / "tests").rglob("*.py"))
    assert "tests/test_folders.py" in found
    assert {name for name, count in found.items() if count > MOST} == set()


SMALL = 60
"""Lines below which a file with a single importer belongs into that importer."""
NOT_REBUILT = {
    *("cli", "cli/options", "kernels", "kernels/cuda", "kernels/operations", "kernels/triton", "pipeline/batch"),
    *("pipeline/bench", "pipeline/comfyui", "pipeline/comparison", "pipeline/engine"),
    *("pipeline/jobs", "pipeline/latents", "pipeline/media", "pipeline/models", "pipeline/session", "pipeline/stores"),
}
"""Rooms that still have such files. The list only shrinks."""


def room(module: str) -> str:
    return "/".join(SOURCES[module].relative_to(ROOT).parts[:-1][:2])


def test_small_files_have_several_importers() -> None:
    importers: dict[str, set[str]] = {}
    for module, path in SOURCES.items():
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if name in SOURCES and name != module:
                importers.setdefault(name, set()).add(module)
    counts = lengths(SOURCES.values())
    small = {
        module
        for module, path in SOURCES.items()
        if path.name != "__init__.py"
        and path.parent.name not in ("families", "trainers", "rules")
        and counts[path.relative_to(ROOT).as_posix()] < SMALL
        and len(importers.get(module, ())) == 1
    }
    assert {module for module in small if room(module) not in NOT_REBUILT} == set()
    assert {room(module) for module in small} == NOT_REBUILT, "take rebuilt rooms from the list"


def test_every_folder_is_installed() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {f"tvae.{'.'.join(folder.parts)}".replace("tvae.public", "tvae") for folder in folders} == {*told}
