"""What is known of results in a store, as they are sent again and again."""

from __future__ import annotations

from tvae.pipeline.jobs.remote.there import There
from tvae.pipeline.stores import KINDS, Place, RemoteFile, Store

STORE = Store(KINDS["s3"])


def file(key: str, size: int = 1) -> RemoteFile:
    return RemoteFile(STORE, Place(STORE.kind, key), size, 0, str(size))


def keys(found: list[RemoteFile]) -> list[str]:
    return sorted(one.place.key for one in found)


def test_a_clip_that_was_replaced_has_its_new_parts_alone() -> None:
    there, clip = There(), "b/a.latents"
    there.put("", [file(f"{clip}/{name}") for name in ("000000.safetensors", "000016.safetensors", "index.json")])
    there.put("", [file("b/a.safetensors")])
    assert len(there.parts(clip)) == 3
    there.put(clip, [file(f"{clip}/000000.safetensors", 2), file(f"{clip}/index.json", 2)])
    assert keys(there.parts(clip)) == [f"{clip}/000000.safetensors", f"{clip}/index.json"]
    assert there.file(f"{clip}/000016.safetensors") is None
    assert there.result(clip) == file(f"{clip}/index.json", 2)
    there.put(clip, [])
    assert (there.parts(clip), there.result(clip)) == ([], None)
    assert there.result("b/a.safetensors") == file("b/a.safetensors")


def test_a_file_that_has_gone() -> None:
    there = There()
    there.put("", [file("b/a.png"), file("b/c.png")])
    there.put("b/a.png", [])
    assert (there.result("b/a.png"), there.file("b/c.png")) == (None, file("b/c.png"))
