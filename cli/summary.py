"""What a person wants to know first of what ``tvae inspect`` looks at, from the fields that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

__all__ = ["summary"]

Values = Mapping[str, Any]


MOST_LATENTS = 8
"""Tensors of a file of latents; of one with more, it is of interest why it is no VAE."""


def summary(kind: str, values: Values) -> Iterator[str]:
    """A line that says what it is, and a few indented ones. kind: ``caches``, ``latents``, ``media``, ``tensors`` or
    ``vae``."""
    told = {"caches": _caches, "latents": _latents, "media": _media, "tensors": _tensors, "vae": _vae}
    yield from told[kind](values)


def _caches(values: Values) -> Iterator[str]:
    found = values["caches"]
    yield f"{len(found)} cache{'s' * (len(found) != 1)} that tvae wrote; tvae verify reads them whole"
    for one in found:
        size = "" if one["resolution"] is None else f", at {'x'.join(map(str, one['resolution']))}"
        yield f"  {one['trainer']}  {one['architecture']}{size}, by {one['vae']['id']}"
        yield f"    {one['sources']} images or pieces, {_size(one['bytes'])} in {one['files']} files"


def _latents(values: Values) -> Iterator[str]:
    vae, geometry, files = values["vae"], values["geometry"], len(values["parts"])
    whole = "complete" if values["complete"] else "one file of a folder"
    yield f"latents of {_article(values['kind'])}, {whole}"
    width, height = geometry["resized"] or (geometry["source_width"], geometry["source_height"])
    alpha = ", with alpha" if values["has_alpha"] else ""
    yield f"  source    {values['source']['name']}, {_frames(values, f'{width}x{height}')}{alpha}"
    yield f"  vae       {vae['id']} ({vae['class_name']})"
    shapes = [next(iter(part["tensors"].values()))["shape"] for part in values["parts"]]
    shape = list(shapes[0])
    if len(shape) == 4:
        shape[1] = sum(one[1] for one in shapes)
    posterior = values["posterior"]["kind"]
    what = "" if posterior == "none" else f"{posterior}, "
    yield f"  latents   {what}{'x'.join(map(str, shape))}, {values['dtype']}, {values['space']['name']} space"
    yield f"  on disk   {_size(values['bytes'])} in {files} file{'s' * (files != 1)}{_others(values['streams'])}"


def _media(values: Values) -> Iterator[str]:
    yield _frames(values, f"{_article(values['kind'])}, {values['width']}x{values['height']}")
    alpha = "with alpha" if values["has_alpha"] else "no alpha"
    yield f"  pixels    {values['pix_fmt']}, {values['bits']} bits, {alpha}"
    format_ = values["codec"] if values["kind"] == "image" else f"{values['codec']} in {values['container']}"
    yield f"  on disk   {_size(values['bytes'])}, {format_}"
    for stream in values["streams"]:
        yield f"  also      {stream['type']}, {stream['codec']}"


def _tensors(values: Values) -> Iterator[str]:
    found = values["tensors"]
    latents = len(found) <= MOST_LATENTS
    if not latents:
        yield values["no_vae"]
    yield f"{len(found)} tensor{'s' * (len(found) != 1)} of another program"
    for name, spec in [*found.items()][:8]:
        yield f"  {name}  {'x'.join(map(str, spec['shape']))}, {spec['dtype']}"
    yield f"  on disk   {_size(values['bytes'])}"
    if latents:
        yield "  if they are latents, decode takes them with --vae and --space"


def _vae(values: Values) -> Iterator[str]:
    known = values["geometry"]
    kind = "a VAE" if known is None else _article("video" if known["temporal"] else "image") + " VAE"
    note = f" ({values['note']})" if values["note"] else ""
    yield f"{kind}: {values['class']}{note}"
    if values["name"] is not None:
        yield f"  name      {values['name']}"
    if values["not_used"] is not None:
        yield f"  not used  by the command line: {values['not_used']}"
    if known is not None:
        frames = f" and {known['temporal']} frames" if known["temporal"] else ""
        side = known["spatial"]
        yield f"  latents   {known['latent_channels']} channels, one latent for {side}x{side} pixels{frames}"
    files = len(values["weights"])
    where = f"{values['dtype']}, {_size(values['bytes'])} in {files} file{'s' * (files != 1)}"
    if (found := values["found"]) is not None:
        inside = f", inside a checkpoint ({found['prefix']}*)" if found["prefix"] else ""
        yield f"  known     by the names of {found['layout']} and their shapes{inside}"
        of = found["of"] if found["unknown"] is None else f"not known: {found['unknown']} (--vae-of)"
        yield "  of        " + ", ".join(filter(None, (of, found["why"])))
    yield from (f"  lacks     {sentence}" for sentence in values["lacks"].values())
    pickled = ", pickled (pass --allow-pickle)" if values["pickled"] else ""
    yield f"  weights   {values['parameters'] / 1e6:.1f} million, {where}{pickled}"


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "image" else f"a {kind}"


def _frames(values: Values, start: str) -> str:
    """``start``, and of a video its length and rate."""
    told = [start]
    if values["kind"] == "video":
        if values["frames"] is not None:  # not all containers say
            told.append(f"{values['frames']} frames")
        if values["frame_rate"]:
            told.append(f"{float(Fraction(values['frame_rate'])):.5g} frames a second")
        if values.get("duration"):
            told.append(f"{values['duration']:.1f} s")
    return ", ".join(told)


def _others(streams: Values | None) -> str:
    """Of latents: the source's other streams, which are kept beside them."""
    if not streams:
        return ""
    found = [f"{one['type']} ({one['codec']})" for one in streams["record"]["streams"]]
    return f", and the source's {', '.join(found)}" if found else ""


def _size(count: int) -> str:
    from tvae.pipeline.engine.plan.report import size_text

    return size_text(count)
