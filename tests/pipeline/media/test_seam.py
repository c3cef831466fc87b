from fractions import Fraction

import tvae.pipeline.media as media
from tvae.pipeline.media import Colour, PictureSpec


def test_everything_promised_is_there() -> None:
    assert [name for name in media.__all__ if not hasattr(media, name)] == []
    assert all(name in (media.__doc__ or "") for name in ("open_reader", "open_writer", "copy_streams", "probe"))


def test_a_picture_can_be_described_by_json_alone() -> None:
    spec = PictureSpec(320, 568, Fraction(1, 19200), Fraction(30000, 1001), Fraction(4, 3), Colour("bt709", "tv"))
    assert PictureSpec.from_json(spec.to_json()) == spec
    assert PictureSpec.from_json({"width": 8, "height": 4}) == PictureSpec(8, 4)
    assert PictureSpec.from_json(PictureSpec(8, 4).to_json()) == PictureSpec(8, 4)
