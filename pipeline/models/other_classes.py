"""diffusers' autoencoder classes that are no family: why the command line does not take them, and what of them runs.

``TiledVAE`` takes any module. The command line needs to know what a VAE takes, by which factors it shrinks space and
time and which range its pixels have: that is what a family says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvae.pipeline.models.calls import SIDES, Side
from tvae.pipeline.models.reference import TILED

__all__ = ["OTHER_CLASSES", "OtherClass", "describe", "why_other"]


@dataclass(frozen=True)
class OtherClass:
    """class_name: as configurations name it. why: it is no family. runs: sides that ``TiledVAE`` runs in strips."""

    class_name: str
    why: str
    runs: tuple[Side, ...] = ()


_SEGMENTS = "a clip goes through it in segments of frames, which are not known here as steps"

_ALL: Iterable[OtherClass] = (
    OtherClass("AutoencoderKLKVAEVideo", _SEGMENTS, SIDES),
    OtherClass("AutoencoderKLLTX2Audio", "of sound, which it takes as pictures of its spectrum", SIDES),
    OtherClass("AutoencoderKLMiniMaxH3", TILED),
    OtherClass("AutoencoderKLQwenImage21", "its pictures have four channels, of colours and opacity", SIDES),
    OtherClass("AutoencoderRAE", "for pictures of one size, to which its encoder brings all others", SIDES),
    OtherClass("AutoencoderVidTok", "which lengths of clips it takes is not known here", SIDES),
    OtherClass("ConsistencyDecoderVAE", "its decoder is a diffusion model, whose steps depend on values", ("encode",)),
    OtherClass("Kandinsky6SRVAE", f"its pixels are not in [-1, 1], and {_SEGMENTS}", SIDES),
    OtherClass("LTX2VideoDiffusionDecoderModel", "a diffusion model, without an encoder"),
    OtherClass("RFD4ProteinaAutoencoder", "of proteins"),
    *(
        OtherClass(name, "of sound")
        for name in (
            *("AutoencoderKLKVAEAudio", "AutoencoderKLMiniMaxH3Audio", "AutoencoderOobleck", "AutoencoderSAME"),
            *("Cosmos3AVAEAudioTokenizer", "LongCatAudioDiTVae", "MMAudioVAE", "MMAudioVocoder"),
            "MiniMaxMusic3Vocoder",
        )
    ),
)

OTHER_CLASSES: dict[str, OtherClass] = {one.class_name: one for one in sorted(_ALL, key=lambda one: one.class_name)}
"""By class, of diffusers 0.42."""


def describe() -> list[dict[str, Any]]:
    """A JSON-able row each, for `tvae models`."""
    return [{"class_name": name, "why": one.why, "runs": [*one.runs]} for name, one in OTHER_CLASSES.items()]


def why_other(class_name: str) -> str | None:
    """Why the command line does not take a class, and what does; None of a class that is not in this list."""
    other = OTHER_CLASSES.get(class_name)
    if other is None:
        return None
    runs = (
        f"from Python, TiledVAE runs its {' and its '.join(other.runs)}"
        if other.runs
        else "TiledVAE does not run it, either"
    )
    return f"{other.why}; {runs}"
