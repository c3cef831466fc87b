"""What kernels hold beside their operands: as many bytes as are counted."""

from __future__ import annotations

import pytest

from tvae.kernels.workspace import CHUNK, KEYS, attention_bytes, product_rows


@pytest.mark.parametrize("block", [8448, 8192, 4224, 64])
def test_rows_of_products(block: int) -> None:
    """Enough for the queries, at most a fourth too many (and a few), and four numbers an octave."""
    found = {queries: product_rows(queries, block) for queries in range(1, block + 1, max(1, block // 500))}
    for queries, rows in found.items():
        assert queries <= rows <= min(block, queries * 1.25 + 8), (queries, rows)
        held = attention_bytes(queries, 4096, 512) - attention_bytes(0, 4096, 512)
        assert held >= (rows - KEYS) * (2 * 4096 + 4 * 512), "a plan is for the card, whatever its block"
    assert len({rows for rows in found.values() if block / 2 < rows <= block}) <= 4


@pytest.mark.parametrize("keys", [4096, 12288, 32768])
def test_values_of_an_odd_number_of_keys_are_copied(keys: int) -> None:
    """Those of the last chunk, at most a whole one: zeros follow them."""
    less, more = (attention_bytes(4000, n, 512) for n in (keys, keys + 1))
    assert keys % KEYS == 0
    copied = 2 * 512 * min(keys, CHUNK)
    assert copied <= more - less <= copied * 1.01 + (1 << 20)
