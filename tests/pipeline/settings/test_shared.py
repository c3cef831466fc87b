"""Settings that calls borrow: what every call under way needs, and afterwards what the caller had, by either interface.

The oracle is PyTorch itself: the same caller's settings without any call between, looked at from all sides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tvae import presets
from tvae.pipeline.device import backend_settings
from tvae.pipeline.settings.precision import exact_float32
from tvae.pipeline.settings.shared import cudnn_search

CUDA = (("cuda", "conv"), ("cuda", "rnn"), ("cuda", "matmul"))
CPU = (("mkldnn", "conv"), ("mkldnn", "rnn"), ("mkldnn", "matmul"))
PLACES = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), *CUDA, *CPU)
get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
OLD = {
    "matmul": torch.get_float32_matmul_precision,
    "cublas": torch._C._get_cublas_allow_tf32,
    "cudnn": torch._C._get_cudnn_allow_tf32,
}


def reset() -> None:
    torch.set_float32_matmul_precision("highest")
    torch._C._set_cudnn_allow_tf32(True)
    torch._C._set_cudnn_benchmark(False)
    for place in PLACES:
        put(*place, "tf32" if place in CUDA[:2] else "none")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


def old() -> dict[str, Any]:
    """By the old interface; None where PyTorch raises, because the new one says something else."""
    found = {}
    for name, read in OLD.items():
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = None
    return found


def seen() -> dict[Any, Any]:
    return {**{place: get(*place) for place in PLACES}, **old(), "search": torch._C._get_cudnn_benchmark()}


def fingerprint() -> list[dict[Any, Any]]:
    """Everything there is to know. Who follows whom shows when those above change; what the old interface has noted,
    when the new one says nothing else. Spoils the settings."""
    found = [seen()]
    for above in (("generic", "all"), ("mkldnn", "all"), ("cuda", "all")):
        for precision in ("ieee", "tf32", "none"):
            put(*above, precision)
            found.append(seen())
    for precision in ("ieee", "tf32"):
        for place in (*CUDA, *CPU):
            put(*place, precision)
        found.append(seen())
    return found


def actions() -> dict[str, Callable[[], None]]:
    """What a caller may have set, by either interface."""
    found: dict[str, Callable[[], None]] = {}
    for value in ("ieee", "tf32", "bf16", "none"):
        for place in PLACES:
            if place[0] != "cuda" or value != "bf16":
                found[f"{'.'.join(place)} = {value}"] = lambda p=place, v=value: put(*p, v)
    for precision in ("highest", "high", "medium"):
        found[f"matmul {precision}"] = lambda p=precision: torch.set_float32_matmul_precision(p)
    for flag in (True, False):
        found[f"cublas {flag}"] = lambda f=flag: torch._C._set_cublas_allow_tf32(f)
        found[f"cudnn {flag}"] = lambda f=flag: torch._C._set_cudnn_allow_tf32(f)
        found[f"search {flag}"] = lambda f=flag: torch._C._set_cudnn_benchmark(f)
    return found


ACTIONS = actions()
KINDS = {"f32 cuda": "cuda", "f32 cpu": "cpu", "search": True, "no search": False}


def borrowed(kind: str) -> AbstractContextManager[Any]:
    want: Any = KINDS[kind]
    return cudnn_search.borrowed(want) if isinstance(want, bool) else exact_float32.borrowed(want)


def as_needed(kinds: list[str], before: dict[Any, Any]) -> None:
    """All that these calls need is so, and nothing else has changed."""
    now = seen()
    if "f32 cuda" in kinds:
        assert {now[place] for place in CUDA} <= {"ieee", "none"}
    if "f32 cpu" in kinds:
        assert {now[place] for place in CPU} <= {"ieee", "none"}
    if not any(kind.startswith("f32") for kind in kinds):
        assert {**now, "search": None} == {**before, "search": None}
    searches = [KINDS[kind] for kind in kinds if "search" in kind]
    assert now["search"] == (all(searches) if searches else before["search"])
    told = [before[name] for name in OLD]
    mixed = before["matmul"] == "medium" and before["mkldnn", "matmul"] != "bf16"
    if None not in told and not mixed:
        assert None not in [now[name] for name in OLD], "the old interface raises in other threads"


@given(
    before=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=5),
    steps=st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 5)), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=300)
def test_calls_that_come_and_go_in_any_order(before: list[str], steps: list[tuple[str, int]]) -> None:
    reset()
    for name in before:
        ACTIONS[name]()
    there = seen()
    expected = fingerprint()
    reset()
    for name in before:
        ACTIONS[name]()
    active: list[tuple[str, AbstractContextManager[Any]]] = []
    for kind, leaves in steps:
        call = borrowed(kind)
        call.__enter__()
        active.append((kind, call))
        as_needed([k for k, _ in active], there)
        if leaves < len(active):
            active.pop(leaves)[1].__exit__(None, None, None)
            as_needed([k for k, _ in active], there)
    while active:
        active.pop(0)[1].__exit__(None, None, None)
        as_needed([k for k, _ in active], there)
    assert seen() == there
    assert fingerprint() == expected


MIXED = [["generic.all = ieee", "matmul high", "mkldnn.matmul = none"], ["matmul medium", "mkldnn.matmul = ieee"]]


@pytest.mark.parametrize("setting", [[], *MIXED, *([name] for name in sorted(ACTIONS))], ids=", ".join)
@pytest.mark.parametrize("kind", ["f32 cuda", "f32 cpu"])
def test_each_setting_of_a_caller_is_as_before(setting: list[str], kind: str) -> None:
    for name in setting:
        ACTIONS[name]()
    there, expected = seen(), fingerprint()
    reset()
    for name in setting:
        ACTIONS[name]()
    with borrowed(kind):
        as_needed([kind], there)
        others = CPU if kind == "f32 cuda" else CUDA
        if old()["matmul"] != "highest" or there["matmul"] in ("highest", None):
            assert [get(*place) for place in others] == [there[place] for place in others]
    assert fingerprint() == expected


def test_a_cpu_call_leaves_a_gpus_settings_alone() -> None:
    preset = presets.load("h200")
    torch._C._set_cudnn_benchmark(True)
    torch.set_float32_matmul_precision("medium")
    before = seen()
    with backend_settings(preset, torch.float32, device=torch.device("cpu")):
        changed = {key for key, value in seen().items() if value != before[key]}
        assert changed == {("mkldnn", "matmul")}
    with backend_settings(preset, torch.bfloat16, device=torch.device("cpu")):
        assert seen() == before
    with backend_settings(preset, torch.bfloat16, bounded=True, device=torch.device("cuda", 0)):
        assert seen() == {**before, "search": False}
    with backend_settings(preset, torch.float32):
        assert not {"tf32", "bf16"} & {get(*place) for place in (*CUDA, *CPU)}
    assert seen() == before


def test_two_threads_and_an_exception() -> None:
    """The first call ends, by an exception, while the second is under way: that one stays exact."""
    torch.backends.fp32_precision = "tf32"
    before, steps = seen(), [threading.Event() for _ in range(3)]
    found: list[Any] = []

    def first() -> None:
        try:
            with backend_settings(presets.load("cpu"), torch.float32):
                steps[0].set()
                steps[1].wait(10)
                raise ZeroDivisionError
        except ZeroDivisionError:
            steps[2].set()

    def second() -> None:
        steps[0].wait(10)
        with backend_settings(presets.load("cpu"), torch.float32):
            steps[1].set()
            steps[2].wait(10)
            found.extend(get(*place) for place in (*CUDA, *CPU))

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == ["ieee"] * 6
    assert seen() == before


def test_many_threads_at_once() -> None:
    torch.set_float32_matmul_precision("medium")
    before, wrong = seen(), []

    def work(kind: str) -> None:
        for _ in range(40):
            with borrowed(kind):
                places = {"f32 cuda": CUDA, "f32 cpu": CPU}.get(kind, ())
                wrong.extend(place for place in places if get(*place) not in ("ieee", "none"))
                if kind == "no search" and torch._C._get_cudnn_benchmark():
                    wrong.append(kind)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in (*KINDS, *KINDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    assert seen() == before


def test_what_somebody_sets_meanwhile_stays() -> None:
    with borrowed("f32 cuda"):
        put("cuda", "conv", "none")
        torch._C._set_cudnn_benchmark(True)
        with borrowed("no search"):
            torch._C._set_cudnn_benchmark(False)
            torch._C._set_cudnn_benchmark(True)
        assert torch._C._get_cudnn_benchmark()
    assert get("cuda", "conv") == "none"
    assert get("cuda", "rnn") == "tf32"
    with borrowed("f32 cuda"):
        torch.set_float32_matmul_precision("high")
        with borrowed("f32 cuda"):
            assert get("cuda", "matmul") == "ieee"
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("first", ["f32 cpu", "f32 cuda"])
def test_the_old_interface_reads_while_devices_overlap(first: str) -> None:
    """It is one for both: whoever comes second finds part of it changed."""
    torch.set_float32_matmul_precision("medium")
    before, second = fingerprint_of("matmul medium"), {"f32 cpu": "f32 cuda", "f32 cuda": "f32 cpu"}[first]
    with borrowed(first), borrowed(second):
        assert old() == {"matmul": "highest", "cublas": False, "cudnn": False}
    assert fingerprint() == before


def fingerprint_of(name: str) -> list[dict[Any, Any]]:
    """Of one setting by itself, which is set again."""
    found = fingerprint()
    reset()
    ACTIONS[name]()
    return found
