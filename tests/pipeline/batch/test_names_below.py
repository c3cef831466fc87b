"""Names in a list are those that ``pathlib`` gives, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvae.pipeline.batch.names_below import names_below

NAMES = ("a.png", "./a.png", "x//a.png", "x/./a.png", "x/../a.png", "x/..", "x/", "x/.", ".", "..", "/x/a.png", "//x/a")
HOME = ("~/a.png", "~", "~nobody-of-this-name", "x/~/a.png")
PATTERNS = ("*.png", "x/*.png", "x*/a.png", "x/[a]*")


@pytest.mark.parametrize("folder", [Path("/f/g"), Path("f"), Path(), Path("/"), Path("/f[1]")])
def test_as_pathlib_joins_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/somebody")
    names = (*NAMES, *HOME[:2], HOME[3], *NAMES)
    assert [*names_below(folder, names)] == [str(folder / Path(name).expanduser()) for name in names]
    assert [*names_below(folder, ["s3://b/x//a.png"])] == ["s3://b/x//a.png"]


def test_patterns_in_a_folder_with_brackets() -> None:
    assert [*names_below(Path("/f[1]"), PATTERNS)] == [f"/f[[]1]/{name}" for name in PATTERNS]
    assert [*names_below(Path("/f"), PATTERNS)] == [f"/f/{name}" for name in PATTERNS]
