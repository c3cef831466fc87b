"""Launchers that several threads load at once: each gets its own, though all are modules by one name."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tvae.kernels.triton_launchers import load_apart

SOURCE = """
#include <Python.h>
static PyObject *launch(PyObject *self, PyObject *args) { return PyLong_FromLong(NUMBER); }
static PyMethodDef methods[] = {{"launch", launch, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tvae_test_launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_tvae_test_launcher(void) { return PyModule_Create(&definition); }
"""
NAME = "tvae_test_launcher"
"""Not Triton's own name: this process may have launchers of it."""


def as_triton_loads(name: str, path: str) -> ModuleType:
    """What Triton 3.5 and 3.6 do (triton/runtime/build.py)."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def launchers(tmp_path: Path) -> list[str]:
    compiler = shutil.which("gcc") or shutil.which("clang")
    include = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(include) / "Python.h").exists() or sys.platform == "win32":
        pytest.skip("no C compiler, or no headers of Python")
    paths = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        (source := tmp_path / str(number) / "launcher.c").write_text(SOURCE.replace("NUMBER", str(number)))
        path = source.with_name(NAME + sysconfig.get_config_var("EXT_SUFFIX"))
        subprocess.run([compiler, source, "-shared", "-fPIC", f"-I{include}", "-o", path], check=True)
        paths.append(str(path))
    return paths


def wrong_ones(load: Callable[[str, str], Any], paths: list[str]) -> int:
    """How often a thread got the launcher of another: what Triton keeps for all launches of a kernel."""
    wrong, begin = [0] * len(paths), threading.Barrier(len(paths))

    def work(number: int) -> None:
        begin.wait()
        for _ in range(5000):
            module = load(NAME, paths[number])
            wrong[number] += module.launch() != number

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(paths))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
        sys.modules.pop(NAME, None)
    return sum(wrong)


def test_what_was_loaded_stays(launchers: list[str]) -> None:
    place = SimpleNamespace(_load_module_from_path=as_triton_loads)
    load_apart(place)
    twice = [place._load_module_from_path(NAME, path) for _ in range(2) for path in launchers]
    assert [launcher.launch() for launcher in twice] == [0, 1, 2, 0, 1, 2]  # by Triton itself: 0, 1, 2, 2, 2, 2


def test_each_thread_gets_its_own(launchers: list[str]) -> None:
    place = SimpleNamespace(_load_module_from_path=as_triton_loads)
    load_apart(place)
    assert wrong_ones(place._load_module_from_path, launchers) == 0


def test_once_and_only_where_there_is_something_to_mend() -> None:
    place = SimpleNamespace(_load_module_from_path=as_triton_loads)
    load_apart(place)
    mended = place._load_module_from_path
    load_apart(place)
    assert place._load_module_from_path is mended
    load_apart(empty := SimpleNamespace())
    assert vars(empty) == {}
    place = SimpleNamespace(_load_module_from_path=lambda _name, path: (_ for _ in ()).throw(ImportError(path)))
    load_apart(place)
    for _ in range(2):  # the first lets the lock go
        with pytest.raises(ImportError, match="nowhere"):
            place._load_module_from_path(NAME, "nowhere")


def test_triton_itself_loads_so() -> None:
    pytest.importorskip("triton")
    from triton.runtime import build

    import tvae.kernels.triton

    assert tvae.kernels.triton.IMPLEMENTATIONS
    assert hasattr(build._load_module_from_path, "apart")
