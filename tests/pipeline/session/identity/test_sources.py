"""Digests of source files: found without importing, changed by every file that a module comes to import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from tvae.pipeline.session.identity import sources
from tvae.pipeline.session.identity.sources import import_closure, import_closure_digest

KL = "diffusers.models.autoencoders.autoencoder_kl"

FILES = {
    "pkg/__init__.py": "from .top import thing\nfrom .unused import other\n",
    "pkg/top.py": "thing = 1\n",
    "pkg/unused.py": "other = 1\n",
    "pkg/vae/__init__.py": "",
    "pkg/vae/model.py": "import os, torch\n"
    "from .blocks import (\n    Down,  # a (comment)\n    Up as Upper,\n)\n"
    "from .. import __version__, thing\n"
    "try: from . import extra\nexcept ImportError: pass\n"
    "def f():\n"
    '    """Example:\n\n    from pkg.example import it\n    """\n'
    "    import pkg.inner.deep as d; from pkg.lazy import Heavy, \\\n        Light\n",
    "pkg/vae/blocks.py": "from ..inner import named\n",
    "pkg/vae/extra.py": "",
    "pkg/inner/__init__.py": "from .some import *\n",
    "pkg/inner/some.py": "named = 1\n",
    "pkg/inner/deep.py": "",
    "pkg/lazy/__init__.py": "from typing import TYPE_CHECKING\nfrom ._loader import Lazy\n"
    "if TYPE_CHECKING or False:\n    from .heavy import Heavy\n    from .other import Other\n"
    "else:\n    Light = Lazy()\n",
    "pkg/lazy/_loader.py": "",
    "pkg/lazy/heavy.py": "from ..vae import model  # a cycle\n",
    "pkg/lazy/other.py": "",
    "pkg/example.py": "",
}
REACHED = {
    *("pkg.vae.model", "pkg.vae", "pkg", "pkg.vae.blocks", "pkg.top", "pkg.vae.extra", "pkg.inner.deep", "pkg.inner"),
    *("pkg.inner.some", "pkg.lazy", "pkg.lazy.heavy", "pkg.lazy._loader"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package, found but not imported."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    return tmp_path


def forget() -> None:
    """As a new process would find it."""
    sources.closure_digests.cache_clear()
    sources._read.cache_clear()
    sources._by_finders.cache_clear()


def test_every_import_is_followed_and_no_example_is(folder: Path) -> None:
    assert set(import_closure("pkg.vae.model")) == REACHED
    assert not any(name.partition(".")[0] == "pkg" for name in sys.modules)


def test_an_edit_counts_where_it_is_reached(folder: Path) -> None:
    first = import_closure_digest("pkg.vae.model")
    for name, text in FILES.items():
        (folder / name).write_text(text + "\nmore = 1\n")
        forget()
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert (import_closure_digest("pkg.vae.model") != first) == (module in REACHED), name
        (folder / name).write_text(text)
    forget()
    assert import_closure_digest("pkg.vae.model") == first


def test_files_beside_a_plain_file_are_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vae_alone.py").write_text("import torch\nfrom blocks_alone import Block\nimport json\n")
    (tmp_path / "blocks_alone.py").write_text("import parts_alone.conv\n")
    (tmp_path / "parts_alone").mkdir()
    (tmp_path / "parts_alone" / "__init__.py").write_text("")
    (tmp_path / "parts_alone" / "conv.py").write_text("from . import base\n")
    (tmp_path / "parts_alone" / "base.py").write_text("")
    (tmp_path / "not_asked_for.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    assert set(import_closure("vae_alone")) == {
        *("vae_alone", "blocks_alone", "parts_alone", "parts_alone.conv", "parts_alone.base"),
    }


def test_parts_of_a_package_that_lie_elsewhere_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editable installation of a package has them whose folders go by other names."""
    files = {
        "names/__init__.py": "import os\n",
        "nets/__init__.py": "from .conv import Conv\n",
        "nets/conv.py": "from apart import blocks\n",
        "parts/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    homes = {"apart": "names", "apart.nets": "nets", "apart.blocks": "parts"}

    class Finder:
        """Such as setuptools installs."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if name not in homes:
                return None
            home = tmp_path / homes[name]
            return spec_from_file_location(name, home / "__init__.py", submodule_search_locations=[str(home)])

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    forget()
    for name in homes:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import_module("apart")
    files_of = import_closure("apart.nets.conv")
    assert {*files_of} == {"apart", "apart.nets", "apart.nets.conv", "apart.blocks"}
    assert files_of["apart.blocks"] == tmp_path / "parts" / "__init__.py"
    del sys.modules["apart"]


def test_what_has_no_source_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare" / "inner").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_closure_digest("no_such_package_anywhere") is None
    assert import_closure_digest("diffusers.no_such_module") is None
    assert import_closure_digest("sys") is None
    assert import_closure_digest("bare") is None, "a namespace package has no file"


def test_the_version_of_the_package_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = import_closure_digest("pkg.vae.model")
    monkeypatch.setattr(sources, "package_version", lambda package: "2.0")
    forget()
    assert import_closure_digest("pkg.vae.model") != first


def test_a_real_package_is_read_quickly_and_not_imported() -> None:
    program = (
        "import sys, time\n"
        "from tvae.pipeline.session.identity.sources import import_closure, import_closure_digest as d\n"
        f"t = time.process_time(); d({KL!r}); t = time.process_time() - t\n"
        f"print(t, 'diffusers' in sys.modules, 'torch' in sys.modules, *import_closure({KL!r}))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert float(found[0]) < 0.15  # 0.06 alone
    assert found[1] == found[2] == "False"
    reached = {
        f"diffusers.models.{name}" for name in ("autoencoders.vae", "unets.unet_2d_blocks", "resnet", "attention")
    }
    assert reached < set(found)
    assert "diffusers.loaders.single_file_model" in found  # a name that a lazy package hands on
    assert len(found) < 250  # the package has over a thousand


CAPTURE = """
import sys, torch
from torch import nn
from tvae.pipeline import TiledVAE
from tvae.pipeline.session.identity import sources
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
    def encode(self, x): return self.a(x)
    def decode(self, z): return self.b(z)
TiledVAE(Model()).decode(torch.zeros(1, 4, 8, 8))
kept = sources.import_closure(*sources._CAPTURE)
print(*[m for m, v in sys.modules.items() if m.startswith("tvae.") and getattr(v, "__file__", 0) and m not in kept])
"""

NO_PART_OF_A_GRAPH = {
    "tvae.pipeline.tiled_vae": "the face of it all: asks for captures, and calls what became of them",
    "tvae.pipeline.models.in_place_of": "its base; the model that it wraps is what is captured",
    "tvae.pipeline.session.prepared": "lowers and runs graphs that were captured, as do the next ones",
    "tvae.pipeline.session.runner": "",
    "tvae.pipeline.session.choose_plan": "",
    "tvae.pipeline.session.weights": "",
    "tvae.pipeline.engine.rules.": "how an operation of a graph is cut into strips",
    "tvae.pipeline.engine.plan.": "how graphs run, as do the next ones",
    "tvae.pipeline.engine.ir.constants": "",
    "tvae.pipeline.engine.run.cuda_graph": "",
    "tvae.pipeline.engine.run.empty_run": "",
    "tvae.pipeline.engine.run.nccl_exchange": "",
    "tvae.pipeline.engine.run.thread_exchange": "",
    "tvae.pipeline.files.pulse": "says that a run is alive",
    "tvae.kernels.": "what operations run, once graphs are",
    "tvae.pipeline.memory.": "memory while they run",
    "tvae.pipeline.settings": "of the process while they run; those that a capture depends on are among its facts",
    "tvae.pipeline.models.outputs": "what results look like, once there are any, as do the next ones",
    "tvae.pipeline.models.streaming": "",
    "tvae.pipeline.models.taesd": "models of our own, whose identity has their code, as do the next ones",
    "tvae.pipeline.models.one_side": "",
    "tvae.pipeline.device": "chooses a preset",
    "tvae.presets": "presets",
    "tvae.pipeline.session": "makes the key",
}
"""Modules that a process with a capture in it has loaded, and that no graph depends on; a dot: all below."""


@pytest.mark.slow
def test_our_own_part_of_a_key_leaves_out_nothing_that_a_capture_runs() -> None:
    found = subprocess.run([sys.executable, "-c", CAPTURE], capture_output=True, text=True, check=True).stdout.split()
    known = tuple(NO_PART_OF_A_GRAPH)
    assert [name for name in found if not name.startswith(known)] == []
    own = import_closure(*sources._CAPTURE)
    shortcuts = {f"capture.shortcuts.{name}" for name in ("fewer_notes", "known_shapes", "plain_shapes")}
    named = {"capture.export_settings", "capture.capture", "passes.functionalise"} | shortcuts
    assert {f"tvae.pipeline.engine.{name}" for name in named} < set(own)
    assert {
        f"tvae.pipeline.models.{name}" for name in ("reference", "families.wan", "families.cosmos", "stepping")
    } < set(own)
    assert {
        "tvae.pipeline.session.captures",
        "tvae.pipeline.session.new_graph",
        "tvae.pipeline.session.outputs.taken_apart",
        "tvae.pipeline.session.warmup",
    } < set(own)


@pytest.mark.parametrize(
    "name",
    ["engine.capture.exporter", "engine.capture.shortcuts", "models.families.wan", "engine.lower"],
)
def test_our_own_digest_is_that_of_our_sources(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, read = sources.own_digest(), sources._read
    edited = import_closure(*sources._CAPTURE)[f"tvae.pipeline.{name}"]
    monkeypatch.setattr(
        sources, "_read", lambda path: read(path)._replace(digest=b"") if path == edited else read(path)
    )
    sources.closure_digests.cache_clear()
    try:
        assert sources.own_digest() != first
    finally:
        sources.closure_digests.cache_clear()
