"""Formats and decoders that plugins register, in jobs: types, errors, devices."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mistakes import here, mistake

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import DataError, PluginError, PluginResultError
from flow_core.plugins import records
from flow_core.plugins.host import default_registry, load_plugins
from flow_core.plugins.specs import DecoderSpec, ReaderSpec
from flow_data import formats
from flow_data.records.record import Origin, Record


class LineFiles:
    """The lines of text files."""

    def __init__(self, paths: list[str], skip: bool = False) -> None:
        self.paths, self.broken = tuple(paths), list[str]()
        self._lines = [Path(path).read_bytes().splitlines() for path in paths]

    def place(self, part: int, number: int) -> int | None:
        return number if number < len(self._lines[part]) else None

    def read(self, part: int, number: int, place: int) -> Record:
        line = self._lines[part][place]
        return Record(line, self.origin(part, number, place), lambda x: {"x": ("bytes_list", (x,))})

    def origin(self, part: int, number: int, place: int) -> Origin:
        return Origin(self.paths[part], -1, number)


def numbers(data: bytes) -> Any:
    return [float(x) for x in data.split(b",")]


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry with a format "lines" and a decoder "numbers", as a plugin brings them."""
    known = default_registry()
    readers = [
        ReaderSpec("lines", f"{__name__}:LineFiles"),
        ReaderSpec("mistaken", f"{__name__}:MistakenFiles"),
        ReaderSpec("no module", "no_lines:Files"),
        ReaderSpec("closed", f"{__name__}:fails"),
        ReaderSpec("unreadable", f"{__name__}:UnreadableFiles"),
    ]
    decoders = {
        "numbers": DecoderSpec("numbers", f"{__name__}:numbers"),
        "mistaken": DecoderSpec("mistaken", f"{__name__}:misread"),
        "no function": DecoderSpec("no function", "math:numbers"),
    }
    here = records.Origin("lines", "flow-lines", "1.2")
    origins = {**known.origins, **{("decoders", name): here for name in decoders}}
    more = SimpleNamespace(
        readers={**known.readers, **{spec.name: spec for spec in readers}},
        decoders=decoders,
        origins=origins | {("readers", spec.name): here for spec in readers},
    )
    monkeypatch.setattr(formats, "default_registry", lambda: more)


def fails(*_: object) -> None:
    raise RuntimeError("no lines today")


def misread(*_: object) -> Any:
    return {}["lines"]


class MistakenFiles(LineFiles):
    read = misread


class UnreadableFiles(LineFiles):
    read = fails  # type: ignore[assignment]


def write(folder: Path, *texts: str) -> list[str]:
    paths = [str(folder / f"{i}.csv") for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        Path(path).write_text(text)
    return paths


def rows(files: list[str], batch: int, devices: str = "0:0", **options: Any) -> Any:
    """A job that reads two numbers of each line."""

    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            records = flow.data.record_reader("lines", files, batch, **options)
            return flow.data.record_decoder(records, "x", "numbers", flow.int32, shape=(2,))

    return job


@pytest.mark.parametrize("devices", ["0:0", "0:0-2"])
def test_records_come_in_order_and_are_cast(tmp_path: Path, devices: str) -> None:
    job = rows(write(tmp_path, "1,2\n3,4\n5,6", "7,8"), 3, devices)
    seen = np.concatenate([job() for _ in range(4)])
    assert seen.dtype == np.int32
    np.testing.assert_array_equal(seen, np.arange(1, 9).reshape(4, 2)[np.arange(12) % 4])


def test_samples_of_several_shapes(tmp_path: Path) -> None:
    files = write(tmp_path, "1,2,3\n4\n")

    @flow.global_function()
    def job() -> tp.ListListNumpy:
        with flow.scope.placement("cpu", "0:0"):
            records = flow.data.record_reader("lines", files, 2)
            found = flow.data.record_decoder(records, "x", "numbers", flow.float)
            return flow.tensor_buffer_to_tensor_list(found, (4,), flow.float)

    ((first, second),) = job()
    np.testing.assert_array_equal(first, [[1, 2, 3]])
    np.testing.assert_array_equal(second, [[4]])


@pytest.mark.parametrize(
    ("text", "found"),
    [("1,2\n3,x\n", "3 bytes in 'x': ValueError: could not"), ("1,2\n3\n", r"array \(1,\) in 'x'")],
)
def test_what_cannot_be_decoded_is_named_or_left_out(tmp_path: Path, text: str, found: str) -> None:
    files = write(tmp_path, text)
    with pytest.raises(DataError, match=rf"0\.csv(.|\n)*{found}"):
        rows(files, 2)()
    flow.clear_default_session()
    np.testing.assert_array_equal(rows(files, 2, on_error="skip")(), [[1, 2], [1, 2]])


@pytest.mark.parametrize(
    ("format", "decoder", "text"),
    [
        ("line", "numbers", r"'line'(.|\n)*webdataset(.|\n)*did you mean lines\?"),
        ("?", "numbers", "flow_register_readers(.|\n)*flow doctor"),
        ("lines", "nmbers", "'nmbers'(.|\n)*flow_register_decoders(.|\n)*did you mean numbers"),
    ],
)
def test_names_that_nobody_has_registered(format: str, decoder: str, text: str) -> None:
    lines = []

    @flow.global_function()
    def job() -> tp.Numpy:
        lines.append(here(1))
        records = flow.data.record_reader(format, "a.csv")
        lines.append(here(1))
        return flow.data.record_decoder(records, "x", decoder, flow.float, (2,))

    with mistake(DataError, text) as line:
        try:
            job()
        finally:
            line.append(lines[-1])


@pytest.mark.parametrize(
    ("format", "decoder", "parts"),
    [
        ("no module", "numbers", ("loading 'no_lines:Files', format 'no module'",
                                  "ModuleNotFoundError: No module named 'no_lines'")),
        ("lines", "no function", ("loading 'math:numbers', decoder 'no function'",
                                  "AttributeError: module 'math' has no attribute 'numbers'")),
    ],
)  # fmt: skip
def test_missing_targets_are_errors_of_the_line_that_names_them(
    format: str, decoder: str, parts: tuple[str, ...]
) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        found = flow.data.record_reader(format, "a.csv")
        return flow.data.record_decoder(found, "x", decoder, flow.float, (2,))

    with pytest.raises(PluginError) as caught:
        job()
    first = job.function.__code__.co_firstlineno  # type: ignore[attr-defined]
    for part in (*parts, "plugin 'lines' of flow-lines 1.2", f"(at {__file__}:{first + 2}"):
        assert part in str(caught.value).replace(f":{first + 3}", f":{first + 2}")


@pytest.mark.parametrize(
    ("format", "what"), [("closed", "opening 1 files"), ("unreadable", "0.csv")]
)
def test_readers_that_raise_are_named(tmp_path: Path, format: str, what: str) -> None:
    files = write(tmp_path, "1,2\n")

    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            found = flow.data.record_reader(format, files, 1)
            return flow.data.record_decoder(found, "x", "numbers", flow.int32, shape=(2,))

    with pytest.raises(DataError) as caught:
        job()
    line = fails.__code__.co_firstlineno + 1
    assert what in str(caught.value)
    assert f"RuntimeError: no lines today (at {__file__}:{line})" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_formats_of_flow_data_go_by_their_names_too(tmp_path: Path) -> None:
    path = str(tmp_path / "part-0")
    with flow.data.OFRecordWriter(path) as writer:
        for i in range(3):
            writer.write({"n": np.array([i], np.int32)})

    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            records = flow.data.record_reader("ofrecord", path, 3)
            return flow.data.OFRecordRawDecoder(records, "n", shape=(), dtype=flow.int32)

    np.testing.assert_array_equal(job(), [0, 1, 2])


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("format", "decoder", "named_as"),
    [("mistaken", "numbers", "reader 'mistaken'"), ("lines", "mistaken", "decoder 'mistaken'")],
)
def test_mistakes_of_plugins_are_not_corrupt_records(
    tmp_path: Path, format: str, decoder: str, named_as: str, on_error: str
) -> None:
    files = write(tmp_path, "1,2\n")

    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            found = flow.data.record_reader(format, files, 1, on_error=on_error)
            return flow.data.record_decoder(found, "x", decoder, flow.int32, shape=(2,))

    with pytest.raises(PluginError) as caught:
        job()
    text, line = str(caught.value), misread.__code__.co_firstlineno + 1
    assert f"0.csv by {named_as}, plugin 'lines' of flow-lines 1.2" in text
    assert f"KeyError: 'lines' (at {__file__}:{line})" in text
    assert "FLOW_DISABLE_PLUGINS=lines" in text
    assert "write the file again" not in text


@pytest.mark.parametrize("spec", [ReaderSpec, DecoderSpec])
def test_functions_in_place_of_import_strings_are_refused(spec: Any) -> None:
    module: Any = ModuleType("lines")
    module.FLOW_PLUGIN_API = "1.0"
    hook = "flow_register_readers" if spec is ReaderSpec else "flow_register_decoders"
    setattr(module, hook, lambda: [spec("lines", numbers)])
    with pytest.raises(PluginResultError) as caught:
        load_plugins(Settings(plugins=(), plugin_strict=True), [module])
    text = str(caught.value)
    assert f"hook {hook} of plugin 'lines'" in text
    assert f"element 0: {spec.__name__}.load is <function numbers" in text
    assert '"package.module:attribute", a text that plans store' in text
