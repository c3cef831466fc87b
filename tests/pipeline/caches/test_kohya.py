"""Names, keys, types and shapes of sd-scripts' .npz files."""

from __future__ import annotations

import numpy as np
import pytest
from cache_subjects import files_of

from tvae.pipeline.files.stored import Arrays

CHANNELS = {"sd": 4, "sdxl": 4, "sd3": 16, "flux": 16, "lumina": 16, "hi": 64, "anima": 16}


@pytest.mark.parametrize(("name", "channels"), CHANNELS.items())
@pytest.mark.parametrize("flip", [False, True])
def test_golden(name: str, channels: int, flip: bool) -> None:
    """Anima's latents have no frames either: sd-scripts stacks them with those that it encodes itself."""
    ((file, stored),) = files_of("kohya", name, flip=flip).items()
    assert file == f"sub/a.b_0100x0080_{name}.npz"
    assert isinstance(stored, Arrays)
    end = "" if name in ("sd", "sdxl") else "_6x8"
    wanted = {
        f"latents{end}": ((channels, 6, 8), np.dtype(np.float32)),
        f"original_size{end}": ((2,), np.dtype(np.int64)),
        f"crop_ltrb{end}": ((4,), np.dtype(np.float64)),
    }
    if flip:
        wanted[f"latents_flipped{end}"] = wanted[f"latents{end}"]
    assert {key: (value.shape, value.dtype) for key, value in stored.arrays.items()} == wanted
    assert stored.arrays[f"original_size{end}"].tolist() == [100, 80]
    assert stored.arrays[f"crop_ltrb{end}"].tolist() == [2.0, 0, 62.0, 48]
    assert (stored.arrays[f"latents{end}"] == 0).all()
    assert not flip or (stored.arrays[f"latents_flipped{end}"] == 1).all()


@pytest.mark.parametrize("name", CHANNELS)
def test_the_mask(name: str) -> None:
    """As sd-scripts makes it of the pixels: alpha of 255 is exactly 1."""
    alpha = np.arange(48 * 64, dtype=np.uint32).reshape(48, 64).astype(np.uint8)
    (plain,) = files_of("kohya", name, flip=True).values()
    (stored,) = files_of("kohya", name, flip=True, alpha=alpha).values()
    assert isinstance(plain, Arrays)
    assert isinstance(stored, Arrays)
    key = "alpha_mask" + ("" if name in ("sd", "sdxl") else "_6x8")
    assert stored.arrays.keys() == {*plain.arrays, key}
    assert (stored.arrays[key].shape, stored.arrays[key].dtype) == ((48, 64), np.dtype(np.float32))
    assert (stored.arrays[key] == alpha.astype(np.float32) / 255.0).all()
