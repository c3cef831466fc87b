"""The public VAEs in their full width, from headers alone: every name of every layout goes where it belongs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import published_names as names
import pytest
import torch
from published_names import Weights
from published_names_ltx import ltx_090, ltx_091, ltx_095
from slow_but import slow_but

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import Header, TensorSpec
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.one_side import side_of
from tvae.pipeline.models.own_classes import class_named
from tvae.pipeline.models.single_file import Found, recognise

SD: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
SIXTEEN = {**SD, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}
UP_3: dict[str, Any] = {
    "decoder_block_out_channels": (256, 512, 1024),
    "decoder_spatio_temporal_scaling": (True, True, True),
    "upsample_residual": (True, True, True),
    "upsample_factor": (2, 2, 2),
    "timestep_conditioning": True,
}
LTX_091 = {**UP_3, "decoder_layers_per_block": (5, 6, 7, 8), "decoder_inject_noise": (True, True, True, False)}
LTX_095 = {
    **UP_3,
    "block_out_channels": (128, 256, 512, 1024, 2048),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "layers_per_block": (4, 6, 6, 2, 2),
    "decoder_layers_per_block": (5, 5, 5, 5),
    "spatio_temporal_scaling": (True, True, True, True),
    "decoder_inject_noise": (False, False, False, False),
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
}
LTX_23 = {
    "block_out_channels": (256, 512, 1024, 1024),
    "layers_per_block": (4, 6, 4, 2, 2),
    "decoder_block_out_channels": (256, 512, 512, 1024),
    "decoder_layers_per_block": (4, 6, 4, 2, 2),
    "decoder_spatio_temporal_scaling": (True, True, True, True),
    "decoder_inject_noise": (False,) * 5,
    "upsample_type": ("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
    "upsample_residual": (False,) * 4,
    "upsample_factor": (2, 2, 1, 2),
}
HUNYUAN_IMAGE = {
    **{"in_channels": 3, "out_channels": 3, "latent_channels": 64, "layers_per_block": 2, "sample_size": 384},
    **{"block_out_channels": (128, 256, 512, 512, 1024, 1024), "spatial_compression_ratio": 32},
    "scaling_factor": 0.75289,
}
WAN_22 = {
    "base_dim": 160,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "decoder_base_dim": 256,
    "patch_size": 2,
}
TAE_LTX = {"patch_size": 4, "latent_channels": 128, "encoder_time": (2, 2, 2), "decoder_time": (2, 2, 2)}
TAE_SUPER = {"patch_size": 2, "latent_channels": 32, "decoder_widths": (512, 256, 128, 64), "large": True}
Renaming = Callable[[Weights], Weights]
PUBLIC: dict[str, tuple[str, dict[str, Any], Renaming, str | None]] = {
    "sdxl": ("AutoencoderKL", SD, names.latent_diffusion, None),
    "flux": ("AutoencoderKL", SIXTEEN, names.latent_diffusion, None),
    "flux2": ("AutoencoderKLFlux2", {}, names.black_forest_labs, None),
    "flux2, another decoder": (
        "AutoencoderKLFlux2",
        {"decoder_block_out_channels": (64, 128, 256, 256)},
        names.black_forest_labs,
        None,
    ),
    "wan 2.1": ("AutoencoderKLWan", {}, names.wan_21, None),
    "wan 2.2": ("AutoencoderKLWan", WAN_22, names.wan_22, None),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {}, names.hunyuan_in_comfyui, None),
    "hunyuan 1.5": ("AutoencoderKLHunyuanVideo15", {}, names.hunyuan_15, "hunyuanvideo1.5"),
    "hunyuanimage": ("AutoencoderKLHunyuanImage", HUNYUAN_IMAGE, names.hunyuan_image, None),
    "hunyuanimage's refiner": (
        "AutoencoderKLHunyuanImageRefiner",
        {},
        names.hunyuan_15,
        "hunyuanimage-refiner",
    ),
    "cogvideox": ("AutoencoderKLCogVideoX", {}, names.cogvideox, None),
    "mochi": ("AutoencoderKLMochi", {}, names.mochi, None),
    "cosmos": ("AutoencoderKLCosmos", {}, names.cosmos, None),
    "cosmos in ComfyUI": ("AutoencoderKLCosmos", {}, names.cosmos_in_comfyui, None),
    "taesd": ("AutoencoderTiny", {}, names.taesd_in_comfyui, None),
    "taef1": ("AutoencoderTiny", {"latent_channels": 16}, names.taesd_in_comfyui, None),
    "taew2.1": ("TAEHV", {}, dict, "taew2.1"),
    "taecvx": ("TAECVX", {}, dict, "taecvx"),
    "taew2.2": ("TAEHV", {"patch_size": 2, "latent_channels": 48}, dict, None),
    "taehv1.5 super": ("TAEHV", TAE_SUPER, dict, None),
    "taeltx2": ("TAEHV", TAE_LTX, dict, None),
    "ltx 0.9.0": ("AutoencoderKLLTXVideo", {}, ltx_090, None),
    "ltx 0.9.1": ("AutoencoderKLLTXVideo", LTX_091, ltx_091, None),
    "ltx 0.9.5": ("AutoencoderKLLTXVideo", LTX_095, ltx_095, None),
    "ltx 2": ("AutoencoderKLLTX2Video", {"decoder_causal": False}, ltx_095, None),
    "ltx 2.3": ("AutoencoderKLLTX2Video", LTX_23, ltx_095, None),
}


_MADE: dict[str, Weights] = {}


def shapes_of(class_name: str, config: dict[str, Any]) -> Weights:
    """Without memory. Made once: large models take a second."""
    key = f"{class_name} {config}"
    if key not in _MADE:
        found = class_named(class_name)
        assert found is not None
        with torch.device("meta"):
            _MADE[key] = dict(found(**config).state_dict())
    return dict(_MADE[key])


def known(stored: Weights, of: str | None = None, prefix: str = "") -> Found:
    specs = {prefix + name: TensorSpec("BF16", tuple(value.shape)) for name, value in stored.items()}
    return recognise(Header(specs, {}), Path("vae.safetensors"), of)


LARGE = {"cogvideox", "mochi", "ltx 0.9.0", "ltx 0.9.1", "ltx 0.9.5", "ltx 2", "hunyuan 1.5", "hunyuanimage's refiner"}
EACH = list(product(PUBLIC, ("diffusers", "its own")))


@pytest.mark.parametrize(
    ("name", "renamed"), slow_but([one for one in EACH if one[0] not in LARGE or one[1] == "its own"], EACH)
)
def test_every_name_goes_where_it_belongs(name: str, renamed: str) -> None:
    """What the module's tensor is called in the file, and which part of the stored one it is."""
    class_name, config, publish, of = PUBLIC[name]
    own = shapes_of(class_name, config)
    stored = publish(own) if renamed == "its own" else own
    found = known(stored, of, "vae.")
    assert found.class_name == class_name
    assert found.pieces.keys() == own.keys() if class_name != "AutoencoderKLFlux2" else own.keys() & found.pieces.keys()
    markers = {key: torch.empty_like(value, device="meta") for key, value in own.items()}
    by_id = {id(value): key for key, value in markers.items()}
    if renamed == "diffusers":
        assert all(piece.stored == f"vae.{key}" for key, piece in found.pieces.items())
        return
    for stored_name, value in publish(markers).items():
        key = by_id.get(id(value))
        if key is not None and key in found.pieces:  # a tensor that is stored as it is
            piece = found.pieces[key]
            assert (piece.stored, piece.parts) == (f"vae.{stored_name}", 1), key
    assert all(math.prod(piece.shape) == own[key].numel() for key, piece in found.pieces.items())


@pytest.mark.parametrize("name", slow_but([name for name in PUBLIC if name not in LARGE], PUBLIC))
def test_what_a_configuration_says_is_the_published_one(name: str) -> None:
    class_name, config, publish, of = PUBLIC[name]
    found = known(publish(shapes_of(class_name, config)), of)
    for key, value in config.items():
        own = found.config[key]
        assert (list(own) if isinstance(own, tuple | list) else own) == (
            list(value) if isinstance(value, tuple) else value
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),
    slow_but([(name, 0) for name in PUBLIC if name not in LARGE], product(PUBLIC, range(3))),
)
def test_a_name_less_or_more_is_refused(name: str, seed: int) -> None:
    class_name, config, publish, of = PUBLIC[name]
    stored = publish(shapes_of(class_name, config))
    key = random.Random(f"{name} {seed}").choice([key for key, value in stored.items() if value.ndim])
    less = {other: value for other, value in stored.items() if other != key}
    if not key.startswith(("loss.", "per_channel_statistics.mean-of-st", "per_channel_statistics.ch")) and not any(
        part in key for part in ("wavelets", "_arange", "patch_size_buffer")
    ):
        with pytest.raises(UsageError, match="no VAE that tvae knows"):
            known(less, of)
    with pytest.raises(UsageError, match="left over"):
        known({**stored, f"{key}.more": torch.empty(3)}, of)


def test_a_number_that_the_model_computes_with_is_no_counter() -> None:
    """FLUX.2's files may leave a counter out; LTX-Video's scale of time is a weight of one value."""
    own = shapes_of("AutoencoderKLFlux2", {})
    without = {k: v for k, v in own.items() if not k.endswith("num_batches_tracked")}
    assert known(without).pieces.keys() == without.keys()
    own = shapes_of("AutoencoderKLLTXVideo", LTX_091)
    assert known(own).pieces["decoder.timestep_scale_multiplier"].shape == ()
    with pytest.raises(UsageError, match=r"1 missing \(decoder\.timestep_scale_multiplier\)"):
        known({k: v for k, v in own.items() if k != "decoder.timestep_scale_multiplier"})


def test_models_that_compute_otherwise_are_not_guessed() -> None:
    """HunyuanImage's refiner has the tensors of HunyuanVideo 1.5, in all names: the user says which it is."""
    own = shapes_of("AutoencoderKLHunyuanVideo15", {})
    assert {k: v.shape for k, v in own.items()} == {
        k: v.shape for k, v in shapes_of("AutoencoderKLHunyuanImageRefiner", {}).items()
    }
    both = "pass --vae-of hunyuanvideo1.5 or --vae-of hunyuanimage-refiner"
    for stored in (own, names.hunyuan_15(own)):
        with pytest.raises(UsageError, match=f"have the same tensors and are not the same; {both}"):
            known(stored)
        found = [known(stored, of).class_name for of in ("hunyuanvideo1.5", "hunyuanimage-refiner")]
        assert found == ["AutoencoderKLHunyuanVideo15", "AutoencoderKLHunyuanImageRefiner"]


def test_small_vaes_of_several_models() -> None:
    """Four of TAEHV's files have the same layers, and CogVideoX's computes otherwise; MiniMax H3's is not run."""
    own = shapes_of("TAEHV", {})
    with pytest.raises(UsageError, match=r"pass --vae-of taehv or --vae-of taew2.1 or .* or --vae-of taecvx"):
        known(own)
    assert known(own, "taeos1.3").class_name == "TAEHV"
    assert known(shapes_of("TAEHV", TAE_LTX)).kin[0].key == "taeltx2"
    assert known(shapes_of("TAEHV", TAE_SUPER)).kin[0].key == "taehv1.5"
    with pytest.raises(UsageError, match="no VAE that tvae knows"):
        known(shapes_of("TAEHV", {"patch_size": 2, "latent_channels": 24}))
    with pytest.raises(UsageError, match="no VAE that tvae knows"):  # sides with other steps in time
        known(shapes_of("TAEHV", {"decoder_time": (2, 2, 2)}))


def test_no_other_class_has_the_tensors_of_a_listed_one() -> None:
    """But Wan 2.1's and Qwen-Image's, which are one model, and the refiner above."""
    from diffusers.models import autoencoders

    listed = {name for name, family in FAMILIES.items() if family.layouts} - {"AutoencoderKL"}
    public = {"AutoencoderKLHunyuanImage": HUNYUAN_IMAGE}  # which has no defaults
    defaults = {
        name: frozenset((k, v.shape) for k, v in shapes_of(name, public.get(name, {})).items()) for name in listed
    }
    others = set(dir(autoencoders)) - listed
    pairs = set()
    for other in others:
        if not other.startswith("AutoencoderKL") or "Audio" in other:
            continue
        try:
            shapes = frozenset((k, v.shape) for k, v in shapes_of(other, {}).items())
        except TypeError:  # it has no default configuration
            continue
        pairs |= {(name, other) for name, own in defaults.items() if own == shapes}
    assert pairs == {
        ("AutoencoderKLWan", "AutoencoderKLQwenImage"),
        ("AutoencoderKLHunyuanVideo15", "AutoencoderKLHunyuanImageRefiner"),
    }


def test_a_published_file_is_known_by_its_sha256() -> None:
    """Asked for only where the layers leave it open."""
    own = shapes_of("AutoencoderKL", SD)
    header = Header({k: TensorSpec("F32", tuple(v.shape)) for k, v in own.items()}, {})
    known_files = {digest: kin for kin in FAMILIES["AutoencoderKL"].kin for digest in kin.files}
    digest = "63aeecb90ff7bc1c115395962d3e803571385b61938377bc7089b36e81e92e2e"
    found = recognise(header, Path("x"), sha256=lambda: digest)
    assert (found.config["scaling_factor"], found.space_unknown) == (0.13025, None)
    assert found.why == "by its sha256: SDXL"
    assert recognise(header, Path("x"), sha256=lambda: "0" * 64).space_unknown is not None
    assert recognise(header, Path("x"), "sd1", lambda: pytest.fail("asked")).config["scaling_factor"] == 0.18215
    assert all(len(digest) == 64 for digest in known_files)
    wan = {k: TensorSpec("F32", tuple(v.shape)) for k, v in shapes_of("AutoencoderKLWan", {}).items()}
    assert recognise(Header(wan, {}), Path("x"), sha256=lambda: pytest.fail("asked")).space_unknown is None


ALIKE = {("ltx 0.9.0", "encode"), ("ltx 0.9.1", "encode"), ("ltx 0.9.5", "encode"), ("ltx 2", "encode")}
"""Sides that two models have alike and compute with in other ways."""


@pytest.mark.parametrize(
    ("name", "renamed"),
    slow_but([(n, True) for n in ("sdxl", "flux2, another decoder", "taew2.1")], [*product(PUBLIC, (True, False))]),
)
def test_public_sides_are_known_or_told_to_be_alike(name: str, renamed: bool) -> None:
    class_name, config, publish, of = PUBLIC[name]
    own = shapes_of(class_name, config)
    full = publish(own) if renamed else own
    for side in ("encode", "decode"):
        absent = "decode" if side == "encode" else "encode"
        drop = {id(v) for k, v in own.items() if side_of(k) == absent}
        words = (f"{absent[:2]}coder.", f"taesd_{absent[:2]}coder.")
        kept = {k: v for k, v in full.items() if id(v) not in drop and not k.startswith(words)}
        if (name, side) in ALIKE:
            with pytest.raises(UsageError, match="have such a side; take a file that has the decoder, too"):
                known(kept, of)
            continue
        found = known(kept, of)
        assert (found.class_name, found.absent) == (class_name, absent)
        assert not any(side_of(k) == absent for k in found.pieces)
        assert all(tuple(own[k].shape) == piece.shape for k, piece in found.pieces.items())
