"""Digests of source files, found without importing anything.

What a class computes is written in the file that defines it and in the files that this file imports from. Files of the
same top-level package are followed; for a module that is a plain file, such as ``vae.py``, those beside it. Imports are
read from the text, those inside functions too; what ``importlib.import_module`` loads is not seen. The ``__init__.py``
of a package that merely holds a module adds its text. A name that is imported from a package is looked up in the import
lines of its ``__init__.py``, those for type checkers included: packages that load lazily keep them there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from bisect import bisect
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

__all__ = ["closure_digests", "import_closure", "import_closure_digest", "own_digest", "package_version"]

_FAMILIES = Path(__file__).parents[2] / "models" / "families"
_CAPTURE = (
    "tvae.pipeline.session.captures",
    *(f"tvae.pipeline.models.families.{path.stem}" for path in sorted(_FAMILIES.glob("*.py")) if path.stem[0] != "_"),
)
"""Where the part of a key that covers tvae's own code begins: what captures, and what gives it functions to capture."""

_WORD = re.compile(rb"import\b[ \t]*")
_BEFORE = re.compile(rb"(?:[^\n'\"#]*[;:])?[ \t]*(from[ \t]*(\.*)[ \t]*([\w.]*)[ \t]*)?")
_NAMES = re.compile(rb"\(((?:[^)#]|#[^\n]*)*)\)|((?:\\\r?\n|[^\n;#])*)")
_CHECKED = re.compile(rb"^if [^\n]*\bTYPE_CHECKING\b[^\n]*\n(?:(?:[ \t][^\n]*|#[^\n]*|\r?)\n)*", re.MULTILINE)
_QUOTES = re.compile(rb"\"\"\"")
_COMMENT = re.compile(rb"#[^\n]*|\\\r?\n")


class _Import(NamedTuple):
    """One import. dots: how many lead. names: what is imported and what it is called; none for ``import module``."""

    dots: int
    module: str
    names: tuple[tuple[str, str], ...] = ()


class _File(NamedTuple):
    """lazy: the imports that only a type checker runs."""

    digest: bytes
    imports: tuple[_Import, ...]
    lazy: tuple[_Import, ...]


class _Place(NamedTuple):
    """Where a module is: its file, and the folders of its submodules where it is a package."""

    file: Path | None
    folders: tuple[Path, ...] = ()


def import_closure_digest(module: str) -> str | None:
    """Digest of a module's file, of every file of its package that it comes to import, and of the package's version.

    module: dotted name, such as ``diffusers.models.autoencoders.autoencoder_kl``. None where there is no source to be
    read. Read once in the life of a process: what it has imported does not change when a file does.
    """
    return closure_digests(frozenset((module,))).get(module.partition(".")[0])


@lru_cache(maxsize=256)
def closure_digests(modules: frozenset[str]) -> dict[str, str]:
    """The same of several modules, one digest for each top-level package; modules without a source add nothing."""
    found = {}
    for root in sorted({name.partition(".")[0] for name in modules}):
        files = import_closure(*sorted(name for name in modules if name.partition(".")[0] == root))
        if files:
            digest = hashlib.sha256(package_version(root).encode())
            for name, path in sorted(files.items()):
                digest.update(name.encode() + b"\0" + _read(path).digest)
            found[root] = digest.hexdigest()
    return found


def own_digest() -> str:
    """Our own part of a graph's key: the version of tvae and all of its sources that a capture runs through."""
    return closure_digests(frozenset(_CAPTURE))["tvae"]


@lru_cache(maxsize=256)
def package_version(package: str) -> str:
    """The version of an installed package; ``none`` for what was not installed as one."""
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "none"


def import_closure(*modules: str) -> dict[str, Path]:
    """The files that these modules of one package come to import, by dotted name; those without a source add none."""
    closure = _Closure(modules[0].partition(".")[0])
    for module in modules:
        if closure.has_source(module):
            closure.follow(module)
    return closure.files


class _Closure:
    """Collects files. Nothing is looked up twice, so cycles end."""

    def __init__(self, root: str) -> None:
        self.files: dict[str, Path] = {}
        self._places: dict[str, _Place | None] = {}
        self._followed, self._asked = set[str](), set[tuple[str, str]]()
        self._root = root
        top = self._place(root)
        plain = top is not None and top.file is not None and not top.folders
        beside = top.file.parent if top is not None and top.file is not None and plain else None
        self._beside = None if beside is None or beside.name in ("site-packages", "dist-packages") else beside

    def has_source(self, module: str) -> bool:
        """Is there a file to be read?"""
        place = self._place(module)
        return place is not None and place.file is not None

    def follow(self, module: str) -> None:
        """Add a module and all that its import lines reach."""
        todo = [module]
        while todo:
            name = todo.pop()
            place = self._place(name)
            if name in self._followed or place is None:
                continue
            self._followed.add(name)
            self._keep(name)
            for line in _read(place.file).imports if place.file else ():
                todo += self._reached(name, place, line)

    def _keep(self, name: str) -> None:
        """Add a module's file, and those of the packages around it: they run first."""
        while name and name not in self.files:
            place = self._place(name)
            if place is not None and place.file is not None:
                self.files[name] = place.file
            name = name.rpartition(".")[0]

    def _reached(self, name: str, place: _Place, line: _Import) -> list[str]:
        """The modules that one import line of a module reaches."""
        base = line.module
        if line.dots:
            package = name.split(".") if place.folders else name.split(".")[:-1]
            base = ".".join([*package[: len(package) - line.dots + 1], *filter(None, [line.module])])
        if not self._ours(base):
            return []
        return [m for wanted, _ in line.names for m in self._holding(base, wanted)] if line.names else [base]

    def _ours(self, name: str) -> bool:
        root = name.partition(".")[0]
        return root == self._root or (self._beside is not None and self._place(root) is not None)

    def _holding(self, base: str, wanted: str) -> list[str]:
        """The modules that ``from base import wanted`` takes the name from."""
        if (base, wanted) in self._asked:
            return []
        self._asked.add((base, wanted))
        place, inner = self._place(base), f"{base}.{wanted}"
        if place is None or not place.folders or wanted == "*":
            return [base]
        if self._place(inner) is not None:
            return [inner]
        self._keep(base)
        if place.file is None or wanted.startswith("__"):
            return []
        imports = _read(place.file).imports + _read(place.file).lazy
        given = [i._replace(names=((name, called),)) for i in imports for name, called in i.names if called == wanted]
        stars = [i for i in imports if ("*", "*") in i.names]
        found = [m for line in given or stars for m in self._reached(base, place, line)]
        return found if given else [base, *found]

    def _place(self, name: str) -> _Place | None:
        if name not in self._places:
            self._places[name] = self._locate(name)
        return self._places[name]

    def _locate(self, name: str) -> _Place | None:
        parent, _, last = name.rpartition(".")
        if not parent and name != self._root:
            return _in_folder(self._beside, name) if self._beside is not None else None
        around = self._place(parent) if parent else None
        if not parent or (around is not None and around.file is None and not around.folders):
            return _by_finders(name)
        found = (_in_folder(folder, last) for folder in around.folders) if around is not None else iter(())
        inside = next(filter(None, found), None)
        if inside is None and around is not None and around.folders and parent == self._root and parent in sys.modules:
            return _by_finders(name)  # which may know parts of a package from other folders, and imports its first name
        return inside


def _in_folder(folder: Path, name: str) -> _Place | None:
    package = folder / name
    if (file := package / "__init__.py").is_file():
        return _Place(file, (package,))
    if (file := folder / f"{name}.py").is_file():
        return _Place(file)
    return _Place(None, (package,)) if package.is_dir() and name.isidentifier() else None


@lru_cache(maxsize=256)
def _by_finders(name: str) -> _Place | None:
    """A module that needs no import to be found: a top-level one, or part of a package without a file of its own."""
    if name == "__main__":
        file = getattr(sys.modules[name], "__file__", None)
        return _Place(Path(file)) if file and Path(file).is_file() else None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is not None and spec.origin is None:
        return _Place(None)  # a namespace package: the finders may know its parts from other folders
    if not spec.origin or not spec.origin.endswith(".py") or not Path(spec.origin).is_file():
        return None
    return _Place(Path(spec.origin), tuple(map(Path, spec.submodule_search_locations or ())))


@lru_cache(maxsize=4096)
def _read(path: Path) -> _File:
    text = path.read_bytes()
    lazy = b"".join(_CHECKED.findall(text)) if b"TYPE_CHECKING" in text else b""
    run = _CHECKED.sub(b"", text) if lazy else text
    return _File(hashlib.sha256(text).digest(), tuple(_imports(run)), tuple(_imports(lazy)))


def _imports(text: bytes) -> Iterator[_Import]:
    quotes = [found.start() for found in _QUOTES.finditer(text)]
    if len(quotes) % 2:  # one of them is part of another expression: do not treat it as a docstring
        quotes = []
    for word in _WORD.finditer(text):
        start = text.rfind(b"\n", 0, word.start()) + 1
        before = _BEFORE.fullmatch(text, start, word.start())
        if before is None or (text[start : start + 1].isspace() and bisect(quotes, start) % 2):
            continue  # a comment, a name, or an example in a docstring
        given, dots, module = before.groups()
        listed = _NAMES.match(text, word.end())
        names = _names((listed[1] or listed[2]) if listed else b"")
        if given is not None:
            yield _Import(len(dots), module.decode(errors="replace"), tuple(names))
        else:
            yield from (_Import(0, name) for name, _ in names)


def _names(text: bytes) -> Iterator[tuple[str, str]]:
    for part in _COMMENT.sub(b" ", text).decode(errors="replace").split(","):
        words = part.split()
        if len(words) in (1, 3):
            yield words[0], words[-1]
