"""diffusion-pipe's arithmetic of videos: how many frames one has for it, and which of them it trains on.

Read at tdrussell/diffusion-pipe 8f83dbf25d03219df705570ec03e62be04bc402f (``utils/dataset``; ``models/base``,
``PreprocessMediaFile``). A video has its frames for a number of them a second, the model's. Frames come again where it
has fewer, and are left out where it has more.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tvae.pipeline.caches.spec import Size
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media.comfyui_frames import read_header, whole_count

__all__ = ["chosen", "clip_length", "is_same_rate", "is_video", "measured"]

_SUFFIXES = """
264 265 3g2 3gp a64 adp amr amv asf avc avi avr avs avs2 avs3 bmv cavs cdg cdxl cgi chk cif cpk dat dav dif
dnxhd dnxhr drc dv dvd f4v flm flv gsm gxf h261 h263 h264 h265 h26l hevc idf ifv imx ipu ism isma ismv ivf ivr
j2k kux lvf m1v m2t m2ts m2v m4a m4b m4v mj2 mjpeg mjpg mk3d mka mks mkv mods moflex mov mp4 mpc mpd mpeg mpg
mpo mts mvi mxf mxg nut obu ogg ogv psp qcif rcv rgb rm roq sdr2 ser sga svag svs ts ty ty+ v v210 vb vc1 vc2
viv vob webm wmv wtv xl xmv y4m yop yuv yuv10
"""
"""What imageio, which diffusion-pipe asks, takes for videos. Capitals count where all letters are."""
_KNOWN = {f".{one}" for one in _SUFFIXES.split()}
_VIDEOS = _KNOWN | {one.upper() for one in _KNOWN}
_STEP = 4
"""Clips have 1 more frame than a multiple of it, as the VAEs of Wan want."""


def is_video(path: Path) -> bool:
    """By its name, as the trainer tells."""
    return path.suffix in _VIDEOS


def measured(path: Path, fps: int) -> tuple[Size, int]:
    """Size and number of frames that the trainer takes a video to have, with ``fps`` a second. InputError for one that
    it cannot open, UsageError for one of which it cannot be told, or at which it stops."""
    header = read_header(path)
    size, frames = header.size, header.frames
    if path.suffix.lower() == ".mkv":
        frames, size = whole_count(path, patient=True)
    elif not frames:
        raise UsageError(
            f"{path}: the file does not say how many frames it has, and what diffusion-pipe then takes it to have "
            "depends on the version of ComfyUI; convert it to .mp4 or .mkv, or take it out of the folder"
        )
    if min(size) == 0:
        raise UsageError(f"{path}: a video without a frame, at which diffusion-pipe stops; take it out of the folder")
    if not header.rate:
        raise UsageError(f"{path}: the file does not say how many frames a second it has; convert it to .mp4")
    return size, _at(frames, header.rate, fps)


def clip_length(bucket: int) -> int:
    """Frames of a clip, of those that the bucket says."""
    return (bucket - 1) // _STEP * _STEP + 1


def is_same_rate(rate: Fraction, fps: int) -> bool:
    """Do all frames stay, each once?"""
    return float(rate) == fps


def chosen(count: int, rate: Fraction, fps: int, length: int, mode: str) -> list[int]:
    """Numbers of a clip's frames, in a video of ``count``. InputError where there are too few. mode: the trainer's
    *video_clip_mode*."""
    import torch

    there = _at(count, rate, fps)
    if there < length:
        raise InputError(
            f"it has {count} frames, which are {there} at {fps} a second, and its bucket wants {length}, at which "
            "diffusion-pipe stops: the file says that there are more; re-encode it, or take it out of the folder"
        )
    numbers = torch.linspace(0, count - 1, there).to(torch.int32)
    start = (there - length) // 2 if mode == "single_middle" else 0
    found: list[int] = numbers[start : start + length].tolist()
    return found


def _at(frames: int, rate: Fraction, fps: int) -> int:
    return int(frames * fps / float(rate))
