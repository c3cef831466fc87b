"""Dotted names in docstrings and comments, such as ``module.function``, exist: drawn from the sources."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cli", "kernels", "pipeline", "presets", "public")
QUOTED = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)``(?!`)")
FILES = ("py", "cu")
EXAMPLES = {"decoder.prev", "tensor.data", "p.data.copy_", "ema_vae_fp16.safetensors"}
"""Of somebody's model, of any tensor, and a file to download."""
SHORT = {"F": "torch.nn.functional", "nn": "torch.nn", "np": "numpy", "aten": "torch.ops.aten"}
LIBRARIES = {*SHORT, "torch", "numpy", "av", "diffusers", "huggingface_hub", "safetensors", "PIL", "os", "sys", "json"}


def _sources() -> Iterator[tuple[str, str]]:
    """(module, source) of every file of ours."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(("tvae", *parts)).removesuffix(".__init__"), path.read_text(encoding="utf-8")


def _names(tree: ast.AST) -> set[str]:
    """Every name that is bound or used somewhere in a piece of source, and every attribute."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                found.add(name)
            case ast.alias(name=name):
                found.add(name.rpartition(".")[2])
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
    return found


class _Read:
    """All sources. Parsing them takes seconds: no worker does so when it collects."""

    def __init__(self) -> None:
        self.sources = dict(_sources())
        trees = {module: ast.parse(source) for module, source in self.sources.items()}
        self.names = {module: _names(tree) for module, tree in trees.items()}
        self.classes: dict[str, list[ast.ClassDef]] = {}
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, []).append(node)
        every = ((module, name) for module, source in self.sources.items() for name in QUOTED.findall(source))
        self.quotes = [(module, name) for module, name in every if name not in EXAMPLES]


@cache
def _read() -> _Read:
    return _Read()


def exists(name: str, where: str) -> bool:
    """Is there such a name? where: the module that speaks of it, whose own variables and examples count, too."""
    read, (first, *rest) = _read(), name.split(".")
    if first == "tvae" and len(rest) == 1:  # a fused operation
        return rest[0] in read.names["tvae.pipeline.engine.ir.fused_ops"]
    if first in LIBRARIES:
        return _in_library(name)
    if rest[-1] in FILES:
        return any(path.name == name for package in PACKAGES for path in (ROOT / package).rglob(f"*.{rest[-1]}"))
    for end in range(len(rest) + 1):
        path = "." + ".".join((first, *rest[:end]))
        modules = [m for m in read.sources if f".{m}".endswith(path) or f"{path}." in m]
        if any(end == len(rest) or rest[end] in read.names[m] for m in modules):
            return True
    if first in read.classes:
        return any(rest[0] in _names(c) or c.bases for c in read.classes[first])
    return first in read.names[where] or re.search(rf"(?<!`){re.escape(name)}\b", read.sources[where]) is not None


def _in_library(name: str) -> bool:
    first, *rest = name.split(".")
    module, *names = f"{SHORT.get(first, first)}.{'.'.join(rest)}".split(".")
    found: object = importlib.import_module(module)
    for each in names:
        module += f".{each}"
        if not hasattr(found, each):
            try:
                importlib.import_module(module)
            except ImportError:
                return False
        found = getattr(found, each)
    return True


def test_dotted_names_exist() -> None:
    assert [f"{where}: {name}" for where, name in _read().quotes if not exists(name, where)] == []


@pytest.mark.parametrize(
    "name",
    ["fused.norm_act", "bounds.demand_of", "Op.producing", "torch.convolve", "tvae.norm", "passes.no_such_pass"],
)
def test_a_name_that_is_gone_would_be_seen(name: str) -> None:
    assert not exists(name, "tvae.pipeline.engine.rules.registry")


@pytest.mark.parametrize(
    "name", ["bounds.demanded", "Op.produce", "torch.compile", "tvae.norm_act", "passes.convolutions"]
)
def test_a_name_that_is_there_is_found(name: str) -> None:
    assert exists(name, "tvae.pipeline.engine.rules.registry")
    assert len(_read().quotes) > 50
