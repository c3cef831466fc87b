"""The actor without Ray: what passes through it is what the process says, and it tells how that ended."""

from __future__ import annotations

import pickle
import signal
import sys
from pathlib import Path

import pytest

from tvae.pipeline.batch.on_ray.identity import identity
from tvae.pipeline.batch.on_ray.relay import Relay

ECHO = """
import sys
while len(head := sys.stdin.buffer.read(8)) == 8:
    data = sys.stdin.buffer.read(int.from_bytes(head, "big"))
    sys.stdout.buffer.write(head + data)
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
    relay.start(["-c", "import sys; sys.stdout.buffer.write((9).to_bytes(8, 'big') + b'half'); sys.exit(3)"], ".")
    assert heard(relay) == ([], 3)


def test_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "proof").touch()
    found = Relay().place(str(tmp_path), str(tmp_path / "proof"))
    assert found["sees"]
    assert found["identity"] == identity()
