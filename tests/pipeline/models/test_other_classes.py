"""Every autoencoder class of diffusers: a family, or in the list of others, which says the truth of each."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models import autoencoders
from PIL import Image
from program import invoke
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import TvaeError, UnsupportedOp, UsageError
from tvae.pipeline.models.calls import SIDES, Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.geometry import geometry_of
from tvae.pipeline.models.other_classes import OTHER_CLASSES, describe, why_other
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.outputs import flatten

Shape = tuple[int, ...]
Config = dict[str, Any]
WRITTEN_FOR = (0, 42)
"""The release of diffusers whose classes the list has: one before may lack some of them."""
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

CASES: dict[str, tuple[Config, Shape, Shape]] = {
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
    "ConsistencyDecoderVAE": (_CONSISTENCY, (1, 3, 24, 16), (1, 4, 12, 8)),
    "AutoencoderKLLTX2Audio": (
        {
            **{"base_channels": 32, "ch_mult": (1, 2), "num_res_blocks": 1, "resolution": 16},
            **{"latent_channels": 4, "mel_bins": 16},
        },
        (1, 2, 20, 16),
        (1, 4, 7, 4),
    ),
    "AutoencoderRAE": (
        {
            **{"encoder_type": "mae", "encoder_hidden_size": 64, "encoder_patch_size": 8, "encoder_input_size": 32},
            **{"encoder_num_hidden_layers": 1, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1},
            **{"decoder_num_attention_heads": 4, "decoder_intermediate_size": 32, "patch_size": 8},
        },
        (1, 3, 32, 32),
        (1, 64, 4, 4),
    ),
}
"""Of those of which a side runs: configuration, and inputs of both sides."""

RELEASED_TILED = {"AutoencoderKLMiniMaxH3"}
"""Classes whose constructor switches blended tiling on."""
WITHOUT_DEFAULTS = {"RFD4ProteinaAutoencoder"}
"""Classes that cannot be built from a configuration of defaults; `AutoencoderKLHunyuanImage` has a tiny one."""
OF_ONE_SIZE = {"AutoencoderRAE"}
RUN = [(name, side) for name, other in OTHER_CLASSES.items() for side in other.runs]
NOT_RUN = [(name, side) for name in CASES for side in SIDES if (name, side) not in RUN]


def of_diffusers() -> set[str]:
    members = inspect.getmembers(autoencoders, inspect.isclass)
    return {name for name, member in members if issubclass(member, nn.Module)}


def test_no_class_of_diffusers_is_forgotten_or_gone() -> None:
    classes = of_diffusers()
    assert classes <= {*FAMILIES, *OTHER_CLASSES}
    assert not {*FAMILIES} & {*OTHER_CLASSES}
    if tuple(map(int, importlib.metadata.version("diffusers").split(".")[:2])) >= WRITTEN_FOR:
        assert {*OTHER_CLASSES} <= classes


def test_the_list_says_something_of_each_and_of_no_other() -> None:
    rows = describe()
    assert [row["class_name"] for row in rows] == sorted(OTHER_CLASSES)
    assert all(row["why"] and set(row["runs"]) <= set(SIDES) for row in rows)
    assert {name for name, other in OTHER_CLASSES.items() if other.runs} == set(CASES)
    assert why_other("AutoencoderOobleck") == "of sound; TiledVAE does not run it, either"
    assert str(why_other("ConsistencyDecoderVAE")).endswith("; from Python, TiledVAE runs its encode")
    assert str(why_other("AutoencoderKLMiniMaxH3")).endswith("supported yet; TiledVAE does not run it, either")
    assert why_other("AutoencoderKL") is None


@pytest.mark.parametrize("name", OTHER_CLASSES)
def test_the_command_line_says_why_it_does_not_take_one(name: str) -> None:
    def never() -> nn.Module:
        raise AssertionError("nothing is loaded to say so")

    with pytest.raises(UsageError, match=rf"^'{name}' is not among .*: ") as error:
        geometry_of(name, {}, never)
    assert OTHER_CLASSES[name].why in str(error.value)


def built(name: str) -> nn.Module:
    if not hasattr(autoencoders, name):
        pytest.skip(f"this release of diffusers has no {name}")
    torch.manual_seed(0)
    model: nn.Module = getattr(autoencoders, name)(**CASES[name][0])
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if "norm" in parameter and weight.ndim == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


def called(model: nn.Module, side: Side, x: Tensor) -> Tensor:
    return flatten(call_reference(model, side, x))[0][0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), RUN)
def test_it_runs_in_strips(name: str, side: Side) -> None:
    model, shape = built(name), CASES[name][1 + (side == "decode")]
    x, wide = torch.randn(shape), copy.deepcopy(model).double()
    with torch.no_grad(), reference_mode(wide):
        want = called(wide, side, x.double())
    for strip in (2, 3):
        tiled = TiledVAE(model, strip=strip)
        got = flatten(getattr(tiled, side)(x))[0][0]
        assert (got.double() - want).norm() / want.norm() < 1e-5
        if name not in OF_ONE_SIZE:
            assert tiled.plan(shape, side).strip_rows <= 2 * strip < shape[-2]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), NOT_RUN)
def test_what_is_said_not_to_run_is_refused_by_name_and_runs_untiled(name: str, side: Side) -> None:
    """Or it would be in the list for no reason."""
    model, x = built(name), torch.randn(CASES[name][1 + (side == "decode")])
    with torch.no_grad(), reference_mode(model):
        assert called(model, side, x).isfinite().all()
    with pytest.raises(UnsupportedOp, match=f"{name}|module '{side}r'"):
        getattr(TiledVAE(model, strip=2), side)(x)


@pytest.mark.slow
def test_of_one_size() -> None:
    """RAE brings pictures of other sizes to its own; of latents, another size fails in the model, too."""
    model: Any = built("AutoencoderRAE")
    with torch.no_grad():
        assert (
            model.encode(torch.randn(1, 3, 48, 40)).latent.shape == model.encode(torch.randn(1, 3, 32, 32)).latent.shape
        )
        with pytest.raises(RuntimeError):
            model.decode(torch.randn(1, 64, 5, 4))
    with pytest.raises(UnsupportedOp):
        TiledVAE(model, strip=2).encode(torch.randn(1, 3, 48, 40))


@pytest.mark.slow
def test_qwen_image_takes_one_frame_of_four_channels() -> None:
    model: Any = built("AutoencoderKLQwenImage21")
    for shape in ((1, 3, 1, 24, 16), (1, 4, 5, 24, 16)):
        with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
            model.encode(torch.randn(shape))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_waves_of_sound_are_no_pictures() -> None:
    model: Any = autoencoders.AutoencoderOobleck(8, [2, 2], [1, 2], 8, 4, 2).eval()
    x = torch.randn(1, 2, 64)
    with torch.no_grad():
        assert model.encode(x).latent_dist.mean.shape == (1, 4, 16)
    with pytest.raises(TvaeError):
        TiledVAE(model, strip=2).encode(x)


class TiledByItself(autoencoders.AutoencoderKL):
    """A model that was released with tiles: blended ones, on from the start."""

    def __init__(self, block_out_channels: tuple[int, ...] = (32,)) -> None:
        super().__init__(block_out_channels=block_out_channels)
        self.use_tiling = True


def refusal(model: nn.Module) -> str:
    with pytest.raises(UsageError) as error:
        TiledVAE(model)
    return str(error.value)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", sorted(of_diffusers() - WITHOUT_DEFAULTS))
def test_classes_that_switch_tiling_on_are_refused_and_no_other(name: str) -> None:
    config = TINY[name].config if name == "AutoencoderKLHunyuanImage" else {}
    with torch.device("meta"):
        model: Any = getattr(autoencoders, name)(**config)
    assert (getattr(model, "use_tiling", False) is True) == (name in RELEASED_TILED)
    if name in RELEASED_TILED:
        assert "released with blended tiles" in refusal(model)
    elif callable(getattr(model, "encode", None)) and callable(getattr(model, "decode", None)):
        if hasattr(model, "use_tiling"):
            model.enable_tiling()
        TiledVAE(model)


def test_a_model_that_was_released_with_tiles_is_refused_with_the_reason() -> None:
    model = TiledByItself()
    state = torch.get_rng_state()
    said = refusal(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert said.startswith("TiledVAE does not run TiledByItself: it was released with blended tiles")
    model.disable_tiling()  # other numbers than the released model's
    assert refusal(model) == said


def test_the_commands_refuse_a_model_that_was_released_with_tiles(tmp_path: Path) -> None:
    if not hasattr(autoencoders, "AutoencoderKLMiniMaxH3"):
        pytest.skip("this release of diffusers has no AutoencoderKLMiniMaxH3")
    autoencoders.AutoencoderKLMiniMaxH3(
        **{"latent_channels": 4, "block_out_channels": (32, 32), "layers_per_block": 1, "norm_num_groups": 8},
        **{"spatial_downsample_factors": (2, 1), "temporal_downsample_factors": (1, 1)},
        **{"decoder_num_layers": 1, "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 16},
        **{"latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4},
    ).save_pretrained(tmp_path / "vae")
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    vae = ["--vae", str(tmp_path / "vae")]
    for words in (
        ["encode", str(tmp_path / "a.png"), "-o", str(tmp_path / "out")],
        ["roundtrip", str(tmp_path / "a.png"), "-o", str(tmp_path / "out")],
        ["plan", "--shape", "64x64"],
    ):
        result = invoke([*words, *vae])
        assert result.exit_code == 2
        assert "it was released with blended tiles" in result.output
        assert len(result.stderr.strip().splitlines()) == 1
    row = next(line for line in invoke(["models"]).output.splitlines() if line.startswith("AutoencoderKLMiniMaxH3 "))
    assert row.split()[1] == "-"
