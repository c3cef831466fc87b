"""The program answers at once when there is nothing to compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

PROGRAM = "from tvae.cli.app import main; main()"
HEAVY = ("torch", "av", "diffusers", "numpy", "PIL", "safetensors", "rich.progress", "tvae.pipeline.errors")


def run(*arguments: str, code: str = PROGRAM, **variables: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-c", code, *arguments], os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


TIMED = """
import time
from tvae.cli.app import main
try:
    main()
finally:
    print("seconds", time.process_time())
"""


@pytest.fixture(scope="module")
def of_torch() -> float:
    """Seconds of the processor that importing PyTorch takes here: half a second on one machine is two on another."""
    return float(run(code="import time, torch; print(time.process_time())").stdout)


@pytest.mark.parametrize("arguments", [["--help"], ["encode", "--help"], ["--version"]])
def test_help_is_instant(arguments: list[str], of_torch: float) -> None:
    """In the processor's time, the interpreter's own start included: other work on the machine does not count."""
    result = run(*arguments, code=TIMED)
    assert result.returncode == 0
    assert float(result.stdout.split()[-1]) < 0.5 * of_torch


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tvae.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    for arguments in (["--help"], ["encode", "--help"], ["--version"], ["encode", "--bad-flag"]):
        assert "heavy: []" in run(*arguments, code=code).stdout


def test_a_named_command_is_made_alone() -> None:
    """To make the others takes as long as much of what they do."""
    code = (
        "import sys\nfrom tvae.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('others:', [name for name in ('decode', 'bench', 'preset') if f'tvae.cli.{name}' in sys.modules])"
    )
    for words, others in (
        (["encode", "--help"], []),
        (["preset", "--help"], ["preset"]),
        (["encod", "--help"], ["decode", "bench", "preset"]),
    ):
        assert run(*words, code=code).stdout.splitlines()[-1] == f"others: {others}"


def test_completion_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tvae.cli.app import whole\n"
        "try:\n    whole()(prog_name='tvae')\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    for words in ("tvae enc", "tvae encode --preset h", "tvae encode --dtype f"):
        asked = {"_TVAE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        told = run(code=code, **asked).stdout.splitlines()
        assert len(told) > 1
        assert told[-1] == "heavy: []"


SEVERAL = (
    "import json, sys\nfrom tvae.cli.app import main\n"
    "for sys.argv[1:] in json.loads(sys.argv[1]):\n"
    "    try:\n        main()\n    except SystemExit as end:\n        print('code:', end.code)\n"
    "    print('torch:', 'torch' in sys.modules)"
)
"""Runs of the program, one after the other in one process."""


@pytest.mark.long
def test_a_dry_run_needs_no_torch(tmp_path: Path) -> None:
    """Its import takes longer than a dry run of 20,000 files."""
    (tmp_path / "in").mkdir()
    for name in ("p.png", "q.jpg"):
        Image.new("RGB", (16, 16), (200, 100, 50)).save(tmp_path / "in" / name)
    folder, made, out = (str(tmp_path / name) for name in ("in", "latents", "out"))
    assert run("encode", folder, "-o", made, "--device", "cpu", "-q").returncode == 0
    runs = [
        [operation, where, "-o", out, "--dry-run", *more]
        for operation, where in (("encode", folder), ("roundtrip", folder), ("decode", made))
        for more in ([], ["--device", "cpu", "--json"])
    ]
    told = run(json.dumps(runs), code=SEVERAL)
    ends = [line for line in told.stdout.splitlines() if line.startswith(("code: ", "torch: "))]
    assert ends == ["code: 0", "torch: False"] * len(runs), told.stderr
    refused = run("encode", folder, "-o", out, "--dry-run", "--device", "cuda:99")
    assert "device 'cuda:99' cannot be used here" in refused.stderr


@pytest.mark.slow
def test_an_exact_dry_run_of_what_is_new_needs_no_torch(tmp_path: Path) -> None:
    """What has no output yet is looked at without the VAE; where one is there, it is compared."""
    (tmp_path / "in").mkdir()
    for name in ("p.png", "q.jpg"):
        Image.new("RGB", (16, 16), (200, 100, 50)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "bad.png").write_bytes(b"no picture")
    runs = []
    for operation in ("encode", "roundtrip"):
        job = tmp_path / f"{operation}.toml"
        job.write_text(f'operation = "{operation}"\ninputs = "in"\noutput = "out-{operation}"\n')
        runs.append(["batch", str(job), "--dry-run", "--json"])
    told = run(json.dumps(runs), code=SEVERAL)
    assert [line for line in told.stdout.splitlines() if line.startswith("torch: ")] == ["torch: False"] * 2, (
        told.stderr
    )
    counts = [json.loads(line)["steps"][0] for line in told.stdout.splitlines() if '"batch_done"' in line]
    assert [(one["planned"], one["failed"]) for one in counts] == [(2, 1)] * 2
    made = run("encode", str(tmp_path / "in" / "p.png"), "-o", str(tmp_path / "out-encode"), "--device", "cpu", "-q")
    assert made.returncode == 0
    again = run(json.dumps(runs[:1]), code=SEVERAL).stdout
    assert "torch: True" in again
    assert [line for line in again.splitlines() if '"item_skipped"' in line and "p.png" in line]
    for line, why in (('vae = "no-such-vae"', "no VAE 'no-such-vae'"), ('dtype = "int3"', "unknown dtype 'int3'")):
        job.write_text(f'operation = "encode"\ninputs = "in"\noutput = "out"\n{line}\n')
        refused = run("batch", str(job), "--dry-run")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert why in refused.stderr


def test_a_traceback_is_never_the_answer() -> None:
    result = run("encode", "no-such-file")
    assert result.returncode == 2
    assert result.stderr.splitlines() == ["tvae: no-such-file does not exist"]
    assert result.stdout == ""


FIRST_STRIP = """
import sys, time
begin = time.process_time()
import torch
after_torch = time.process_time()
import tvae.pipeline.session.runner as runner
execute = runner.execute
def first(*arguments, **options):
    started = time.process_time()
    heavy = [name for name in ("diffusers", "transformers", "torch._dynamo", "sympy") if name in sys.modules]
    print("measured", (started - begin) / (after_torch - begin), heavy)
    return execute(*arguments, **options)
runner.execute = first
from tvae.cli.app import main
main()
"""


@pytest.mark.long
def test_the_builtin_vae_starts_at_once(tmp_path: Path) -> None:
    """Nothing being on disk yet, its first strip comes within twice the time of importing torch: no diffusers is
    imported, and nothing is captured."""
    Image.new("RGB", (16, 16), (200, 100, 50)).save(tmp_path / "p.png")
    arguments = ("encode", str(tmp_path / "p.png"), "-o", str(tmp_path), "--overwrite", "--device", "cpu")
    best = float("inf")
    cache = str(tmp_path / "cache")
    for _ in range(5):  # they may be disturbed
        result = run(*arguments, code=FIRST_STRIP, XDG_CACHE_HOME=cache, WIN_PD_OVERRIDE_LOCAL_APPDATA=cache)
        assert result.returncode == 0, result.stderr
        (line,) = (line for line in result.stdout.splitlines() if line.startswith("measured"))
        _, ratio, heavy = line.split(" ", 2)
        assert heavy == "[]"
        best = min(best, float(ratio))
        if best < 2:
            break
    assert best < 2


@pytest.mark.parametrize("where", ["typer", "tvae.cli.waiting"])
def test_ctrl_c_while_modules_are_loaded_ends_without_a_traceback(where: str, tmp_path: Path) -> None:
    """The signal comes with the import of a module, before the command's own handlers are there."""
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and so their children, ignore it
class Pressed:
    def find_spec(self, name, *_):
        if name == {where!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Pressed())
from tvae.cli.__main__ import program
program()
"""
    ended = run("--version", code=code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
