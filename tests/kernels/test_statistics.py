"""Statistics of several are one, and are copied only where they lie apart."""

from __future__ import annotations

import torch

from tvae.kernels.statistics import joined


def test_what_lies_so_is_not_copied() -> None:
    gathered = torch.randn(3, 1, 2, 3, 5, dtype=torch.float64)
    found = joined([*gathered])
    assert found.data_ptr() == gathered.data_ptr()
    assert torch.equal(found, torch.cat([*gathered], 1))
    found = joined([*gathered[1:]])
    assert found.data_ptr() == gathered[1].data_ptr()
    assert torch.equal(found, torch.cat([*gathered[1:]], 1))


def test_the_rest_is() -> None:
    gathered = torch.randn(4, 1, 2, 3, 5, dtype=torch.float64)
    several = torch.randn(3, 2, 1, 3, 5, dtype=torch.float64)  # of two pictures: blocks of one lie apart
    apart = torch.randn(1, 2, 3, 5, dtype=torch.float64), torch.randn(1, 2, 3, 5, dtype=torch.float64)
    unlike = torch.randn(1, 2, 3, 5, dtype=torch.float64), torch.randn(1, 1, 3, 5, dtype=torch.float64)
    square = torch.randn(2, 1, 2, 3, 3, dtype=torch.float64)  # the second lies there, but otherwise
    orders = [
        [square[0], square[1].transpose(2, 3)],
        [gathered[0], gathered[2]],
        [gathered[1], gathered[0]],
        [*several],
        [*apart],
        [*unlike],
    ]
    for parts in [*orders, [*gathered.transpose(3, 4)]]:
        assert torch.equal(joined(parts), torch.cat(parts, 1))
