"""The actor without Ray: what passes through it is what the process says, and it tells how that ended."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tvae.pipeline.batch.on_ray import relay as relay_module
from tvae.pipeline.batch.on_ray.identity import identity
from tvae.pipeline.batch.on_ray.relay import Relay

ECHO = """
import sys
while len(head := sys.stdin.buffer.read(9)) == 9:
    data = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    sys.stdout.buffer.write(bytes([data[-1:] == b"+"]) + head[1:] + data)
    sys.stdout.buffer.flush()
"""


def heard(relay: Relay) -> tuple[list[bytes], int]:
    """All that it says until its process ends, and how that did."""
    found: list[bytes] = []
    while True:
        messages, code = relay.hear()
        found += messages
        if code is not None:
            return found, code


def test_messages_pass_in_order(tmp_path: Path) -> None:
    relay = Relay()
    relay.start(["-c", ECHO], str(tmp_path))
    sent = [pickle.dumps("x" * n) for n in range(700)]
    for data in sent:
        relay.tell(data)
    relay.dismiss()
    assert heard(relay) == (sent, 0)
    relay.tell(b"late")  # to nobody


@pytest.mark.long
def test_what_can_wait_comes_with_what_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``+`` at its end says that it may."""
    relay = Relay()
    relay.start(["-c", ECHO], str(tmp_path))
    relay.tell(b"first")  # the process has begun
    assert relay.hear() == ([b"first"], None)
    monkeypatch.setattr(relay_module, "_GATHER_SECONDS", 2.0)
    for data in (b"a+", b"b+", b"c"):
        relay.tell(data)
    begin = time.monotonic()
    assert relay.hear() == ([b"a+", b"b+", b"c"], None)
    assert time.monotonic() - begin < 2.0, "c does not wait"
    relay.tell(b"d+")
    late = threading.Timer(0.1, relay.tell, (b"e+",))
    late.start()
    assert relay.hear() == ([b"d+", b"e+"], None)
    assert time.monotonic() - begin < 6, "but not for as long as it waits for the first"
    late.join()
    relay.dismiss()
    assert heard(relay) == ([], 0)


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    relay = Relay()
    relay.start(["-c", ECHO], str(tmp_path))
    relay.tell(b"message")
    assert relay.hear() == ([b"message"], None)
    relay.kill()
    assert heard(relay) == ([], -signal.SIGKILL)


def test_a_message_that_is_cut_off_is_none(tmp_path: Path) -> None:
    relay = Relay()
    relay.start(["-c", "import sys; sys.stdout.buffer.write((9).to_bytes(9, 'big') + b'half'); sys.exit(3)"], ".")
    assert heard(relay) == ([], 3)


def test_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "proof").touch()
    found = Relay().place(str(tmp_path), str(tmp_path / "proof"))
    assert found["sees"]
    assert found["identity"] == identity()
