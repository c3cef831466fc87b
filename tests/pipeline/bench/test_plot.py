"""Charts: refused before any measuring where they could not be written, and drawn where they can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.bench import plot
from tvae.pipeline.bench.kernels import KernelRow
from tvae.pipeline.bench.vae import VaeCase, VaeRow
from tvae.pipeline.errors import UsageError

ROWS = [
    VaeRow(VaeCase("decode", 512, 512), "diffusers", "ok", seconds=0.02, peak_bytes=3 << 20, error=2.5e-3),
    VaeRow(VaeCase("decode", 512, 512), "tiled", "out of memory"),
]


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
    plot.plot_vae(ROWS, "vae", tmp_path / "vae.png")
    for name in ("kernels.png", "vae.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > 500
            assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 2
    assert len(list(tmp_path.iterdir())) == 2


def drawn(monkeypatch: pytest.MonkeyPatch, rows: list[VaeRow]) -> list[tuple[str, list[str], list[float]]]:
    """Of each panel: its axis, the texts at its bars, and the lengths of the bars."""
    pytest.importorskip("matplotlib")
    kept: list[Any] = []
    monkeypatch.setattr(plot, "_save", lambda figure, _path: kept.append(figure))
    plot.plot_vae(rows, "vae", Path("vae.png"))
    return [
        (a.get_xlabel(), [text.get_text() for text in a.texts], [bar.get_width() for bar in a.patches])
        for a in kept[0].axes
    ]


def test_a_chart_of_vaes_has_time_memory_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    time, memory, error = drawn(monkeypatch, ROWS)
    assert time == ("time of a warm call, ms", ["20", "out of memory"], [pytest.approx(20), 0])
    assert memory == ("peak memory beyond the weights, MiB", ["3", "out of memory"], [pytest.approx(3), 0])
    assert error[:2] == ("error, relative L2", ["2.5e-03", "out of memory"])
    assert error[2][0] == pytest.approx(2.5e-3)


def test_each_case_has_its_own_line_of_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    larger = [replace(row, case=VaeCase("decode", 1024, 1024), seconds=2.0) for row in ROWS]
    panels = drawn(monkeypatch, [*ROWS, *larger])
    assert [texts[0] for _, texts, _ in panels] == ["20", "3", "2.5e-03", "2000", "3", "2.5e-03"]


def test_what_nobody_measured_has_no_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [replace(row, peak_bytes=None) for row in ROWS]
    assert [label for label, _, _ in drawn(monkeypatch, rows)] == ["time of a warm call, ms", "error, relative L2"]
    assert drawn(monkeypatch, [ROWS[1]]) == [("time of a warm call, ms", ["out of memory"], [0])]
