"""What a cluster cannot be used for is told in one line, before any work."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from job_files import DECODE, ENCODE

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.on_ray import alike, shared_folder
from tvae.pipeline.batch.on_ray.actor_process import Placed
from tvae.pipeline.batch.on_ray.alike import other_model, unlike
from tvae.pipeline.batch.on_ray.cluster import _NICENESS, Cluster, Node, Workers, connected
from tvae.pipeline.batch.on_ray.identity import identity
from tvae.pipeline.batch.on_ray.run import _ClusterRun
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.devices.messages import Ready

Run = Callable[..., Any]
HERE = {"identity": identity(), "sees": True}
PLACE = ("/job", "/out/proof")


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'tvae\[ray\]'"), connected("auto", Workers()):
        pass


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ray://head:10001", "use ray job submit"),
        ("cluster", "is no address"),
        ("head:port", "no Ray cluster answers at head:port"),
        ("127.0.0.1:99999", "no Ray cluster answers at"),
        ("127.0.0.1:{free}", "no Ray cluster answers at"),
    ],
)
def test_an_address_without_a_cluster(address: str, told: str) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with (
            pytest.raises(UsageError, match=told),
            connected(address.format(free=free.getsockname()[1]), Workers()),
        ):
            pass


@pytest.mark.parametrize(("chosen", "found"), [(None, "0"), ("7", "7")])
def test_workers_of_its_own_cluster_do_not_come_last(
    chosen: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user wants it. Ray's nodes have the environment of the command then."""
    ray, seen = pytest.importorskip("ray", reason="needs the extra ray"), list[str | None]()
    monkeypatch.setenv(_NICENESS, chosen or "")
    if chosen is None:
        monkeypatch.delenv(_NICENESS)
    monkeypatch.setattr(ray, "init", lambda *_, **__: seen.append(os.environ.get(_NICENESS)))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connected("local", Workers()):
        assert seen == [found]


def test_a_job_for_the_devices_of_one_machine(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(ENCODE + DECODE + 'devices = "2"', encoding="utf-8")
    options = Options(elsewhere=lambda *_: pytest.fail("it was begun"))
    with pytest.raises(UsageError, match="devices are of one machine"):
        run_batch(read_job_file(tmp_path / "job.toml"), options, lambda _event: None)
    assert not (tmp_path / "out").exists()


def test_places() -> None:
    assert unlike(HERE, PLACE) is None
    assert unlike({"absent": "No module named 'tvae'"}, PLACE) == (
        "there is no such tvae (No module named 'tvae'); install the same"
    )
    torch = {**identity(), "torch": "2.9.0"}
    assert unlike({**HERE, "identity": torch}, PLACE) == (
        f"it has other versions: torch 2.9.0 (here {identity()['torch']}); install the same"
    )
    assert "does not see /job and /out as they are here" in str(unlike({**HERE, "sees": False}, PLACE))


def test_models() -> None:
    first = Ready("sdxl", "bfloat16", "cuda:0", "a" * 64)
    assert other_model(first, first, gpu=True) is None
    assert other_model(Ready("sdxl", "bfloat16", "cuda:0", "b" * 64), first, gpu=True) == (
        "its VAE is another one: weights bbbbbbbbbbbb, the first worker's aaaaaaaaaaaa"
    )
    assert "name a dtype in the job" in str(other_model(Ready("sdxl", "float32", "cuda:0", "a" * 64), first, gpu=True))
    assert "finds no GPU" in str(other_model(Ready("sdxl", "bfloat16", "cpu", "a" * 64), first, gpu=True))


def test_the_checksum_is_of_the_sources(tmp_path: Path) -> None:
    found = identity()
    assert set(found) == {"tvae", "torch", "diffusers"}
    assert len(found["tvae"]) == 12
    assert "+" not in found["torch"]


@pytest.mark.parametrize(
    ("workers", "node", "gpus", "room"),
    [
        (Workers(), (8, 0), 0, 1),  # all CPUs are one worker's
        (Workers(), (0, 0), 0, 0),  # a head that is kept free
        (Workers(cpus=3), (8, 0), 0, 2),
        (Workers(), (64, 8), 1, 8),
        (Workers(), (4, 8), 1, 4),  # each has a CPU
        (Workers(), (64, 0), 1, 0),
        (Workers(gpus=0.25), (64, 2), 0.25, 8),
        (Workers(cpus=0, gpus=1 / 3), (0, 1), 1 / 3, 3),
        (Workers(cpus=0), (8, 0), 0, 1),
    ],
)
def test_room(workers: Workers, node: tuple[float, float], gpus: float, room: int) -> None:
    cluster = Cluster.__new__(Cluster)
    cluster.workers = workers
    assert cluster.room(Node("0", "host", *node), gpus) == room


@pytest.mark.parametrize(
    ("gpus", "sharers"), [(0, 1), (1, 1), (2, 1), (0.5, 2), (0.3, 3), (1 / 3, 3), (0.25, 4), (0.7, 1)]
)
def test_workers_that_share_a_gpu_plan_with_their_part(gpus: float, sharers: int) -> None:
    assert Cluster.sharers(gpus) == sharers
    run, told = _ClusterRun.__new__(_ClusterRun), list[Any]()
    run._placed, run._gpus, run._place, run._cluster = set(), float(gpus), ("", ""), Cluster.__new__(Cluster)
    run._context = SimpleNamespace(job_elsewhere=Job("encode", ("in",)))  # type: ignore[assignment]
    run._actors = [SimpleNamespace(begin=told.append)]  # type: ignore[list-item]
    run._has_place(0, Placed({"identity": identity(), "sees": True}))
    (begin,) = told
    assert (begin.job.sharers, begin.job.device) == (sharers, None if gpus else "cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's clusters of several nodes need Linux or macOS")
def test_on_a_cluster(on_nodes: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(alike, "identity", lambda: {**identity(), "tvae": "0" * 12})
        with pytest.raises(UsageError, match=r"^worker \d on \S+: it has other versions: tvae .* \(here 0{12}\)"):
            on_nodes(ENCODE)
    with monkeypatch.context() as patch:
        patch.setattr(shared_folder, "owned_name", lambda _: "not-there")
        patch.setattr(Path, "touch", lambda _path: None)
        with pytest.raises(UsageError, match=r"does not see .* as they are here"):
            on_nodes(ENCODE)
    with pytest.raises(UsageError, match=r"^worker \d on \S+: unknown dtype 'bf17'"):
        on_nodes('dtype = "bf17"\n' + ENCODE)
    before = signal.getsignal(signal.SIGTERM)
    (result,), _ = on_nodes(ENCODE, hear=lambda _event: held.append(signal.getsignal(signal.SIGTERM)))
    assert {*held} == {before} == {signal.getsignal(signal.SIGTERM)}
    assert (result.done, result.failed) == (9, 0)
