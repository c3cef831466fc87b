"""Raw and model space against the diffusers pipelines themselves.

The oracle is the pipelines' own code, taken out of their source files: most of it stands in the middle of `__call__`,
and importing a pipeline needs transformers. What is run is the stretch of statements that ends in `self.vae.decode`,
or a method as it is, with a VAE that hands back what it is given.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.models.families.cosmos import COSMOS_SIGMA_DATA
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.space import latent_space

ORACLE = {"torch": torch, "get_module_execution_device": lambda module: "cpu", "retrieve_latents": lambda z, **_: z}


class Vae(SimpleNamespace):
    """Hands back its input; `config` holds the class's defaults and what the test changes."""

    dtype = torch.float32

    def __init__(self, class_name: str, **changes: Any) -> None:
        from diffusers.models import autoencoders

        parameters = inspect.signature(getattr(autoencoders, class_name).__init__).parameters
        config = {name: p.default for name, p in parameters.items() if p.default is not p.empty} | changes
        super().__init__(class_name=class_name, config=SimpleNamespace(**config), device="cpu")

    def encode(self, z: Tensor) -> Tensor:
        return z

    def decode(self, z: Tensor, *args: Any, **options: Any) -> Any:
        self.decoded = z
        frames = z if z.ndim == 5 else z.unsqueeze(2)
        return type("Output", (tuple,), {"sample": frames})((frames,))

    def space(self, weights: dict[str, Tensor] | None = None) -> LatentSpace:
        return latent_space(self.class_name, vars(self.config), weights or {})


def parse(file: str) -> ast.Module:
    spec = find_spec("diffusers")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse((Path(spec.origin).parent / "pipelines" / file).read_text(encoding="utf-8"))


def compiled(function: ast.FunctionDef) -> Callable[..., Any]:
    """The function without its annotations and decorators, which name types we have not."""
    function.decorator_list, function.returns = [], None
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    names: dict[str, Any] = dict(ORACLE)
    module = ast.fix_missing_locations(ast.Module([function], []))
    exec(compile(module, function.name, "exec"), names)
    return names[function.name]


def method(file: str, name: str) -> Callable[..., Any]:
    found = [node for node in ast.walk(parse(file)) if isinstance(node, ast.FunctionDef) and node.name == name]
    return compiled(found[-1])


def calls_decode(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and ast.unparse(n.func) in ("self.vae.decode", "self.vqvae.decode")
        for n in ast.walk(node)
    )


def before_decode(file: str) -> Callable[..., Any]:
    """The innermost stretch of `__call__` that ends with the call of `decode`, as a function of self and latents."""
    (call,) = (n for n in ast.walk(parse(file)) if isinstance(n, ast.FunctionDef) and n.name == "__call__")
    for node in ast.walk(call):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for index, statement in enumerate(block if isinstance(block, list) else []):
                if isinstance(statement, ast.Assign) and calls_decode(statement):
                    assert isinstance(block, list)
                    function = ast.parse("def stretch(self, latents, height=0, width=0, latent_ids=None): pass").body[0]
                    assert isinstance(function, ast.FunctionDef)
                    loops = [i for i in range(index) if isinstance(block[i], ast.For | ast.With)]  # the denoising
                    function.body = block[loops[-1] + 1 if loops else 0 : index + 1]
                    return compiled(function)
    raise AssertionError(f"{file} decodes nowhere")


def pipe(vae: Vae, **more: Any) -> SimpleNamespace:
    def as_they_are(latents: Tensor, *_: Any) -> Tensor:
        return latents

    own = {"vae_scale_factor": 8, "_unpack_latents": as_they_are, "_unpack_latents_with_ids": as_they_are}
    return SimpleNamespace(vae=vae, vqvae=vae, **(own | more))


STATISTICS = {"latents_mean": [0.5, -1.0, 0.0, 2.0], "latents_std": [0.5, 1.5, 2.0, 3.0]}

DECODES = [
    ("AutoencoderKL", {}, "stable_diffusion_xl/pipeline_stable_diffusion_xl.py", (4, 3, 5)),
    ("AutoencoderKL", STATISTICS, "stable_diffusion_xl/pipeline_stable_diffusion_xl.py", (4, 3, 5)),
    (
        "AutoencoderKL",
        {"scaling_factor": 1.5305, "shift_factor": 0.0609},
        "stable_diffusion_3/pipeline_stable_diffusion_3.py",
        (16, 3, 5),
    ),
    ("AutoencoderTiny", {}, "stable_diffusion_3/pipeline_stable_diffusion_3.py", (4, 3, 5)),
    ("AutoencoderDC", {"scaling_factor": 0.41407}, "sana/pipeline_sana.py", (32, 3, 5)),
    ("VQModel", {}, "latent_diffusion/pipeline_latent_diffusion.py", (3, 3, 5)),
    ("AutoencoderKLWan", {}, "wan/pipeline_wan.py", (16, 2, 3, 5)),
    ("AutoencoderKLQwenImage", {}, "qwenimage/pipeline_qwenimage.py", (16, 1, 3, 5)),
    ("AutoencoderKLHunyuanVideo", {}, "hunyuan_video/pipeline_hunyuan_video.py", (16, 2, 3, 5)),
    ("AutoencoderKLHunyuanVideo15", {}, "hunyuan_video1_5/pipeline_hunyuan_video1_5.py", (32, 2, 3, 5)),
    (
        "AutoencoderKLHunyuanImage",
        {"in_channels": 3, "scaling_factor": 0.75289},
        "hunyuan_image/pipeline_hunyuanimage.py",
        (64, 3, 5),
    ),
    ("AutoencoderKLMochi", {"scaling_factor": 1.1}, "mochi/pipeline_mochi.py", (12, 2, 3, 5)),
    ("AutoencoderKLMagvit", {}, "easyanimate/pipeline_easyanimate.py", (16, 2, 3, 5)),
    ("AutoencoderKLCosmos", {}, "cosmos/pipeline_cosmos_text2world.py", (16, 3, 3, 5)),
    (
        "AutoencoderKLCosmos",
        {"latents_mean": None, "latents_std": None},
        "cosmos/pipeline_cosmos_text2world.py",
        (16, 3, 3, 5),
    ),
]


@pytest.mark.parametrize(("class_name", "changes", "file", "shape"), DECODES)
def test_to_raw_is_what_the_pipeline_decodes(
    class_name: str, changes: dict[str, Any], file: str, shape: tuple[int, ...]
) -> None:
    vae = Vae(class_name, **changes)
    latents = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    scheduler = SimpleNamespace(config=SimpleNamespace(sigma_data=COSMOS_SIGMA_DATA))
    before_decode(file)(pipe(vae, scheduler=scheduler), latents)
    space = vae.space()
    torch.testing.assert_close(space.to_raw(latents), vae.decoded, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(space.to_model(vae.decoded), latents, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(vae.decoded, latents) or class_name == "AutoencoderTiny"


def test_cosmos_takes_its_schedulers_word() -> None:
    from diffusers import EDMEulerScheduler

    assert EDMEulerScheduler().config.sigma_data == COSMOS_SIGMA_DATA


@pytest.mark.parametrize(
    ("class_name", "file", "own"),
    [
        ("AutoencoderKLAllegro", "allegro/pipeline_allegro.py", {}),
        ("AutoencoderKLCogVideoX", "cogvideo/pipeline_cogvideox.py", {"vae_scaling_factor_image": 1.15258426}),
    ],
)
def test_decode_latents_methods(class_name: str, file: str, own: dict[str, Any]) -> None:
    vae = Vae(class_name)
    latents = torch.randn(1, 4, 2, 3, 5)
    shown = latents if class_name == "AutoencoderKLAllegro" else latents.transpose(1, 2)  # CogVideoX: frames first
    method(file, "decode_latents")(pipe(vae, **own), shown)
    torch.testing.assert_close(vae.space().to_raw(latents), vae.decoded)


@pytest.mark.parametrize(
    ("class_name", "changes", "file", "shape"),
    [
        (
            "AutoencoderKL",
            {"scaling_factor": 0.3611, "shift_factor": 0.1159},
            "flux/pipeline_flux_img2img.py",
            (16, 4, 6),
        ),
        ("AutoencoderKLQwenImage", {}, "qwenimage/pipeline_qwenimage_img2img.py", (16, 1, 4, 6)),
    ],
)
def test_to_model_is_what_the_pipeline_encodes(
    class_name: str, changes: dict[str, Any], file: str, shape: tuple[int, ...]
) -> None:
    vae = Vae(class_name, **changes)
    z = torch.randn(1, *shape)
    expected = method(file, "_encode_vae_image")(pipe(vae), z, None)
    torch.testing.assert_close(vae.space().to_model(z), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("class_name", "file"),
    [
        ("AutoencoderKLLTXVideo", "ltx/pipeline_ltx.py"),
        ("AutoencoderKLLTX2Video", "ltx2/pipeline_ltx2.py"),
    ],
)
def test_ltx_keeps_statistics_among_the_weights(class_name: str, file: str) -> None:
    vae = Vae(class_name, scaling_factor=1.25)
    mean, std = torch.randn(8), torch.rand(8) + 0.5
    space = vae.space({"latents_mean": mean, "latents_std": std})
    z = torch.randn(2, 8, 3, 4, 5)
    torch.testing.assert_close(space.to_model(z), method(file, "_normalize_latents")(z, mean, std, 1.25))
    torch.testing.assert_close(space.to_raw(z), method(file, "_denormalize_latents")(z, mean, std, 1.25))
    with pytest.raises(UsageError, match="'latents_mean' are missing from the weights"):
        vae.space()


def test_flux2_folds_patches() -> None:
    file = "flux2/pipeline_flux2.py"
    vae = Vae("AutoencoderKLFlux2")
    vae.bn = SimpleNamespace(running_mean=torch.randn(32), running_var=torch.rand(32) + 0.1)
    space = vae.space({"bn.running_mean": vae.bn.running_mean, "bn.running_var": vae.bn.running_var})
    fold, unfold = method(file, "_patchify_latents"), method(file, "_unpatchify_latents")
    pipeline = pipe(vae, _patchify_latents=fold, _unpatchify_latents=unfold)
    z = torch.randn(2, 8, 4, 6)
    expected = method(file, "_encode_vae_image")(pipeline, z, None)
    assert expected.shape == (2, 32, 2, 3)
    torch.testing.assert_close(space.to_model(z), expected, rtol=1e-5, atol=1e-5)
    before_decode(file)(pipeline, expected)
    torch.testing.assert_close(space.to_raw(expected), vae.decoded)
    torch.testing.assert_close(space.to_raw(expected), z, rtol=1e-5, atol=1e-5)
    clip = space.to_raw(expected.unsqueeze(2))  # frames of a clip: the same with a time axis
    torch.testing.assert_close(clip, space.to_raw(expected).unsqueeze(2))
    with pytest.raises(InputError, match="squares of 2x2, found 3x6"):
        space.to_model(z[:, :, :3])


def test_old_configurations_take_their_class_default() -> None:
    assert latent_space("AutoencoderKL", {"latent_channels": 4}, {}).scale == (0.18215,)
    assert latent_space("AutoencoderKL", {"scaling_factor": 0.5}, {}).scale == (0.5,)
    assert latent_space("SomethingElse", {"latent_channels": 4}, {}) == LatentSpace()


def test_rae_normalises_by_itself() -> None:
    config = {"latents_mean": [1.0], "latents_std": [2.0], "scaling_factor": 3.0}
    assert latent_space("AutoencoderRAE", config, {}) == LatentSpace()


def test_more_frames_than_statistics() -> None:
    space = Vae("AutoencoderKLCosmos").space()
    assert space.frames == 16
    with pytest.raises(InputError, match="cover 16 latent frames, the clip has 17"):
        space.to_model(torch.zeros(1, 16, 17, 2, 2))


def test_low_types_are_computed_in_float32() -> None:
    space = LatentSpace((0.1159,), (0.3611,))
    z = torch.randn(1, 4, 8, 8).bfloat16()
    assert torch.equal(space.to_model(z), ((z.float() - 0.1159) * 0.3611).bfloat16())


@pytest.mark.parametrize(
    "space",
    [LatentSpace((0.5, -1.0), (2.0, -0.25)), LatentSpace((0.1,) * 8, (0.5, 1.0, 2.0, 4.0) * 2, patch=2)],
)
def test_moments_keep_their_distribution(space: LatentSpace) -> None:
    generator = torch.Generator().manual_seed(0)
    mean, logvar = torch.randn(1, 2, 2, 2, generator=generator), torch.randn(1, 2, 2, 2, generator=generator)
    samples = mean + (logvar / 2).exp() * torch.randn(200_000, 2, 2, 2, generator=generator)
    moved = space.to_model(samples)
    torch.testing.assert_close(space.to_model(mean)[0], moved.mean(0), rtol=0.02, atol=0.02)
    torch.testing.assert_close(space.logvar_to_model(logvar)[0], moved.var(0).log(), rtol=0.02, atol=0.02)


def test_json_there_and_back() -> None:
    for space in [LatentSpace(), LatentSpace((0.1, 0.2), (3.0, 4.0), frames=2, patch=1), LatentSpace(patch=2)]:
        assert LatentSpace.from_json(space.to_json()) == space
    for data in [{}, {"shift": 1, "scale": [1], "frames": 1, "patch": 1}]:
        with pytest.raises(ValueError, match="not the constants"):
            LatentSpace.from_json(data)
