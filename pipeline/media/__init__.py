"""Images and videos in and out: frames stream one at a time; timestamps, colour and the other streams survive.

Reading::

    info = probe(path)                      # MediaInfo; InputError when it cannot be read
    with open_reader(path) as reader:       # image or video, by content, not by suffix
        for frame in reader:                # Frame.rgb uint8 [H, W, 3], upright; .pts in reader.info.time_base
            ...
    reader.warnings                         # "10-bit values read as 8-bit", ...; complete only at the end

A Reader is a plain generator in bounded memory (it is one frame ahead, plus the decoder's own); put your own thread
and queue around it. Its pts strictly increase, durations reach to the next frame. An image is one Frame with pts None.
A file that breaks in the middle raises InputError from the iteration: nothing of that item should be kept.

Writing::

    check_write_options(".mp4", options)    # UsageError before any work: no such codec, unknown --enc key, ...
    with open_writer(path, info.spec, options) as writer:
        writer.write(frame)                 # of the spec's size
        writer.commit()                     # fsync and rename; leaving the context without it removes the temporary
    writer.warnings                         # streams the container cannot take, rounded timestamps, ...

open_parted_writer() gives one whose finished parts survive an interruption: end_part() ends one, adopt() takes over
those of an earlier run.

The PictureSpec (here ``info.spec``) has to_json / from_json, for the metadata of latents. The suffix chooses
the format, and with it whether one image or a video is written; ``formats`` has the table of all formats. WriteOptions:
codec, crf, pix_fmt, enc, fps, audio, tags, colour (parse_colour reads ``--color``), fingerprint (what read_fingerprint
gives back of the file); see open_writer.

The other streams (audio, subtitles, further pictures, data, the cover, fonts), chapters and metadata::

    side = copy_streams(video, folder / "streams", warnings)   # SideStreams; None when there is nothing to keep
    index["side_streams"] = side.to_json()                     # files, codecs, languages, every packet's times
    side = SideStreams.from_json(index["side_streams"], folder)
    WriteOptions(audio=side)                                   # decode: muxed untouched into the output, in step
    WriteOptions(audio=video_path)                             # roundtrip: straight from the source
    WriteOptions(tags=read_tags(video, warnings))              # ClipTags; to_json / from_record

Pixels: frames_to_tensor and tensor_to_frames convert between frames and [N, 3, H, W] in [-1, 1] on any device.

Raised on purpose, one line each: InputError (this file is bad), UsageError (these options cannot work), and OutputError
where this output cannot be written, or a disk fails half-way through writing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tvae.pipeline.media.colour import parse_colour
from tvae.pipeline.media.parted_write import PartedVideoWriter
from tvae.pipeline.media.probe import count_frames, open_reader, probe
from tvae.pipeline.media.room import MAX_PIXELS
from tvae.pipeline.media.spec import (
    Colour,
    Frame,
    MediaInfo,
    PictureSpec,
    Reader,
    StreamInfo,
    WriteOptions,
    Writer,
)
from tvae.pipeline.media.stream_copy import copy_streams
from tvae.pipeline.media.streams import SideStreams
from tvae.pipeline.media.tags import ClipTags, read_tags
from tvae.pipeline.media.writers import (
    check_write_options,
    open_parted_writer,
    open_writer,
    read_fingerprint,
)

if TYPE_CHECKING:
    from tvae.pipeline.media.pixel_rows import PixelRows, PixelSink
    from tvae.pipeline.media.pixels import (
        check_finite,
        frames_to_tensor,
        levels_to_device,
        tensor_to_frames,
        tensor_to_levels,
    )

__all__ = [
    "MAX_PIXELS",
    "ClipTags",
    "Colour",
    "Frame",
    "MediaInfo",
    "PartedVideoWriter",
    "PictureSpec",
    "PixelRows",
    "PixelSink",
    "Reader",
    "SideStreams",
    "StreamInfo",
    "WriteOptions",
    "Writer",
    "check_finite",
    "check_write_options",
    "copy_streams",
    "count_frames",
    "frames_to_tensor",
    "levels_to_device",
    "open_parted_writer",
    "open_reader",
    "open_writer",
    "parse_colour",
    "probe",
    "read_fingerprint",
    "read_tags",
    "tensor_to_frames",
    "tensor_to_levels",
]


def __getattr__(name: str) -> Any:
    # PyTorch takes a second to import, and the processes of the sandbox do without
    if name in __all__:
        for module in ("pixels", "pixel_rows"):
            home = importlib.import_module(f"{__name__}.{module}")
            if name in home.__all__:
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
