"""Whole commands of tvae, and what they are measured against, by the clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvae.pipeline.settings.cores import usable_cores

__all__ = ["Timed"]

_BESIDE = Path(__file__).parent.parent / "beside_jobs.py"


class Timed:
    """vae: the folder of the one that commands take. more: further words for them. longest: seconds of one process."""

    def __init__(
        self, work: Path, vae: str, device: str, dtype: str, preset: str | None, more: str, longest: float
    ) -> None:
        self._work, self._vae, self._device, self._dtype = work, vae, device, dtype
        self._preset, self._more, self._longest = preset, more, longest

    def words(self, side: str, folder: Path, out: Path, vae: str) -> list[str]:
        words = [sys.executable, "-m", "tvae.cli", side, str(folder), "-o", str(out), "--device", self._device]
        words += ["--vae", vae, "--dtype", self._dtype, *self._more.split()]
        return [*words, "--preset", self._preset] if self._preset else words

    def command(self, side: str, folder: Path, out: Path, vae: str | None = None, *, anew: bool = True) -> float:
        """Seconds of the whole command."""
        if anew:
            _remove(out)
        begin = time.perf_counter()
        words = [*self.words(side, folder, out, vae or self._vae), "-q"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=self._longest)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()}")
        return time.perf_counter() - begin

    def after(self, side: str, folder: Path, out: Path, few: int) -> tuple[float, float]:
        """Photos a second from when a few are done to the last; seconds before the first at that rate."""
        _remove(out)
        heard = self.heard(self.words(side, folder, out, self._vae))
        done = [at for at, event in heard if event["type"] == "item_done"]
        rate = (len(done) - few) / (done[-1] - done[few - 1])
        return rate, done[few - 1] - few / rate

    def within(self, side: str, clip: Path, out: Path, vae: str) -> tuple[float, float]:
        """Frames a second from when at most a third of them are done until the result is complete; seconds before the
        first at that rate."""
        _remove(out)
        heard = list(self.heard(self.words(side, clip, out, vae)))
        told = [(at, event["done"], event["total"]) for at, event in heard if event["type"] == "progress"]
        at, few, frames = max((each for each in told if 3 * each[1] <= each[2]), default=told[0])
        end = next(at for at, event in heard if event["type"] == "item_done")
        rate = (frames - few) / (end - at)
        return rate, at - few / rate

    def heard(self, words: list[str]) -> Iterator[tuple[float, dict[str, Any]]]:
        """The events of a command, and after how many seconds they came."""
        begin = time.perf_counter()
        with subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                for line in process.stdout or ():
                    yield time.perf_counter() - begin, json.loads(line)
                _, failure = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"exit code {process.returncode}: {failure.strip()}")
            finally:
                process.kill()  # where nobody wants to hear more

    def plain(
        self, side: str, folder: Path, batch: int, most: int, vae: str | None = None, workers: int | None = None
    ) -> float:
        """Photos a second of the plain script."""
        request = {"what": "plain", "side": side, "folder": str(folder), "out": str(self._work / "plain")}
        request |= {"batch": batch, "workers": min(8, usable_cores()) if workers is None else workers}
        request |= {"most": min(most, 25 * batch + 100)}
        found = self.beside(request, vae)
        return float(found["photos"] / found["seconds"])

    def beside(self, request: dict[str, Any], vae: str | None = None) -> dict[str, Any]:
        request = {"vae": vae or self._vae, "device": self._device, "dtype": self._dtype, **request}
        done = subprocess.run(
            [sys.executable, str(_BESIDE), json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=self._longest,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def _remove(out: Path) -> None:
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
