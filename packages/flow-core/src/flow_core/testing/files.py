"""The kits for checkpoint formats, readers, decoders and commands."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.plugins.specs import FormatSpec, load
from flow_core.testing.kit import Kit, Parameters

Fields = Mapping[str, tuple[str, Sequence[Any]]]
"""The fields of a record by name, each with its kind and values."""

FIELD_KINDS = ("bytes_list", "int32_list", "int64_list", "float_list", "double_list", "text_list")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class _RecordKit(Kit):
    """The base of kits whose tests run for each record that a plugin has in a table."""

    table: ClassVar[str]

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of the plugin's records."""
        known: Mapping[str, Any] = getattr(self.shared_registry(), self.table)
        return tuple(sorted(name for name in known if self.owns(self.table, name)))

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the names of the records under test."""
        return ((name,) for name in self.names())

    def test_there_is_something_to_test(self) -> None:
        """Check that the plugin has such records."""
        assert self.names(), f"plugin {self.plugin!r} registers no {self.table}"


class FormatKit(_RecordKit):
    """Tests that checkpoint formats return the variables that they have written.

    Attributes:
        dtypes: element types of variables that formats can hold.
    """

    table = "formats"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "float16", "int8", "int64", "bool")

    def variables(self) -> dict[str, Array]:
        """Return variables of all types, of several shapes and layouts in memory."""
        rng = np.random.default_rng(3)
        shapes = ((3, 5), (7,), (), (0, 4), (1, 1, 2))
        found = {}
        for dtype in self.dtypes:
            for shape in shapes:
                values = np.asarray(rng.integers(0, 100, shape) / 4)
                name = f"net/{dtype}-{'x'.join(map(str, shape))}"
                found[name] = values.astype(as_dtype(dtype).numpy)
        found["net/transposed"] = np.asarray(rng.normal(size=(4, 6)), self.dtypes[0]).T
        return found

    @contextmanager
    def written(self, name: str, variables: Mapping[str, Array]) -> Iterator[Path]:
        """Write variables, and yield the path of the file or folder."""
        spec: FormatSpec = self.shared_registry().formats[name]
        if spec.writer is None:
            pytest.skip("the format is read-only")
        with _folder() as parent:
            folder = parent / "new"
            folder.mkdir()
            load(spec.writer)(folder, variables)
            assert [p.name for p in parent.iterdir()] == ["new"], "files outside of the folder"
            yield folder / spec.file if spec.file else folder

    def read(self, name: str, path: Path) -> Mapping[str, Array]:
        """Return what the format's reader finds."""
        found: Mapping[str, Array] = load(self.shared_registry().formats[name].reader)(path)
        return found

    def test_variables_are_returned(self, name: str) -> None:
        """Check that names, shapes, element types and bits are those that were written."""
        wanted = self.variables()
        with self.written(name, wanted) as path:
            found = self.read(name, path)
            assert sorted(found) == sorted(wanted)
            for key, array in wanted.items():
                have = np.asarray(found[key])
                assert (have.shape, have.dtype) == (array.shape, array.dtype), key
                assert have.tobytes() == array.tobytes(), f"{key} has other values"

    def test_variables_are_unchanged(self, name: str) -> None:
        """Check that a writer does not change the arrays that it is given."""
        given, kept = self.variables(), self.variables()
        with self.written(name, given):
            for key, array in kept.items():
                np.testing.assert_array_equal(given[key], array, key)

    def test_files_are_recognized(self, name: str) -> None:
        """Check that ``can_open`` tells the format's own files from others, without an error."""
        opens = self.shared_registry().formats[name].can_open
        with self.written(name, self.variables()) as path:
            assert opens(path), f"can_open({path.name!r}) is false for the format's own file"
        with _folder() as other:
            (other / "notes.txt").write_text("no checkpoint")
            for path in (other, other / "notes.txt", other / "missing"):
                assert not opens(path), f"can_open({path.name!r}) is true for another file"

    def test_later_saves_are_separate(self, name: str) -> None:
        """Check that a second save contains its own variables only."""
        first, second = {"a": np.zeros(3, np.float32)}, {"b": np.ones(2, np.float32)}
        with self.written(name, first) as path, self.written(name, second) as other:
            assert list(self.read(name, path)) == ["a"]
            assert list(self.read(name, other)) == ["b"]

    def test_truncated_files_are_errors(self, name: str) -> None:
        """Check that the reader raises an error for files of which the second half is missing."""
        with self.written(name, self.variables()) as path:
            for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            with pytest.raises(Exception):  # noqa: B017, PT011  # any error, but no arrays
                dict(self.read(name, path))


class ReaderKit(_RecordKit):
    """Tests that readers return the records of files, in any order and from several threads.

    A subclass defines `files`.
    """

    table = "readers"

    def files(self, name: str, folder: Path) -> Sequence[tuple[str, Sequence[Fields]]]:
        """Write two files or more, and return the path and the records of each; override this."""
        raise TypeError(f"{type(self).__name__} does not override `files`")

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[Any, list[tuple[int, int, str, Fields]]]]:
        """Yield the reader of the files, and for each record: file, number, path and fields."""
        with _folder() as folder:
            given = self.files(name, folder)
            assert len(given) > 1, "`files` must return several files"
            rows = [
                (part, number, path, fields)
                for part, (path, records) in enumerate(given)
                for number, fields in enumerate(records)
            ]
            assert len(rows) > len(given), "`files` must return several records per file"
            files = load(self.shared_registry().readers[name].load)([p for p, _ in given], False)
            yield files, rows

    def test_all_records_are_found(self, name: str) -> None:
        """Check that each file has its records, and no position after the last one."""
        with self.opened(name) as (files, rows):
            for part in {row[0] for row in rows}:
                found = next(n for n in count() if files.place(part, n) is None)
                assert found == sum(row[0] == part for row in rows), f"file {part}"

    def test_fields_are_those_written(self, name: str) -> None:
        """Check the kinds and values of all fields, in order and in reverse order."""
        with self.opened(name) as (files, rows):
            for row in (*rows, *reversed(rows)):
                self._compare(files, *row)

    def test_threads_read_independently(self, name: str) -> None:
        """Check that several threads, which read different records, get their own ones."""
        with self.opened(name) as (files, rows), ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(self._compare, files, *row) for row in rows * 8]:
                done.result()

    def test_origins_name_file_and_number(self, name: str) -> None:
        """Check that the origin of a record, which errors quote, is its own."""
        with self.opened(name) as (files, rows):
            for part, number, path, _ in rows:
                place = files.place(part, number)
                for origin in (
                    files.origin(part, number, place),
                    files.read(part, number, place).origin,
                ):
                    assert (origin.file, origin.number) == (path, number), origin

    def _compare(self, files: Any, part: int, number: int, path: str, fields: Fields) -> None:
        record = files.read(part, number, files.place(part, number))
        assert set(record.fields) == set(fields), f"record {number} of {path}"
        for key, (kind, values) in fields.items():
            own, found = record.field(key)
            assert own == kind in FIELD_KINDS, f"{key} of record {number} of {path}: {own}"
            assert list(found) == list(values), f"{key} of record {number} of {path}"


class DecoderKit(_RecordKit):
    """Tests that decoders return the arrays that were encoded, and refuse other bytes.

    A subclass defines `encoded` and `broken`.
    """

    table = "decoders"

    def encoded(self, name: str) -> Iterable[tuple[bytes, Array]]:
        """Return bytes and the arrays that they encode; override this."""
        raise TypeError(f"{type(self).__name__} does not override `encoded`")

    def broken(self, name: str) -> Iterable[bytes]:
        """Return bytes that the decoder must refuse."""
        return ()

    def _decoder(self, name: str) -> Callable[[bytes], Array]:
        found: Callable[[bytes], Array] = load(self.shared_registry().decoders[name].load)
        return found

    def test_arrays_are_decoded(self, name: str) -> None:
        """Check shapes, element types and values, twice and in any order."""
        decode, rows = self._decoder(name), list(self.encoded(name))
        assert rows, "`encoded` returns nothing"
        for data, wanted in (*rows, *reversed(rows)):
            found = np.asarray(decode(data))
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), data
            np.testing.assert_array_equal(found, wanted)

    def test_broken_bytes_are_refused(self, name: str) -> None:
        """Check that the decoder raises `ValueError`, which flow reports with the record."""
        for data in self.broken(name):
            with pytest.raises(ValueError):  # noqa: PT011  # the text is the plugin's own
                self._decoder(name)(data)


class CommandKit(Kit):
    """Tests that the commands of a plugin are added, described, and refuse wrong options."""

    def commands(self) -> Mapping[str, Any]:
        """Return the plugin's commands by name; fails if the hook fails."""
        from flow_core.cli.plugin_commands import collect_commands

        own = [
            call
            for call in self.shared_registry().commands
            if self.plugin in (None, call.origin.plugin, call.origin.distribution)
        ]
        found, failures = collect_commands(own, ())
        assert not failures, "\n".join(map(str, failures))
        return found

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the names of the commands, with those of their subcommands."""
        try:
            return ((" ".join(path),) for path in _paths(self.commands()))
        except AssertionError:
            return iter(())  # the first test reports the failure

    def run(self, *arguments: str) -> Any:
        """Run a command in this process; return click's result."""
        first, *rest = arguments
        runner = importlib.import_module("click.testing").CliRunner()
        return runner.invoke(self.commands()[first], rest)

    def test_there_is_something_to_test(self) -> None:
        """Check that the plugin adds commands."""
        assert self.commands(), f"plugin {self.plugin!r} adds no commands"

    def test_names_are_free(self) -> None:
        """Check that ``flow`` itself has no command of these names."""
        taken = importlib.import_module("flow_core.cli.app").cli.commands
        assert not set(taken) & set(self.commands()), sorted(set(taken) & set(self.commands()))

    def test_help_describes_everything(self, name: str) -> None:
        """Check that ``--help`` works, and that the command and its options have texts."""
        done = self.run(*name.split(), "--help")
        assert done.exit_code == 0, done.output
        command = _command(self.commands(), name.split())
        assert command.help, f"{name} has no docstring"
        options = [p for p in command.params if p.param_type_name == "option"]
        silent = [option.name for option in options if not option.help]
        assert not silent, f"options of {name} without help: {silent}"

    def test_unknown_options_are_refused(self, name: str) -> None:
        """Check that an unknown option is an error of usage, with exit status 2."""
        done = self.run(*name.split(), "--no-such-option")
        assert done.exit_code == 2, f"exit status {done.exit_code}: {done.output}"


def _paths(commands: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, command in commands.items():
        yield (name,)
        yield from ((name, *rest) for rest in _paths(getattr(command, "commands", {})))


def _command(commands: Mapping[str, Any], path: Sequence[str]) -> Any:
    command = commands[path[0]]
    return _command(command.commands, path[1:]) if len(path) > 1 else command
