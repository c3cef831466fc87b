"""Descriptors of tensors in boxes, as the driver is asked for them."""

from __future__ import annotations

import ctypes
import sys
from unittest.mock import MagicMock

import pytest
import torch

from tvae.kernels import Unsupported
from tvae.kernels.cuda.boxes import Boxes


class Descriptor(ctypes.Structure):
    """As the driver makes them."""

    _fields_ = (("bytes", ctypes.c_char * 128),)

    def getPtr(self) -> int:
        return ctypes.addressof(self)


def a_driver(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    driver = MagicMock(cuuint64_t=int, cuuint32_t=int, CUtensorMap=Descriptor)
    driver.CUresult.CUDA_SUCCESS = 0
    monkeypatch.setitem(sys.modules, "cuda", MagicMock())
    monkeypatch.setitem(sys.modules, "cuda.bindings", MagicMock(driver=driver))
    return driver


LAYOUT = torch.bfloat16, (64, 9, 128), (128, 1152), (64, 1, 128)


def test_a_descriptor_says_what_the_driver_wants_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = a_driver(monkeypatch)
    driver.cuTensorMapEncodeTiled.return_value = (0, made := Descriptor(b"first"))
    boxes = Boxes(*LAYOUT)
    assert boxes.at(4096) is made
    kind, rank, *rest = driver.cuTensorMapEncodeTiled.call_args.args
    assert kind is driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
    assert (rank, rest[:5]) == (3, [4096, [64, 9, 128], [128, 1152], [64, 1, 128], [1, 1, 1]])
    assert rest[6] is driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
    assert boxes.at(4096) is made
    assert driver.cuTensorMapEncodeTiled.call_count == 1
    driver.cuTensorMapEncodeTiled.return_value = (MagicMock(), None)
    with pytest.raises(Unsupported, match="no descriptor"):
        Boxes(*LAYOUT).at(8192)


def test_a_descriptor_like_another_is_made_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = a_driver(monkeypatch)
    driver.cuTensorMapEncodeTiled.return_value = (0, first := Descriptor(b"first"))
    driver.cuTensorMapReplaceAddress.return_value = (0,)
    boxes = Boxes(*LAYOUT)
    boxes.at(4096)
    second = boxes.at(8192)
    assert driver.cuTensorMapReplaceAddress.call_args.args == (second, 8192)
    assert second is not first
    assert second.bytes == first.bytes == b"first"
    assert driver.cuTensorMapEncodeTiled.call_count == 1
    driver.cuTensorMapReplaceAddress.return_value = (1,)  # a driver that will not
    driver.cuTensorMapEncodeTiled.return_value = (0, third := Descriptor(b"third"))
    assert boxes.at(12288) is third
    assert boxes.at(8192) is second


def test_descriptors_of_a_layout_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, boxes = a_driver(monkeypatch), Boxes(*LAYOUT)
    driver.cuTensorMapEncodeTiled.return_value = (0, Descriptor(b"first"))
    driver.cuTensorMapReplaceAddress.return_value = (0,)
    for n in range(2000):
        boxes.at(128 * n)
        assert len(boxes._made) <= 256
