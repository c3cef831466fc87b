"""Images and videos in and out: frames stream one at a time, timestamps, colour and the other streams survive.

Reading::

    info = probe(path)                          # MediaInfo; InputError when it cannot be read
    with open_reader(path) as reader:           # image or video, by content, not by suffix
        for frame in reader:                    # Frame.rgb uint8 [H, W, 3], upright; Frame.pts in reader.info.time_base
            ...
    reader.warnings                             # what was done to the picture: "10-bit read as 8-bit", ...; complete at the end

A Reader is a plain generator in bounded memory (one frame ahead, plus the decoder's own); put your own thread and queue
around it. Its pts strictly increase, durations reach to the next frame. An image is one Frame with pts None. A file that
breaks in the middle raises InputError from the iteration: nothing of that item should be kept.

Writing::

    check_write_options(".mp4", options)        # UsageError before any work: codec not in this build, unknown --enc key, ...
    with open_writer(path, info.spec, options) as writer:   # PictureSpec also has to_json/from_json for latents' metadata
        writer.write(frame)                     # sizes must equal the spec's
        writer.commit()                         # fsync and rename; leaving the context without it removes the temporary
    writer.warnings                             # streams the container cannot take, timestamps that were rounded, ...

The suffix chooses: .png .jpg .jpeg .webp .bmp .tif .tiff write one image, .mp4 .m4v .mov .mkv .webm a video; IMAGE_SUFFIXES
and VIDEO_SUFFIXES list them. WriteOptions: codec, crf, pix_fmt, enc, fps, audio, colour (parse_colour reads --color).

The other streams (audio, subtitles)::

    warnings: list[str] = []
    side = copy_streams(video, folder / "streams", warnings)   # SideStreams, or None when there is nothing to keep
    index["side_streams"] = side.to_json()                     # JSON-able: files, codecs, languages, every packet's times
    side = SideStreams.from_json(index["side_streams"], folder)
    WriteOptions(audio=side)                                   # decode: muxed untouched into the output, in step
    WriteOptions(audio=video)                                  # roundtrip: straight from a media file

Pixels: frames_to_tensor / tensor_to_frames convert between frames and float32 [N, 3, H, W] in [-1, 1].

Only InputError (this file is bad) and UsageError (these options cannot work) are raised on purpose, one line each.
"""

from tvae.pipeline.media.colour import parse_colour
from tvae.pipeline.media.pixels import frames_to_tensor, tensor_to_frames
from tvae.pipeline.media.probe import open_reader, probe
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
from tvae.pipeline.media.streams import SideStreams, copy_streams
from tvae.pipeline.media.writers import IMAGE_SUFFIXES, VIDEO_SUFFIXES, check_write_options, open_writer

__all__ = [
    "IMAGE_SUFFIXES",
    "VIDEO_SUFFIXES",
    "Colour",
    "Frame",
    "MediaInfo",
    "PictureSpec",
    "Reader",
    "SideStreams",
    "StreamInfo",
    "WriteOptions",
    "Writer",
    "check_write_options",
    "copy_streams",
    "frames_to_tensor",
    "open_reader",
    "open_writer",
    "parse_colour",
    "probe",
    "tensor_to_frames",
]
