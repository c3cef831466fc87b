"""Every autoencoder class of diffusers: a family, or runs without being one, or is in a list with the reason."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from diffusers.models import autoencoders
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise, simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.outputs.taken_apart import flatten

Shape = tuple[int, ...]
Config = dict[str, Any]
_CONSISTENCY = {
    "encoder_block_out_channels": (32, 32),
    "encoder_down_block_types": ("DownEncoderBlock2D",) * 2,
    "encoder_norm_num_groups": 8,
    "encoder_layers_per_block": 1,
    "decoder_block_out_channels": (32, 32),
    "decoder_down_block_types": ("ResnetDownsampleBlock2D",) * 2,
    "decoder_up_block_types": ("ResnetUpsampleBlock2D",) * 2,
    "decoder_norm_num_groups": 8,
    "decoder_layers_per_block": 1,
}

OTHERS: dict[str, tuple[Config, Shape | None, Shape | None]] = {
    "AsymmetricAutoencoderKL": (
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "down_block_out_channels": (32, 32),
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "up_block_out_channels": (32, 32),
            "norm_num_groups": 8,
        },
        (1, 3, 24, 16),
        (1, 4, 12, 8),
    ),
    "AutoencoderKLKVAE": (
        {"channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1, "z_channels": 4, "ch_mult": (1, 2)},
        (1, 3, 24, 16),
        (1, 4, 12, 8),
    ),
    "AutoencoderKLKVAEVideo": (
        {"ch": 32, "ch_mult": (1, 2), "num_res_blocks": 1, "z_channels": 4, "temporal_compress_times": 2},
        (1, 3, 5, 24, 16),
        (1, 4, 3, 12, 8),
    ),
    "AutoencoderVidTok": (
        {
            **{"ch": 32, "ch_mult": [1, 2], "z_channels": 4, "num_res_blocks": 1},
            **{"spatial_ds": [0], "spatial_us": [1], "tempo_ds": [0], "tempo_us": [1]},
        },
        (1, 3, 5, 24, 16),
        (1, 4, 3, 12, 8),
    ),
    "AutoencoderKLQwenImage21": (
        {
            **{"base_dim": 16, "decoder_base_dim": 16, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1},
            **{"temperal_downsample": [False], "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
        },
        (1, 4, 1, 24, 16),
        (1, 4, 1, 12, 8),
    ),
    "Kandinsky6SRVAE": (
        {
            **{"latent_channels": 4, "encoder_block_out_channels": (16, 32), "decoder_block_out_channels": (16, 32)},
            **{"layers_per_block": 1, "temporal_compression_ratio": 1, "temporal_compression_start_level": 1},
        },
        (1, 3, 1, 24, 16),
        (1, 4, 1, 12, 8),
    ),
    "AutoencoderKLMiniMaxH3": (
        {
            **{"latent_channels": 4, "block_out_channels": (32, 32), "layers_per_block": 1, "norm_num_groups": 8},
            **{"spatial_downsample_factors": (2, 1), "temporal_downsample_factors": (1, 1)},
            **{"decoder_num_layers": 1, "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 16},
            **{"latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4},
        },
        (1, 3, 1, 24, 16),
        None,
    ),
    "ConsistencyDecoderVAE": (_CONSISTENCY, (1, 3, 24, 16), None),
}
"""Classes that are no family and run through ``TiledVAE`` all the same: configuration, and inputs of both sides. None:
a side that is in ``SIDES_LEFT_OUT``."""

SIDES_LEFT_OUT = {
    "AutoencoderKLMiniMaxH3": "its decoder is a transformer over clips of a fixed length",
    "ConsistencyDecoderVAE": "its decoder is a diffusion model, whose steps depend on values",
}
NEITHER = {
    "AutoencoderRAE": "its encoder is a vision transformer for pictures of one size, its decoder another",
    "LTX2VideoDiffusionDecoderModel": "a diffusion model",
    "RFD4ProteinaAutoencoder": "of proteins",
    **dict.fromkeys(
        [
            *("AutoencoderKLKVAEAudio", "AutoencoderKLLTX2Audio", "AutoencoderKLMiniMaxH3Audio", "AutoencoderOobleck"),
            *("AutoencoderSAME", "Cosmos3AVAEAudioTokenizer", "LongCatAudioDiTVae", "MMAudioVAE", "MMAudioVocoder"),
            "MiniMaxMusic3Vocoder",
        ],
        "of sound",
    ),
}


def test_no_class_of_diffusers_is_forgotten() -> None:
    members = inspect.getmembers(autoencoders, inspect.isclass)
    classes = {name for name, member in members if issubclass(member, nn.Module)}
    assert classes <= set(FAMILIES) | set(OTHERS) | set(NEITHER)
    assert not set(OTHERS) & set(NEITHER)
    assert {name for name, (_, *sides) in OTHERS.items() if None in sides} == set(SIDES_LEFT_OUT)


def built(name: str) -> nn.Module:
    if not hasattr(autoencoders, name):
        pytest.skip(f"this release of diffusers has no {name}")
    torch.manual_seed(0)
    model: nn.Module = getattr(autoencoders, name)(**OTHERS[name][0])
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if "norm" in parameter and weight.ndim == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


def called(model: nn.Module, side: Side, x: Tensor) -> list[Tensor]:
    return flatten(call_reference(model, side, x))[0]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["encode", "decode"])
@pytest.mark.parametrize("name", OTHERS)
def test_it_runs_in_strips(name: str, side: Side) -> None:
    shape = OTHERS[name][1 + (side == "decode")]
    if shape is None:
        pytest.skip(SIDES_LEFT_OUT[name])
    model, x = built(name), torch.randn(shape)
    wide = copy.deepcopy(model).double()
    with reference_mode(model):
        graph = simplify(capture(model, lambda x: called(model, side, x), [torch.zeros(shape)]))
    sizes = graph.bind([shape])
    assert sizes is not None
    assert graph.fixed is None
    program = lower(optimise(graph, subpixel=True, bias=False), sizes, x.device)
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers()), **graph.constants}
    with torch.no_grad(), reference_mode(wide):
        want = called(wide, side, x.double())[0]
    for strip in (2, 7):
        got = execute(schedule(program, strip), [x], weights)[0]
        assert (got.double() - want).norm() / want.norm() < 1e-5


@pytest.mark.slow
def test_a_decoder_whose_steps_depend_on_values_is_refused_by_name() -> None:
    model = built("ConsistencyDecoderVAE")
    with reference_mode(model), pytest.raises(UnsupportedOp, match="ConsistencyDecoderVAE"):
        capture(model, lambda x: called(model, "decode", x), [torch.zeros(1, 4, 12, 8)])
