#!/usr/bin/env python3
"""Builds the API reference from docstrings, in HTML: ``python .ci/docs.py FOLDER``. A warning is an error."""

import sys
import warnings
from pathlib import Path

import pdoc

import tvae.pipeline

PUBLIC = ("tvae.pipeline", "tvae.pipeline.errors", "tvae.presets")
"""Modules that users import."""


def main(folder: Path) -> None:
    """Write the pages, and check that each public name is on one."""
    for name in tvae.pipeline.__all__:
        getattr(tvae.pipeline, name)  # imported at its first use, which pdoc does not wait for
    warnings.simplefilter("error")
    pdoc.render.configure(docformat="restructuredtext", show_source=False)
    pdoc.pdoc(*PUBLIC, output_directory=folder)
    for name in PUBLIC:
        page = (folder / Path(*name.split("."))).with_suffix(".html").read_text(encoding="utf-8")
        missing = [one for one in sys.modules[name].__all__ if f'id="{one}"' not in page]
        if missing:
            sys.exit(f"{name}: no reference for {', '.join(missing)}")
    print(f"written: {folder / 'index.html'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/docs.py FOLDER")
    main(Path(sys.argv[1]))
