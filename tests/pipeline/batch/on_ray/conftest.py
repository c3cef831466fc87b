"""A Ray cluster of two nodes on this machine, whose workers have a stand-in for the VAE."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from living_processes import living

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.on_ray.engine import on_ray
from tvae.pipeline.batch.run import Options, StepResult, run_batch
from tvae.pipeline.jobs import Event
from tvae.pipeline.jobs.devices import started

WORKER = Path(__file__).parents[3] / "helpers" / "device_worker.py"


class TwoNodes:
    """A head that takes no workers, and two nodes that take one each. pids: where workers leave their numbers."""

    def __init__(self, pids: Path) -> None:
        from ray.cluster_utils import Cluster

        self._pids = pids
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address: str = self._cluster.address
        self._nodes: list[Any] = []
        self.add_node()
        self.add_node()

    def add_node(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=1))

    def kill_node(self) -> None:
        self._cluster.remove_node(self._nodes.pop(0), allow_graceful=False)

    def kill_worker(self) -> None:
        """The process that computes."""
        os.kill(living(self._pids)[0], signal.SIGKILL)

    def kill_actor(self) -> None:
        status = Path(f"/proc/{living(self._pids)[0]}/status").read_text()
        os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)

    def workers(self) -> int:
        """That there are."""
        return len(living(self._pids))

    def end(self) -> None:
        self._cluster.shutdown()


@pytest.fixture
def two_nodes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    pytest.importorskip("ray", reason="needs the extra ray")
    pids = tmp_path_factory.mktemp("pids")
    monkeypatch.setenv("TVAE_TEST_PIDS", str(pids))
    nodes = TwoNodes(pids)
    yield nodes
    nodes.end()


@pytest.fixture
def on_nodes(two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs a job file of this text on them; mode: see ``device_worker``. hear: is told each event. program: what
    workers start."""

    def run(
        text: str,
        mode: str = "as-it-is",
        hear: Callable[[Event], None] = lambda _event: None,
        program: str = str(WORKER),
        **options: Any,
    ) -> tuple[list[StepResult], list[Event]]:
        monkeypatch.setattr(started, "COMMAND", (sys.executable, program, mode))
        (tmp_path / "job.toml").write_text("batch = 1\n" + text, encoding="utf-8")
        events: list[Event] = []

        def heard(event: Event) -> None:
            events.append(event)
            hear(event)

        with on_ray(two_nodes.address) as elsewhere:
            results = run_batch(read_job_file(tmp_path / "job.toml"), Options(elsewhere=elsewhere, **options), heard)
        return results, events

    return run
