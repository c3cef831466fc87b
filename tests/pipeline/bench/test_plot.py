"""Charts: refused before any measuring where they could not be written, and drawn where they can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvae.pipeline.bench import plot
from tvae.pipeline.bench.kernels import KernelRow
from tvae.pipeline.bench.vae import VaeCase, VaeRow
from tvae.pipeline.errors import UsageError


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: object())
    plot.check_plot(tmp_path / "new.png")
    (tmp_path / "old.png").write_text("a user's")
    for name, reason in (("new.jpg", ".png file"), ("old.png", "exists"), ("no/new.png", "no folder")):
        with pytest.raises(UsageError, match=reason):
            plot.check_plot(tmp_path / name)
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'tvae\[bench\]'"):
        plot.check_plot(tmp_path / "new.png")


def test_charts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    kernels = [
        KernelRow("norm_act", "native", "ok", share=0.3),
        KernelRow("norm_act", "cuda", "ok", share=0.9),
        KernelRow("sample", "native", "ok", share=0.5),
        KernelRow("sample", "cuda", "missing"),
    ]
    plot.plot_kernels(kernels, "kernels", tmp_path / "kernels.png")
    case = VaeCase("decode", 512, 512)
    rows = [VaeRow(case, "diffusers", "ok", seconds=0.02), VaeRow(case, "tiled", "out of memory")]
    plot.plot_vae(rows, "vae", tmp_path / "vae.png")
    for name in ("kernels.png", "vae.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > 500
            assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 2
    assert len(list(tmp_path.iterdir())) == 2
