"""``tvae models``."""

from __future__ import annotations

from tvae.cli import options
from tvae.cli.reporting import reporting, tell

__all__ = ["models"]


def models(
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """List the VAE classes that the command line knows, with the models that use them, and diffusers' others."""
    with reporting(verbose, json, quiet=quiet):
        from tvae.cli.table import emit
        from tvae.pipeline.models import families, other_classes

        for family in families.describe():
            if json:
                emit("model", family, as_json=True)
            else:
                taken = {"--config": family["configs"], "--vae-of": family["of"]}
                more = "; ".join(f"{option} {', '.join(names)}" for option, names in taken.items() if names)
                told = f"({more})" if more else ""
                tell(f"{family['class_name']:30} {family['kind']:6} {family['note']} {told}".rstrip())
        if not json:
            tell("\nnot for the command line; TiledVAE runs the sides that are named")
        for other in other_classes.describe():
            if json:
                emit("other_model", other, as_json=True)
            else:
                tell(f"{other['class_name']:30} {', '.join(other['runs']) or '-':14} {other['why']}")
