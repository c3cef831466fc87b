"""The graph of either side of an AutoencoderKL, written operation by operation for any size.

A capture of diffusers' class gives the same operations in the same order, but for objects that it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref, Size
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.kl.config import KLConfig

__all__ = ["graph_of"]

_EPSILON = 1e-6
"""Of every normalisation."""


def graph_of(config: KLConfig, side: Side, batch: int, dtype: torch.dtype) -> Graph:
    """Pixels [batch, 3, H, W] -> moments [batch, 2C, H/8, W/8], mean and log variance side by side; or latents
    [batch, C, h, w] -> pixels [batch, 3, 8h, 8w] (8: of four levels). Weights are named as in the ``state_dict``."""
    writer = _Writer(config, batch, dtype)
    return writer.encoder() if side == "encode" else writer.decoder()


@dataclass(frozen=True)
class _Value:
    """A picture [N, channels, height, width]. id: its node. side: its height from the input's, and its width from the
    input's, such as ``h // 2``."""

    id: int
    channels: int
    side: Callable[[str], str]


class _Writer:
    def __init__(self, config: KLConfig, batch: int, dtype: torch.dtype) -> None:
        self._config, self._batch, self._dtype = config, batch, dtype
        self._nodes: list[Node] = []

    def encoder(self) -> Graph:
        config, widths = self._config, self._config.block_out_channels
        x = self._input(config.in_channels)
        x = self._conv(x, "encoder.conv_in", widths[0])
        for i, width in enumerate(widths):
            for j in range(config.layers_per_block):
                x = self._res_block(x, f"encoder.down_blocks.{i}.resnets.{j}", width)
            if i < len(widths) - 1:
                x = self._half(x, f"encoder.down_blocks.{i}.downsamplers.0", 2 ** (i + 1))
        x = self._middle(x, "encoder.mid_block")
        x = self._conv(self._activated(x, "encoder.conv_norm_out"), "encoder.conv_out", 2 * config.latent_channels)
        x = self._conv(x, "quant_conv", x.channels, kernel=1) if config.use_quant_conv else x
        return self._graph(x, least=2 ** (len(widths) - 1))

    def decoder(self) -> Graph:
        config, widths = self._config, self._config.block_out_channels[::-1]
        z = self._input(config.latent_channels)
        z = self._conv(z, "post_quant_conv", z.channels, kernel=1) if config.use_post_quant_conv else z
        z = self._middle(self._conv(z, "decoder.conv_in", widths[0]), "decoder.mid_block")
        for i, width in enumerate(widths):
            for j in range(config.layers_per_block + 1):
                z = self._res_block(z, f"decoder.up_blocks.{i}.resnets.{j}", width)
            if i < len(widths) - 1:
                z = self._double(z, f"decoder.up_blocks.{i}.upsamplers.0", 2 ** (i + 1))
        z = self._activated(z, "decoder.conv_norm_out")
        return self._graph(self._conv(z, "decoder.conv_out", config.out_channels))

    # -- layers --------------------------------------------------------------------------------------------------------
    def _res_block(self, x: _Value, name: str, width: int) -> _Value:
        h = self._conv(self._activated(x, f"{name}.norm1"), f"{name}.conv1", width)
        h = self._conv(self._activated(h, f"{name}.norm2"), f"{name}.conv2", width)
        x = x if x.channels == width else self._conv(x, f"{name}.conv_shortcut", width, kernel=1)
        return self._alike("add.Tensor", (Ref(x.id), Ref(h.id)), x, name)

    def _middle(self, x: _Value, name: str) -> _Value:
        x = self._res_block(x, f"{name}.resnets.0", x.channels)
        if self._config.mid_block_add_attention:
            x = self._attention(x, f"{name}.attentions.0")
        return self._res_block(x, f"{name}.resnets.1", x.channels)

    def _attention(self, x: _Value, name: str) -> _Value:
        """One head over all pixels."""
        n, c = self._batch, x.channels
        count = Size(f"({x.side('h')})*({x.side('w')})")
        maps, tokens, heads = (n, c, count), (n, count, c), (n, 1, count, c)

        def made(target: str, args: tuple[Any, ...], shape: tuple[int | Size, ...]) -> Ref:
            return Ref(self._node(f"aten.{target}", args, shape, name))

        def linear(of: Ref, layer: str) -> Ref:
            weights = self._param(f"{name}.{layer}.weight", (c, c)), self._param(f"{name}.{layer}.bias", (c,))
            return Ref(self._node("aten.linear.default", (of, *weights), tokens, f"{name}.{layer}"))

        def head(of: Ref) -> Ref:
            return made("transpose.int", (made("view.default", (of, (n, -1, 1, c)), (n, count, 1, c)), 1, 2), heads)

        at = made("transpose.int", (made("view.default", (Ref(x.id), maps), maps), 1, 2), tokens)
        args = made("transpose.int", (at, 1, 2), maps), *self._norm_arguments(f"{name}.group_norm", c)
        normed = Ref(self._node("aten.group_norm.default", args, maps, f"{name}.group_norm"))
        at = made("transpose.int", (normed, 1, 2), tokens)
        projected = [linear(at, layer) for layer in ("to_q", "to_k", "to_v")]
        at = made("scaled_dot_product_attention.default", tuple(map(head, projected)), heads)
        at = made("reshape.default", (made("transpose.int", (at, 1, 2), (n, count, 1, c)), (n, -1, c)), tokens)
        at = made("transpose.int", (linear(at, "to_out.0"), -1, -2), maps)
        mixed = self._alike("reshape.default", (at, _picture(n, x)), x, name)
        return self._alike("add.Tensor", (Ref(mixed.id), Ref(x.id)), x, name)

    def _half(self, x: _Value, name: str, factor: int) -> _Value:
        """Zeros below and to the right, then a stride of 2: odd sizes are rounded down."""
        padded = self._call("pad.default", (Ref(x.id), (0, 1, 0, 1)), name, x.channels, lambda n: f"1 + {x.side(n)}")
        args = (Ref(padded.id), *self._conv_weights(f"{name}.conv", x.channels, x.channels, 3), (2, 2))
        return self._call("conv2d.default", args, f"{name}.conv", x.channels, lambda n: f"{n} // {factor}")

    def _double(self, x: _Value, name: str, factor: int) -> _Value:
        args = (Ref(x.id), None, (2.0, 2.0))
        larger = self._call("upsample_nearest2d.vec", args, name, x.channels, lambda n: f"{factor}*{n}")
        return self._conv(larger, f"{name}.conv", x.channels)

    def _activated(self, x: _Value, name: str) -> _Value:
        return self._alike("silu.default", (Ref(self._norm(x, name).id),), x, name.rpartition(".")[0])

    def _norm(self, x: _Value, name: str) -> _Value:
        return self._alike("group_norm.default", (Ref(x.id), *self._norm_arguments(name, x.channels)), x, name)

    def _norm_arguments(self, name: str, channels: int) -> tuple[Any, ...]:
        weights = self._param(f"{name}.weight", (channels,)), self._param(f"{name}.bias", (channels,))
        return self._config.norm_num_groups, *weights, _EPSILON, False

    def _conv(self, x: _Value, name: str, out: int, kernel: int = 3) -> _Value:
        around = ((1, 1), (1, 1)) if kernel == 3 else ()
        args = (Ref(x.id), *self._conv_weights(name, x.channels, out, kernel), *around)
        return self._call("conv2d.default", args, name, out, x.side)

    def _conv_weights(self, name: str, channels: int, out: int, kernel: int) -> tuple[Ref, Ref]:
        shape = (out, channels, kernel, kernel)
        return self._param(f"{name}.weight", shape), self._param(f"{name}.bias", (out,))

    # -- nodes ---------------------------------------------------------------------------------------------------------
    def _input(self, channels: int) -> _Value:
        value = _Value(0, channels, lambda n: n)
        self._nodes.append(Node("input", "x", outputs=(Meta(_picture(self._batch, value), self._dtype),)))
        return value

    def _param(self, name: str, shape: tuple[int, ...]) -> Ref:
        self._nodes.append(Node("param", name, outputs=(Meta(shape, self._dtype),)))
        return Ref(len(self._nodes) - 1)

    def _alike(self, target: str, args: tuple[Any, ...], like: _Value, where: str) -> _Value:
        return self._call(target, args, where, like.channels, like.side)

    def _call(
        self, target: str, args: tuple[Any, ...], where: str, channels: int, side: Callable[[str], str]
    ) -> _Value:
        value = _Value(len(self._nodes), channels, side)
        self._node(f"aten.{target}", args, _picture(self._batch, value), where)
        return value

    def _node(self, target: str, args: tuple[Any, ...], shape: tuple[int | Size, ...], where: str) -> int:
        self._nodes.append(Node("call", target, args, {}, where, (Meta(shape, self._dtype),)))
        return len(self._nodes) - 1

    def _graph(self, result: _Value, least: int = 1) -> Graph:
        guards = [f"h >= {least}", f"w >= {least}"]
        return Graph(self._nodes, [0], [result.id], guards, "h")


def _picture(batch: int, value: _Value) -> tuple[int | Size, ...]:
    return batch, value.channels, Size(value.side("h")), Size(value.side("w"))
