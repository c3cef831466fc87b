"""Finding and loading VAEs from a hub that the tests pretend to have."""

from __future__ import annotations

import os
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.load import load_weights, locate_vae


class Hub:
    """A pretended hub: folders `<root>/<organisation>/<name>`; downloads copy what the patterns allow."""

    def __init__(self, root: Path, snapshots: Path) -> None:
        self.root, self.snapshots, self.online = root, snapshots, True
        self.patterns: list[str] = []

    def list_repo_files(self, repository: str) -> list[str]:
        folder = self.root / repository
        if not self.online or not folder.is_dir():
            raise OSError(f"cannot reach {repository}\nand more lines")
        return [str(path.relative_to(folder)).replace(os.sep, "/") for path in folder.rglob("*") if path.is_file()]

    def snapshot_download(
        self, repository: str, allow_patterns: list[str] | None = None, local_files_only: bool = False
    ) -> str:
        target = self.snapshots / repository
        if local_files_only:
            if not target.is_dir():
                raise FileNotFoundError(repository)
            return str(target)
        self.patterns = allow_patterns or []
        for name in self.list_repo_files(repository):
            if any(fnmatch(name, pattern) for pattern in self.patterns):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.root / repository / name, target / name)
        return str(target)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub", tmp_path / "snapshots")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.chdir(tmp_path)
    return hub


@pytest.mark.parametrize(("inside", "spec"), [("", "org/a.b"), ("vae", "org/a.b"), ("deep/one", "org/a.b/deep/one")])
def test_hub_downloads_config_and_safetensors_only(hub: Hub, saved: Path, inside: str, spec: str) -> None:
    repository = hub.root / "org" / "a.b"
    shutil.copytree(saved, repository / inside)
    for name in ("diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.safetensors", "sample.png"):
        (repository / inside / name).touch()
    source = locate_vae(spec)
    assert (source.id, source.folder) == (spec, hub.snapshots / "org" / "a.b" / inside)
    prefix = f"{inside}/" if inside else ""
    assert hub.patterns == [f"{prefix}config.json", f"{prefix}diffusion_pytorch_model.safetensors"]
    hub.online = False
    assert locate_vae(spec).folder == source.folder


def test_hub_shards(hub: Hub, model: Any) -> None:
    model.save_pretrained(hub.root / "org" / "big", max_shard_size="20KB")
    source = locate_vae("org/big")
    assert len(source.weight_files) > 1
    assert load_weights(source).keys() == model.state_dict().keys()


def test_local_folder_wins_over_the_hub(hub: Hub, saved: Path) -> None:
    shutil.copytree(saved, Path("org") / "name")
    hub.online = False
    assert locate_vae("org/name").folder == Path("org/name")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "not a local folder, and cannot be fetched from the hub: OSError: cannot reach org/x$"),
        (["README.md"], r"no VAE in 'org/x' on the hub: no config\.json"),
        (["vae/config.json", "vae/diffusion_pytorch_model.bin"], "'org/x' holds pickled weights only"),
        (["config.json"], "no safetensors weights"),
    ],
)
def test_hub_errors_take_one_line(hub: Hub, files: list[str] | None, reason: str) -> None:
    for name in files or []:
        path = hub.root / "org" / "x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    with pytest.raises(UsageError, match=reason) as error:
        locate_vae("org/x")
    assert "\n" not in str(error.value)
