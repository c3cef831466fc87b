"""``tvae doctor``: what this machine can do, and what is known to go wrong with what is installed."""

from __future__ import annotations

import sys
from typing import Any, Literal

from tvae.cli import options
from tvae.cli.reporting import reporting

__all__ = ["doctor"]

VIDEO_ENCODERS = ("libx264", "libx265", "libsvtav1", "libaom-av1", "libvpx-vp9", "libopenh264", "mpeg4", "ffv1")
HARDWARE_ENCODERS = ("h264_nvenc", "hevc_nvenc", "av1_nvenc", "h264_qsv", "h264_amf", "h264_videotoolbox")
DECODERS = ("h264", "hevc", "av1", "libdav1d", "vp9", "mpeg4", "mjpeg", "png")

FP8_CAPABILITY = (8, 9)
"""Ada is the first to multiply matrices in 8-bit floating point."""


def doctor(
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Show what this machine has (PyTorch, devices, memory, codecs, kernel levels), and known faults of it."""
    with reporting(verbose, json, quiet=quiet):
        from tvae.cli.table import emit

        emit("doctor", _examine(), json)


def _examine() -> dict[str, Any]:
    import os
    import platform
    from importlib.metadata import version

    import av
    import torch

    report: dict[str, Any] = {
        "tvae": version("tvae"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "torch": {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "cudnn": _dotted(torch.backends.cudnn.version()),
            "threads": torch.get_num_threads(),
        },
        "diffusers": version("diffusers"),
        "devices": _devices(),
        "media": {
            "av": av.__version__,
            "ffmpeg": _ffmpeg(),
            "encoders": [name for name in VIDEO_ENCODERS if _has_codec(name, "w")],
            "hardware encoders": [name for name in HARDWARE_ENCODERS if _opens(name)],
            "decoders": [name for name in DECODERS if _has_codec(name, "r")],
        },
        "kernels": _kernels(),
        "notes": [],
    }
    report["notes"] = [*_torch_faults(), *_media_faults(report["media"]), *_python_faults()]
    if os.name == "nt":
        report["notes"] += [
            "Windows: reading and writing use at most 2 workers; antivirus scanning of the output folder costs time",
            "Windows: the driver may move GPU memory to the host silently instead of failing; watch the plan's peak",
        ]
    return report


def _devices() -> list[dict[str, Any]]:
    """Each with what ``auto`` would choose on it; the CPU comes last."""
    import torch

    from tvae import presets

    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        try:
            capability = torch.cuda.get_device_capability(index)
            free, total = torch.cuda.mem_get_info(index)
        except RuntimeError as error:  # a card that is there but cannot be used is what a doctor is asked about
            found.append({"device": f"cuda:{index}", "fault": str(error).splitlines()[0]})
            continue
        found.append(
            {
                "device": f"cuda:{index}",
                "name": torch.cuda.get_device_name(index),
                "capability": ".".join(map(str, capability)),
                "free": _gib(free),
                "total": _gib(total),
                "bfloat16": capability >= (8, 0),
                "fp8": capability >= FP8_CAPABILITY and hasattr(torch, "float8_e4m3fn"),
                "preset": presets.choose("cuda", capability, free).name,
            }
        )
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "preset": presets.choose("mps").name, "note": "untested"})
    if torch.xpu.is_available():
        found.append({"device": "xpu", "preset": presets.choose("xpu").name, "note": "untested"})
    free_host = _free_host_memory()
    found.append(
        {
            "device": "cpu",
            "name": torch.backends.cpu.get_cpu_capability(),
            "free": _gib(free_host) if free_host is not None else None,
            "fp8": False,
            "preset": presets.choose("cpu", None, free_host).name,
        }
    )
    return found


def _kernels() -> dict[str, str]:
    """Each level, and cuDNN's frontend, for what the level cuda has no kernel of its own for: whether it runs here."""
    from tvae.kernels import LEVELS, cudnn_frontend, why_missing

    found = {level: why_missing(level) or "runs here" for level in LEVELS}
    return {**found, "cudnn": cudnn_frontend.missing() or "runs here"}


def _torch_faults() -> list[str]:
    """Faults of versions, each with the report that describes it."""
    import torch

    notes = []
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    if cudnn is not None and torch.version.hip is None:
        if release >= (2, 9) and cudnn < 91500:
            notes.append(
                f"torch {torch.__version__} with cuDNN {_dotted(cudnn)}: 3-D convolutions in bfloat16 and float16 "
                "bypass cuDNN and need several times the memory (video VAEs); install nvidia-cudnn 9.15 or later "
                "(pytorch/pytorch#166643)"
            )
        if release < (2, 9) and 90800 <= cudnn < 91300:
            notes.append(
                f"cuDNN {_dotted(cudnn)}: 3-D convolutions in bfloat16 can give wrong results (video VAEs); install "
                "nvidia-cudnn 9.13 or later (pytorch/pytorch#163539)"
            )
    if torch.cuda.is_available() and torch.version.cuda and not _built_for_this_card():
        notes.append("this torch was not built for this card: it compiles at first use or fails; install a newer one")
    return notes


def _built_for_this_card() -> bool:
    """Binaries run on later cards of the same major capability: sm_80 on 8.6, sm_90a on 9.0."""
    import re

    import torch

    major, _ = torch.cuda.get_device_capability()
    numbers = (re.search(r"_(\d+)\d", arch) for arch in torch.cuda.get_arch_list())
    return any(number and int(number[1]) == major for number in numbers)


def _media_faults(media: dict[str, Any]) -> list[str]:
    if "libx264" in media["encoders"]:
        return []
    return ["this build of PyAV lacks libx264: videos are written with the next best encoder; PyPI's wheels have it"]


def _python_faults() -> list[str]:
    import importlib.util
    import os

    import torch

    kept = importlib.util.cache_from_source(torch.__file__)
    if os.path.exists(kept):
        return []
    why = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else f"there is no {kept}"
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    return [
        f"Python has kept no compiled files of PyTorch ({why}): every command compiles what it imports, which takes "
        f"seconds; run python -m compileall -q {packages} once"
    ]


def _has_codec(name: str, mode: Literal["r", "w"]) -> bool:
    """Whether FFmpeg was built with it."""
    import av.codec

    try:
        av.codec.Codec(name, mode)
    except av.codec.codec.UnknownCodecError:
        return False
    return True


def _opens(name: str) -> bool:
    """Whether an encoder begins to encode here: FFmpeg may have one that needs another driver or card."""
    from fractions import Fraction

    import av

    if not _has_codec(name, "w"):
        return False
    context: Any = av.CodecContext.create(name, "w")
    context.width, context.height, context.time_base = 320, 240, Fraction(1, 25)
    context.pix_fmt = "nv12" if name.endswith("_qsv") else "yuv420p"
    try:
        context.open()
    except (OSError, av.FFmpegError):
        return False
    return True


def _ffmpeg() -> str:
    import av

    return ", ".join(f"{name} {'.'.join(map(str, parts))}" for name, parts in sorted(av.library_versions.items()))


def _free_host_memory() -> int | None:
    """Bytes a new program may use; None where the system has no simple answer."""
    import os
    from pathlib import Path

    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _dotted(version: int | None) -> str | None:
    """cuDNN 9 counts 91002 for 9.10.2."""
    return None if version is None else f"{version // 10000}.{version // 100 % 100}.{version % 100}"
