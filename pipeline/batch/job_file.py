"""Reading a job file: TOML to steps. Everything wrong with it is one line that names the file, the step and the key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.check import VERIFY, CheckStep
from tvae.pipeline.batch.json_lines import OwnOptions, items_in
from tvae.pipeline.batch.keys import Key, cache_keys, keys, override_keys, shown
from tvae.pipeline.batch.names_below import names_below
from tvae.pipeline.caches.spec import CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import read_bytes, text_in
from tvae.pipeline.jobs.items import names_in
from tvae.pipeline.jobs.job import OPERATIONS, Job, Listed
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.remote.places import check_written
from tvae.pipeline.jobs.remote.refusals import refuse_urls
from tvae.pipeline.stores import is_url, parse_url
from tvae.presets import builtin
from tvae.presets.loader import parse_toml

__all__ = ["Override", "Step", "read_job_file"]

MOST_BYTES, MOST_LISTED = 1 << 22, 1 << 30
"""Of a job file, and of a list of inputs."""
_OF_A_STEP = ("operation", "inputs", "list", "listed", "jsonl", "output", "output_file", "cache", "override")
_OF_A_CHECK = ("operation", "inputs", "source", "vae", "allow_pickle")
_PATHS = ("spill",)
"""Keys of a step that are paths, always; a VAE is one where it exists."""
_HERE = Path()


@dataclass(frozen=True)
class Override:
    """What is different for the items that a pattern matches, or, without one, for those of ``jsonl`` that have its
    number. set: fields of ``Job``."""

    match: tuple[str, ...]
    set: Mapping[str, Any]

    def takes(self, path: str) -> bool:
        """path: as ``Step.path_of`` gives it. ``*`` goes across folders; a pattern may also be of the name alone."""
        return any(fnmatchcase(text, pattern) for pattern in self.match for text in (path, path.rpartition("/")[2]))


@dataclass(frozen=True)
class Step:
    """One run. overrides: those with patterns first, which are so many. said: what the file says of it, defaults
    included, as TOML has it."""

    job: Job
    overrides: tuple[Override, ...]
    patterned: int
    said: Mapping[str, Any]

    @property
    def output(self) -> str:
        """The folder that outputs go to, or below: a path, or a URL without a slash at its end."""
        output = self.job.output or "."
        if is_url(output):
            return output.rpartition("/")[0]
        return str(Path(output) if output.endswith(os.sep) else Path(output).parent)

    @property
    def said_output(self) -> str:
        """The same as the file says it."""
        file = self.said.get("output_file")
        if file is None:
            return str(self.said.get("output", "."))
        return file.rpartition("/")[0] if is_url(file) else Path(file).parent.as_posix()

    def path_of(self, item: Item) -> str:
        """An item's source, from the folder or pattern on that it was found by."""
        name = item.source.name if item.below is None else item.below.name
        return name if item.within == _HERE else f"{item.within.as_posix()}/{name}"

    def overrides_of(self, item: Item) -> tuple[int, ...]:
        """Those that an item has, by their number."""
        own = () if item.own is None else (item.own,)
        if not self.patterned:
            return own
        path = self.path_of(item)
        return *(n for n, override in enumerate(self.overrides[: self.patterned]) if override.takes(path)), *own

    def job_with(self, overrides: tuple[int, ...]) -> Job:
        """What is to be done of the items that have these overrides; of two for one key the later one counts."""
        changes: dict[str, Any] = {}
        for n in overrides:
            changes |= self.overrides[n].set
        return replace(self.job, **changes)


def read_job_file(path: Path) -> list[Step | CheckStep]:
    """The steps of a job file, one at least; names of files in it are from its folder. Raises UsageError."""
    try:
        data = parse_toml(text_in(read_bytes(path, MOST_BYTES)))
    except OSError as error:
        raise UsageError(f"cannot read the job {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # what is no TOML, no UTF-8, no file, or too large
        raise UsageError(f"the job {path} is not valid: {error}") from error
    reader = _Reader(path)
    if "step" not in data:
        return [reader.step(data, "")]
    reader.defaults = defaults = {name: value for name, value in data.items() if name != "step"}
    reader.check_names(defaults, keys(), "")
    tables = data["step"]
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise reader.wrong("", "step must be tables ([[step]])")
    return [reader.step({**defaults, **table}, f"step {n}: ") for n, table in enumerate(tables, 1)]


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._folder = path, path.parent
        self.defaults: Mapping[str, Any] = {}
        """What the file has for all steps."""

    def wrong(self, where: str, what: str) -> UsageError:
        return UsageError(f"the job {self._path}: {where}{what}")

    def check_names(self, data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        """Raises for the first that is not known."""
        known = [*known]
        for name in data:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                raise self.wrong(where, f"unknown key '{name}'{hint}")

    def step(self, data: Mapping[str, Any], where: str) -> Step | CheckStep:
        return self._check(data, where) if data.get("operation") == VERIFY else self._step(data, where)

    def _check(self, data: Mapping[str, Any], where: str) -> CheckStep:
        """Of what the file has for all steps it leaves out what it has no use for."""
        known = {name: value for name, value in data.items() if name not in self.defaults or name in _OF_A_CHECK}
        self.check_names(known, _OF_A_CHECK, where)
        named = self._texts(known, "inputs", where)
        inputs = tuple(name if is_url(name) else str(self._from(name)) for name in named)
        if not inputs:
            raise self.wrong(where, "inputs is missing; name latents, or folders of outputs")
        values = self._values(known, {name: keys()[name] for name in ("vae", "allow_pickle")}, where)
        source = known.get("source")
        if source is not None and not _is_name(source):
            raise self.wrong(where, f"source must be a text, found {shown(source)}")
        if source is not None:
            refuse_urls([source, *inputs], "source of a step that verifies")
            source = str(self._from(source))
        return CheckStep(inputs, source, values.get("vae"), values.get("allow_pickle", False), known)

    def _step(self, data: Mapping[str, Any], where: str) -> Step:
        self.check_names(data, [*_OF_A_STEP, *keys()], where)
        operation = data.get("operation")
        if operation not in OPERATIONS:
            found = f"found {shown(operation)}" if "operation" in data else "it is missing"
            raise self.wrong(where, f"operation must be one of {', '.join((*OPERATIONS, VERIFY))}; {found}")
        inputs = tuple(names_below(self._folder, self._texts(data, "inputs", where)))
        names = [one for name in self._lists(data, "list", where) for one in self._listed(name, where)]
        names += names_below(self._folder, self._texts(data, "listed", where))
        tables = self._override_tables(data, where)
        items, own = self._with_options(data, len(tables), where)
        output = self._output(data, where)
        values = self._values(data, keys(), where)
        cache = self._cache(data, where)
        try:
            job = Job(operation, inputs, output, (*map(Listed, names), *items), cache=cache, **values)
        except UsageError as error:
            raise self.wrong(where, str(error)) from error
        overrides = [self._override(job, table, f"{where}override {n}: ") for n, table in enumerate(tables, 1)]
        overrides += [self._checked(job, Override((), values), here) for here, values in own]
        return Step(job, tuple(overrides), len(tables), data)

    def _output(self, data: Mapping[str, Any], where: str) -> str:
        """A folder, whatever its name looks like, or one file."""
        if {"output", "output_file"} <= data.keys():
            raise self.wrong(where, "output and output_file exclude each other")
        name = "output_file" if "output_file" in data else "output"
        output = data.get(name, ".")
        if not _is_name(output):
            raise self.wrong(where, f"{name} must be a text, found {shown(output)}")
        if not is_url(output):
            return str(self._from(output)) + ("" if name == "output_file" else os.sep)
        try:
            check_written(parse_url(output))
        except UsageError as error:
            raise self.wrong(where, str(error)) from error
        return output if name == "output_file" else f"{output.rstrip('/')}/"

    def _override_tables(self, data: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
        tables = data.get("override", [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise self.wrong(where, "override must be tables ([[step.override]])")
        return tables

    def _override(self, job: Job, table: Mapping[str, Any], here: str) -> Override:
        self.check_names(table, ["match", *override_keys()], here)
        patterns = self._texts(table, "match", here)
        if not patterns:
            raise self.wrong(here, "match is missing; it says which items this is for, such as '*.mp4'")
        return self._checked(job, Override(patterns, self._values(table, override_keys(), here)), here)

    def _checked(self, job: Job, override: Override, here: str) -> Override:
        try:
            replace(job, **override.set)
        except UsageError as error:
            raise self.wrong(here, str(error)) from error
        return override

    def _with_options(
        self, data: Mapping[str, Any], first: int, where: str
    ) -> tuple[list[Listed], list[tuple[str, dict[str, Any]]]]:
        """Items of lists of JSON objects, and sets of options, numbered from ``first``, with where each is said."""
        items, sets, numbers = list[Listed](), list[tuple[str, dict[str, Any]]](), OwnOptions(first)
        for name in self._lists(data, "jsonl", where):
            path = self._from(name)
            try:
                for line, (file, options) in items_in(path, MOST_LISTED):
                    number, new = numbers.number(options) if options else (None, False)
                    if new:
                        here = f"{where}{name}, line {line}: "
                        self.check_names(options, override_keys(), here)
                        sets.append((here, self._values(options, override_keys(), here)))
                    items.append(Listed(next(names_below(path.parent, [file])), number))
            except OSError as error:
                raise self.wrong(where, f"cannot read the list {name}: {error.strerror or error}") from error
            except ValueError as error:
                raise self.wrong(where, f"cannot read the list {name}: {error}") from error
        return items, sets

    def _cache(self, data: Mapping[str, Any], where: str) -> CacheRequest | None:
        if "cache" not in data:
            return None
        table, here = data["cache"], f"{where}cache: "
        if not isinstance(table, dict):
            raise self.wrong(here, f"it must be a table, such as {{trainer = 'kohya'}}, found {shown(table)}")
        self.check_names(table, cache_keys(), here)
        if "trainer" not in table:
            raise self.wrong(here, "trainer is missing; tvae cache --help lists them")
        try:
            return CacheRequest(**self._values(table, cache_keys(), here))
        except UsageError as error:
            raise self.wrong(here, str(error)) from error

    def _values(self, data: Mapping[str, Any], known: Mapping[str, Key], where: str) -> dict[str, Any]:
        values = {}
        for name, key in known.items():
            if name not in data:
                continue
            try:
                value = key.read(data[name])
            except ValueError:
                raise self.wrong(where, f"{name} must be {key.wanted}, found {shown(data[name])}") from None
            values[name] = str(self._from(value)) if name in _PATHS or self._is_vae_here(name, value) else value
        return values

    def _is_vae_here(self, name: str, value: Any) -> bool:
        return name == "vae" and value != builtin.NAME and os.path.exists(self._from(value))

    def _listed(self, name: str, where: str) -> list[str]:
        """The names in a file, from its folder. A regular one: a job does not wait for what somebody may write."""
        path = self._from(name)
        try:
            names = names_in(read_bytes(path, MOST_LISTED))
            return [*names_below(path.parent, names)]
        except OSError as error:
            raise self.wrong(where, f"cannot read the list {name}: {error.strerror or error}") from error
        except (ValueError, UsageError) as error:
            raise self.wrong(where, f"cannot read the list {name}: {error}") from error

    def _lists(self, data: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
        names = self._texts(data, name, where)
        refuse_urls(names, f"{name} of a job")
        return names

    def _texts(self, data: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
        value = data.get(name, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(map(_is_name, texts)):
            raise self.wrong(where, f"{name} must be a text or a list of texts, found {shown(value)}")
        return tuple(texts)

    def _from(self, name: str) -> Path:
        return self._folder / Path(os.path.expanduser(name))


def _is_name(value: Any) -> bool:
    """That a file system could have."""
    return isinstance(value, str) and value != "" and "\0" not in value
