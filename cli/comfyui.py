"""``tvae comfyui install``."""

from __future__ import annotations

from typing import Annotated

import typer

from tvae.cli import options
from tvae.cli.reporting import printable, reporting, say, tell

__all__ = ["app"]

app = typer.Typer(help="Nodes for ComfyUI: exact decode and encode with the VAEs that it loads.")


@app.callback(invoke_without_command=True)
def comfyui(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def install(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="ComfyUI's folder, or its custom_nodes.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file of another version of tvae. No other is replaced.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Put tvae's nodes into ComfyUI: one file, which imports them from the tvae that is installed.

    Nodes: Exact VAE (a VAE for all other nodes), VAE Decode, VAE Encode, and Save video.
    tvae has to be installed in the Python that runs ComfyUI.
    """
    with reporting(verbose, json, quiet=quiet):
        from pathlib import Path

        from tvae.cli.table import emit
        from tvae.pipeline.comfyui.install import install as install_nodes

        path, written = install_nodes(Path(folder), overwrite=overwrite)
        if json:
            emit("installed", {"output": str(path), "written": written}, as_json=True)
            return
        tell(printable(f"{path}{'' if written else ' (was there already)'}"))
        if written and not quiet:
            say("restart ComfyUI to see the nodes; tvae has to be installed in its Python")
