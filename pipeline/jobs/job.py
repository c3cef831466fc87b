"""What a run is to do, as data: the command line fills a :class:`Job`, :func:`tvae.pipeline.jobs.run_job` does it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

from tvae.pipeline.caches.spec import WEBDATASET, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.devices.names import check_devices
from tvae.pipeline.jobs.geometry import ALIGNS, FITS, Align, Fit, Size
from tvae.pipeline.jobs.naming import check_naming
from tvae.pipeline.jobs.remote.refusals import check_urls
from tvae.pipeline.media.output_clock import check_rate
from tvae.pipeline.media.room import MAX_PIXELS
from tvae.pipeline.media.sandbox import SANDBOXES, SandboxMode
from tvae.pipeline.memory.amount import parse_size

__all__ = [
    "ALPHAS",
    "AUDIOS",
    "EXISTINGS",
    "OPERATIONS",
    "POSTERIORS",
    "SPACES",
    "SPLITS",
    "Alpha",
    "Audio",
    "Existing",
    "Job",
    "Listed",
    "Operation",
    "PosteriorKind",
    "Space",
    "Split",
    "fills_shards",
]

Operation = Literal["encode", "decode", "roundtrip", "cache"]
PosteriorKind = Literal["mean", "sample", "moments"]
Space = Literal["raw", "model"]
Audio = Literal["copy", "none"]
Alpha = Literal["keep", "drop"]
Existing = Literal["skip", "overwrite", "keep"]
"""Outputs that are there already: *skip* those made from the same source, VAE and options and make the others anew,
*overwrite* all, *keep* all whatever they hold."""

Split = Literal["auto", "items", "rows"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
POSTERIORS: tuple[PosteriorKind, ...] = get_args(PosteriorKind)
SPACES: tuple[Space, ...] = get_args(Space)
AUDIOS: tuple[Audio, ...] = get_args(Audio)
ALPHAS: tuple[Alpha, ...] = get_args(Alpha)
EXISTINGS: tuple[Existing, ...] = get_args(Existing)
SPLITS: tuple[Split, ...] = get_args(Split)


_URL = re.compile(r"[a-z][a-z0-9+.-]+:[/\\]", re.IGNORECASE)
"""How a URL begins once it has been taken for a path. A drive has one letter."""
_ONE_PROCESS = (
    "shards are filled in the order of the inputs by one process: leave --devices and --claim out (--device names one)"
)


def fills_shards(job: Job) -> bool:
    """Return whether a job caches into shards."""
    return job.cache is not None and job.cache.trainer == WEBDATASET


@dataclass(frozen=True)
class Listed:
    """A line of a list of inputs: a file, a folder or a pattern. One that leads to nothing fails alone.

    own: names the options that it has for itself; what is named twice, with different ones, is refused.
    """

    name: str
    own: int | None = None


@dataclass(frozen=True)
class Job:
    """One run over any number of inputs. Fields that an operation has no use for are ignored by it.

    Raises :class:`UsageError` for a value outside its range; whether files, VAE and preset exist shows when it runs.
    """

    operation: Operation
    inputs: tuple[str, ...]
    """Files, folders and glob patterns; for decode, latents. All of them must lead to something."""
    output: str | None = None
    """A folder, or one file by its suffix; None is the current folder."""
    listed: tuple[Listed, ...] = ()
    """More inputs."""
    naming: str | None = None
    """Template of outputs' names in a folder (``tvae.pipeline.jobs.naming``); suffixes are added. None:
    ``{folder}/{name}``."""
    recursive: bool = False
    """Go into the subfolders of named folders."""

    vae: str | None = None
    """``builtin``, a folder, a file or a hub id; None is ``builtin`` or, for decode, what the latents name."""
    vae_of: str | None = None
    """The public model that a file's VAE is of, such as ``sdxl``, where its tensors do not tell."""
    allow_pickle: bool = False
    """Take a file of ``torch.save`` as the VAE: plain tensors in it, and nothing else."""
    preset: str = "auto"
    dtype: str | None = None
    device: str | None = None
    devices: str | None = None
    """Several, which share the items: how many, such as ``4``, or their names, such as ``cuda:0,cuda:2``."""
    split: Split = "auto"
    """What several devices share: *items*, of which each has its own; *rows*, of each item; *auto*: rows where there
    are fewer items than devices and it is sooner done so (see ``tvae.pipeline.session.sharing_pays``)."""
    strip: int | None = None
    """Latent rows a strip; None leaves it to the preset."""
    vram: str | None = None
    """Memory to keep within, such as ``8GiB``; None is the preset's share of what is free."""
    spill: str | None = None
    """Folder for what does not fit into memory; None is the system's."""
    threads: int | None = None
    """That compute on a CPU, at most; None is PyTorch's own number, one for each core."""
    allow_whole: bool = False
    wait_for_kernels: bool = False
    """Compute nothing before the kernels of a new model are built; else pictures may be, by PyTorch's own
    operations."""
    batch: int | None = None
    """Pictures of one size that share a call, at most; None: as many as pays."""
    max_pixels: int = MAX_PIXELS
    """Of an image that is read: a small file can claim to be any size."""
    sandbox: SandboxMode = "auto"
    """Which files are decoded in processes of their own; see ``Sandbox``."""

    size: Size | None = None
    """To resize to; for decode, of the picture that another program's rows of tokens stand for; for cache, the
    resolution that the trainer is set to."""
    fit: Fit = "contain"
    align: Align = "pad"
    posterior: PosteriorKind = "mean"
    seed: int = 0
    space: Space = "raw"

    allow_other_vae: bool = False
    """Take latents of tvae for those of a VAE that did not make them, where its geometry is the same."""
    latents_space: Space | None = None
    """Of latents that other programs wrote, for decode: they do not say. None: there are none of those."""
    latents_key: str | None = None
    """The name of their tensor; None: a usual one, or the only one there is."""

    codec: str | None = None
    crf: float | None = None
    pix_fmt: str | None = None
    encoder_options: tuple[tuple[str, str], ...] = ()
    fps: Fraction | None = None
    """Constant frame rate to write; None keeps each frame's own timestamp."""
    audio: Audio = "copy"
    alpha: Alpha = "keep"
    """Of images: *keep* it in latents and in pictures whose format has it, or *drop* it."""
    color: str | None = None
    """Matrix and range to store a video in; None keeps the source's."""

    cache: CacheRequest | None = None
    """For cache, and it alone."""

    existing: Existing = "skip"
    claim: bool = False
    """Other runs have the same items, on this machine or on others that share the folder; each is done by one of
    them."""
    dry_run: bool = False
    exact: bool = False
    """A dry run also tells which outputs are outdated, and why, and which inputs cannot be read. It takes, for
    each item, a look at its first bytes and its output's, and PyTorch's import where there is an output to compare."""

    sharers: int = 1
    """Processes that compute on its device, this one included: each plans with its part of what is free."""
    recorded: bool = False
    """Events of images that are done say what a manifest says of their outputs (see ``Made``)."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("operation", OPERATIONS),
            ("fit", FITS),
            ("align", ALIGNS),
            ("posterior", POSTERIORS),
            ("space", SPACES),
            ("audio", AUDIOS),
            ("alpha", ALPHAS),
            ("existing", EXISTINGS),
            ("sandbox", SANDBOXES),
            ("split", SPLITS),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} '{getattr(self, name)}' is not one of {', '.join(allowed)}")
        if (self.cache is not None) != (self.operation == "cache"):
            raise UsageError("a cache is made by the operation cache, which has to know for which trainer (--for)")
        if not (self.inputs or self.listed):
            raise UsageError(f"nothing to {self.operation}: name a file, a folder or a pattern")
        if "" in self.inputs or self.output == "":
            which = "an input" if "" in self.inputs else "the output"
            raise UsageError(f"the name of {which} is empty, as that of a variable that is not set; '.' is this folder")
        if self.naming is not None:
            if self.operation == "cache":
                raise UsageError("a cache's files have the names that its trainer looks for; leave naming out")
            check_naming(self.naming)
        if self.allow_other_vae and self.vae is None:
            raise UsageError("--allow-other-vae takes a VAE that you name: pass --vae, too")
        if self.vae_of is not None and self.vae is None:
            raise UsageError("--vae-of says which model the file of --vae is of: pass --vae, too")
        if self.latents_space is not None and self.latents_space not in SPACES:
            raise UsageError(f"space '{self.latents_space}' is not one of {', '.join(SPACES)}")
        if self.latents_space is not None and self.vae is None:
            raise UsageError("latents of other programs do not say their VAE: pass --vae beside --space")
        if self.latents_key is not None and self.latents_space is None:
            raise UsageError("--key names a tensor of other programs' latents: pass --space and --vae, too")
        if self.operation == "decode" and self.size is not None and self.latents_space is None:
            raise UsageError("--size tells the shape of other programs' tokens: pass --space and --vae, too")
        if self.size is not None and min(self.size) < 1:
            raise UsageError(f"size {self.size[0]}x{self.size[1]} has no area; both sides must be at least 1")
        if self.devices is not None and self.device is not None:
            raise UsageError("--device and --devices cannot be used together")
        if self.split != "auto" and self.devices is None:
            raise UsageError(f"--split {self.split} says what several devices share: pass --devices, too")
        if self.split == "rows" and self.operation == "cache":
            raise UsageError("a cache is made of whole items; leave --split rows out")
        if self.devices is not None and self.claim:
            raise UsageError("--claim and --devices cannot be used together; run one command for each device")
        if fills_shards(self) and (self.devices is not None or self.claim):
            raise UsageError(_ONE_PROCESS)
        if self.existing == "overwrite" and self.claim:
            raise UsageError("with --claim each process would overwrite what another has made; set existing to skip")
        if self.devices is not None:
            check_devices(self.devices)
        if self.strip is not None and self.strip < 1:
            raise UsageError(f"strip {self.strip} is too small; it counts latent rows, at least 1")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads {self.threads} is too few; at least 1 computes")
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"batch {self.batch} is too small; name a number of pictures from 1 up, or auto")
        if self.max_pixels < 1:
            raise UsageError("the limit of an image's pixels must be at least 1")
        if self.vram is not None:
            parse_size(self.vram)
        if self.spill is not None and not Path(self.spill).is_dir():
            if _URL.match(str(self.spill)):
                raise UsageError("--spill must be a folder of this machine, not a URL")
            raise UsageError(f"the folder of --spill, {self.spill}, does not exist")
        check_urls(self)
        if self.fps is not None:
            check_rate(Fraction(self.fps))
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed {self.seed} is out of range; it must lie between 0 and 2^63 - 1")
