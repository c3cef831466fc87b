"""``tvae preset tune``: where the result goes is settled before anything is measured. Imports the pipeline."""

from __future__ import annotations

import dataclasses
import json as js
import re
from pathlib import Path

from tvae import presets
from tvae.cli import bench_request, columns
from tvae.cli.reporting import printable, tell
from tvae.cli.status_line import StatusLine
from tvae.pipeline.bench.tune import Trial, Tuner
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import replacing
from tvae.presets.text import text_of

__all__ = ["tune"]


def tune(
    *,
    output: str | None,
    name: str | None,
    overwrite: bool,
    vae: str | None,
    vae_of: str | None,
    allow_pickle: bool,
    config: str | None,
    device: str | None,
    size: int | None,
    quick: bool,
    json: bool,
    progress: bool,
) -> None:
    """See ``tvae preset tune``. Raises UsageError before any work."""
    setting = bench_request.setting("auto", None, device)
    base = setting.preset
    target = _target(output, name or f"{base.name.removesuffix('-tuned')}-tuned", named=name is not None)
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists; pass --overwrite to replace it")
    slow = setting.device.type == "cpu"
    if vae is None and config is None and not slow:
        config = "sdxl"  # where the time goes in most pictures; the built-in one is small
    model, called = bench_request.model(vae, config, vae_of, allow_pickle=allow_pickle)
    side = size or (128 if slow else 1024) // (2 if quick else 1)
    base = dataclasses.replace(
        base,
        name=target.stem,
        title=f"{setting.machine.partition(',')[0]}, tuned",
        description=f"Measured by tvae preset tune on {setting.machine}, starting from {base.name}.",
    )
    tuner = Tuner(base, model, setting.device, machine=setting.machine, vae=called, size=side, quick=quick)
    trials = []
    with StatusLine(shown=progress) as line:
        line.show("measuring")
        for trial in tuner:
            trials.append(trial)
            line.show(f"{trial.setting} {trial.value}")
            if json:
                tell(js.dumps({"type": "trial", **trial.to_json()}, allow_nan=False))
    _write(target, text_of(tuner.preset))
    if json:
        values = {**tuner.preset.to_json(), "source": str(target)}
        tell(js.dumps({"type": "preset", **values}, allow_nan=False))
    else:
        tell(printable(setting.words))
        columns.show_table(("setting", "value", "time", ""), [_cells(trial) for trial in trials], texts=2)
        tell(printable(f"written: {target}"))


def _target(output: str | None, name: str, *, named: bool) -> Path:
    """The file to write, one that ``--preset`` can read back."""
    if output is not None:
        if named:
            raise UsageError("--output and --name cannot be used together")
        path = Path(output)
        if path.suffix != ".toml":
            raise UsageError(f"-o {output}: a preset is a .toml file")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"-o {output}: there is no folder '{path.absolute().parent}'")
        return path
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or name == "auto":
        raise UsageError(f"--name {name}: a name has letters, digits, - and _, and 'auto' is taken")
    return presets.user_folder() / f"{name}.toml"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    presets.load(str(path))  # what was written is what --preset reads, or this raises


def _cells(trial: Trial) -> tuple[str, ...]:
    return (
        trial.setting,
        trial.value,
        columns.seconds(trial.seconds),
        f"{'chosen' if trial.chosen else ''}{'  ' if trial.chosen and trial.note else ''}{trial.note}",
    )
