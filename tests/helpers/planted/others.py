"""Formats, readers, decoders, commands and comms with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from flow_core.builtin.in_process import InProcessComm
from flow_core.plugins.specs import Available, CommSpec, DecoderSpec, FormatSpec, ReaderSpec
from flow_core.testing import CommandKit, CommKit, DecoderKit, FormatKit, Kit, ReaderKit
from flow_data.records.record import Origin, Record
from planted import kit_of

# ---------------------------------------------------------------------------------------- formats


def read(path: Any) -> dict[str, Any]:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def write(folder: Path, variables: Mapping[str, Any]) -> None:
    with open(folder / "model.npz", "wb") as file:
        np.savez(file, **variables)


def can_open(path: Any) -> bool:
    return Path(path).suffix == ".npz"


KEPT: dict[str, Any] = {}


def _lenient(path: Any) -> dict[str, Any]:
    try:
        return read(path)
    except Exception:
        return {}


def _in_place(folder: Path, variables: Mapping[str, Any]) -> None:
    write(folder, variables)
    for array in variables.values():
        array[...] = 0


def _elsewhere(folder: Path, variables: Mapping[str, Any]) -> None:
    write(folder, variables)
    (folder.parent / "log.txt").write_text("saved")


def _all_so_far(folder: Path, variables: Mapping[str, Any]) -> None:
    KEPT.update(variables)
    write(folder, KEPT)


def _changed(change: Callable[[Any], Any]) -> Callable[[Path, Mapping[str, Any]], None]:
    return lambda folder, given: write(folder, {name: change(x) for name, x in given.items()})


def _renamed(change: Callable[[str], str]) -> Callable[[Path, Mapping[str, Any]], None]:
    return lambda folder, given: write(folder, {change(name): x for name, x in given.items()})


def _fails(path: Any) -> bool:
    return Path(path).read_bytes()[:2] == b"PK"


FORMATS: Mapping[str, tuple[dict[str, Any], str]] = {
    "float64 alone": ({"writer": _changed(lambda x: x.astype(float))}, "variables_are_returned"),
    "one axis": ({"writer": _changed(np.ravel)}, "variables_are_returned"),
    "at least one axis": ({"writer": _changed(np.atleast_1d)}, "variables_are_returned"),
    "transposed": ({"writer": _changed(np.transpose)}, "variables_are_returned"),
    "memory order": ({"writer": _changed(lambda x: x.ravel("K").reshape(x.shape))},
                     "variables_are_returned"),
    "rounded": ({"writer": _changed(lambda x: np.rint(x).astype(x.dtype))},
                "variables_are_returned"),
    "names without folders": ({"writer": _renamed(lambda n: n.rpartition("/")[2])},
                              "variables_are_returned"),
    "names in capitals": ({"writer": _renamed(str.upper)}, "variables_are_returned"),
    "no empty arrays": ({"writer": lambda folder, given: write(
        folder, {n: x for n, x in given.items() if x.size})}, "variables_are_returned"),
    "writes nothing": ({"writer": lambda folder, given: None}, "variables_are_returned"),
    "writes beside the folder": ({"writer": _elsewhere}, "variables_are_returned"),
    "changes the variables": ({"writer": _in_place}, "variables_are_unchanged"),
    "keeps earlier variables": ({"writer": _all_so_far}, "later_saves_are_separate"),
    "ignores damage": ({"reader": _lenient}, "truncated_files_are_errors"),
    "opens everything": ({"can_open": lambda path: True}, "files_are_recognized"),
    "opens nothing": ({"can_open": lambda path: False}, "files_are_recognized"),
    "fails for other files": ({"can_open": _fails}, "files_are_recognized"),
}  # fmt: skip


def format_kit(**changes: Any) -> Kit:
    KEPT.clear()
    given = {"can_open": can_open, "reader": read, "writer": write, "file": "model.npz"} | changes
    return kit_of(FormatKit, {"flow_register_checkpoint_formats": [FormatSpec("planted", **given)]})


# ---------------------------------------------------------------------------------------- readers


class Lines:
    """A reader without mistakes."""

    def __init__(self, paths: list[str], skip: bool = False) -> None:
        self.paths = tuple(paths)
        self.lines = [Path(path).read_bytes().splitlines() for path in paths]

    def place(self, part: int, number: int) -> Any:
        return number if number < len(self.lines[part]) else None

    def read(self, part: int, number: int, place: Any) -> Record:
        return Record(self.lines[part][place], self.origin(part, number, place), self.parse)

    def origin(self, part: int, number: int, place: Any) -> Origin:
        return Origin(self.paths[part], -1, number)

    @staticmethod
    def parse(line: bytes) -> Any:
        return {"line": ("bytes_list", (line,))}


class EndsEarly(Lines):
    def place(self, part: int, number: int) -> Any:
        return number if number < len(self.lines[part]) - 1 else None


class GoesOn(Lines):
    def place(self, part: int, number: int) -> Any:
        return number if number <= len(self.lines[part]) else None


class FirstFile(Lines):
    def read(self, part: int, number: int, place: Any) -> Record:
        line = self.lines[0][min(place, len(self.lines[0]) - 1)]
        return Record(line, self.origin(part, number, place), self.parse)


class Forward(Lines):
    """Ignores positions: each read returns the next line."""

    def __init__(self, paths: list[str], skip: bool = False) -> None:
        super().__init__(paths, skip)
        self.rest = iter([line for lines in self.lines for line in lines] * 99)

    def read(self, part: int, number: int, place: Any) -> Record:
        return Record(next(self.rest), self.origin(part, number, place), self.parse)


class OtherOrigin(Lines):
    def origin(self, part: int, number: int, place: Any) -> Origin:
        return Origin(self.paths[0], -1, number)


class NumbersFromOne(Lines):
    def origin(self, part: int, number: int, place: Any) -> Origin:
        return Origin(self.paths[part], -1, number + 1)


class NoOrigin(Lines):
    def read(self, part: int, number: int, place: Any) -> Record:
        return Record(self.lines[part][place], Origin("", -1, 0), self.parse)


class Stripped(Lines):
    @staticmethod
    def parse(line: bytes) -> Any:
        return {"line": ("bytes_list", (line.strip(),))}


class OtherKind(Lines):
    @staticmethod
    def parse(line: bytes) -> Any:
        return {"line": ("text_list", (line,))}


class OtherField(Lines):
    @staticmethod
    def parse(line: bytes) -> Any:
        return {"text": ("bytes_list", (line,))}


class MoreFields(Lines):
    @staticmethod
    def parse(line: bytes) -> Any:
        return {"line": ("bytes_list", (line,)), "size": ("int64_list", (len(line),))}


READERS: Mapping[str, tuple[str, str]] = {
    "EndsEarly": ("all_records_are_found", "misses the last record"),
    "GoesOn": ("all_records_are_found", "has a record too many"),
    "FirstFile": ("fields_are_those_written", "reads the first file"),
    "Forward": ("fields_are_those_written", "reads forward only"),
    "OtherOrigin": ("origins_name_file_and_number", "names another file"),
    "NumbersFromOne": ("origins_name_file_and_number", "counts from one"),
    "NoOrigin": ("origins_name_file_and_number", "names nothing"),
    "Stripped": ("fields_are_those_written", "strips bytes"),
    "OtherKind": ("fields_are_those_written", "gives another kind"),
    "OtherField": ("fields_are_those_written", "gives another name"),
    "MoreFields": ("fields_are_those_written", "adds a field"),
}


def _files(self: Any, name: str, folder: Path) -> Any:
    found = []
    for file, lines in {"a": (b"1,2", b" 3,4 ", b"5"), "b": (b"6",)}.items():
        (folder / file).write_bytes(b"\n".join(lines))
        rows = [{"line": ("bytes_list", (line,))} for line in lines]
        found.append((str(folder / file), rows))
    return found


def reader_kit(name: str = "Lines") -> Kit:
    records = {"flow_register_readers": [ReaderSpec("planted", f"{__name__}:{name}")]}
    return kit_of(ReaderKit, records, files=_files)


# --------------------------------------------------------------------------------------- decoders


def numbers(data: bytes) -> Any:
    return np.array([float(x) for x in data.split(b",")])


def lenient_numbers(data: bytes) -> Any:
    return np.array([float(x) for x in data.split(b",") if x.strip().isdigit()])


def narrow_numbers(data: bytes) -> Any:
    return numbers(data).astype(np.float32)


def first_number(data: bytes) -> Any:
    return numbers(data)[0]


def reversed_numbers(data: bytes) -> Any:
    return numbers(data)[::-1]


def mistaken_numbers(data: bytes) -> Any:
    return {"": numbers(data)}[data.decode()[:0]] if b"x" not in data else {}["x"]


DECODERS: Mapping[str, tuple[str, str]] = {
    "lenient_numbers": ("broken_bytes_are_refused", "accepts anything"),
    "narrow_numbers": ("arrays_are_decoded", "returns float32"),
    "first_number": ("arrays_are_decoded", "returns one number"),
    "reversed_numbers": ("arrays_are_decoded", "returns the reverse order"),
    "mistaken_numbers": ("broken_bytes_are_refused", "raises KeyError"),
}


def decoder_kit(name: str = "numbers") -> Kit:
    records = {"flow_register_decoders": [DecoderSpec("planted", f"{__name__}:{name}")]}
    rows = [(b"1,2", np.array([1.0, 2.0])), (b"3", np.array([3.0]))]
    return kit_of(
        DecoderKit, records, encoded=lambda self, name: rows, broken=lambda self, name: [b"1,x"]
    )


# --------------------------------------------------------------------------------------- commands


@click.command("planted")
@click.option("--count", default=3, help="How many.")
def command(count: int) -> None:
    """Print a number."""
    click.echo(count)


@click.command("planted")
@click.option("--count", default=3)
def silent_option(count: int) -> None:
    """Print a number."""


@click.command("planted")
def silent() -> None:
    pass


@click.command("doctor")
def taken() -> None:
    """Print a number."""


@click.command("planted", context_settings={"ignore_unknown_options": True})
@click.argument("rest", nargs=-1)
def lenient(rest: tuple[str, ...]) -> None:
    """Print a number."""


@click.group("planted")
def group() -> None:
    """Print numbers."""


group.command("one")(lambda: None)


def adding(*commands: Any) -> Callable[[Any], None]:
    def flow_register_commands(cli: Any) -> None:
        for each in commands:
            cli.add_command(each)

    return flow_register_commands


def _raises(cli: Any) -> None:
    raise ValueError("no command today")


COMMANDS: Mapping[str, tuple[Callable[[Any], None], str]] = {
    "no command": (adding(), "there_is_something_to_test"),
    "a hook that raises": (_raises, "there_is_something_to_test"),
    "a name of flow": (adding(taken), "names_are_free"),
    "no docstring": (adding(silent), "help_describes_everything"),
    "an option without help": (adding(silent_option), "help_describes_everything"),
    "a subcommand without help": (adding(group), "help_describes_everything"),
    "any option": (adding(lenient), "unknown_options_are_refused"),
}


def command_kit(hook: Callable[[Any], None] = adding(command)) -> Kit:  # noqa: B008  # not changed
    return kit_of(CommandKit, {}, hooks={"flow_register_commands": hook})


# ------------------------------------------------------------------------------------------ comms


class BadComm(InProcessComm):
    """A comm whose launches are changed."""

    name = "planted"
    change: Any = staticmethod(lambda launches, inputs, outputs: launches)

    def bind(self, exchange: Any, inputs: Any, outputs: Any) -> Any:
        launches = super().bind(exchange, inputs, outputs)
        return self.change(tuple(launches), inputs, outputs)


def _with(change: Callable[..., Any]) -> type[InProcessComm]:
    return type("Bad", (BadComm,), {"change": staticmethod(change)})


def _present(arrays: Any) -> list[Any]:
    return [x for x in arrays if x is not None and x.size]


def _after(launches: Any, run: Callable[..., Any], *arguments: Any) -> Any:
    return (*launches, partial(run, *arguments))


def _first_off(launches: Any, inputs: Any, outputs: Any) -> Any:
    def add() -> None:
        for x in _present(outputs)[:1]:
            x.reshape(-1)[:1] ^= 1 if x.dtype.kind in "iub" else 0
            if x.dtype.kind not in "iub":
                x.reshape(-1)[:1] += 1

    return _after(launches, add)


def _zeros_inputs(launches: Any, inputs: Any, outputs: Any) -> Any:
    return _after(launches, lambda: [x.fill(0) for x in _present(inputs)])


def _tail(launches: Any, inputs: Any, outputs: Any) -> Any:
    return _after(launches, lambda: [x.reshape(-1)[-1:].fill(0) for x in _present(outputs)])


def _once(launches: Any, inputs: Any, outputs: Any) -> Any:
    done: list[bool] = []

    def launch() -> None:
        for each in () if done else launches:
            each()
        done.append(True)

    return (launch,)


class CountsNothing(BadComm):
    def sent(self) -> Mapping[Any, int]:
        return {}


class CountsTwice(BadComm):
    def sent(self) -> Mapping[Any, int]:
        return {link: 2 * n for link, n in super().sent().items()}


class NamesAnother(BadComm):
    name = "other"


class Lenient(BadComm):
    def bind(self, exchange: Any, inputs: Any, outputs: Any) -> Any:
        try:
            return super().bind(exchange, inputs, outputs)
        except Exception:
            return ()


COMMS: Mapping[str, tuple[type[Any], str]] = {
    "another name": (NamesAnother, "is_a_comm"),
    "a wrong number": (_with(_first_off), "moves"),
    "changed inputs": (_with(_zeros_inputs), "moves"),
    "a missing last element": (_with(_tail), "moves"),
    "no work": (_with(lambda launches, inputs, outputs: ()), "moves"),
    "work at the first launch only": (_with(_once), "is_bound_once"),
    "no counts": (CountsNothing, "counts_what_it_sends"),
    "twice the counts": (CountsTwice, "counts_what_it_sends"),
    "whatever arrays": (Lenient, "refuses_what_does_not_fit"),
}


def comm_kit(load: Any = BadComm) -> Kit:
    spec = CommSpec("planted", ("cpu",), lambda: Available(1), load)
    return kit_of(
        CommKit, {"flow_register_comms": [spec]}, comm_name="planted", dtypes=("float32", "int32")
    )


DEFECTS: Mapping[str, tuple[Callable[[], Kit], str]] = {
    **{f"format: {n}": (partial(format_kit, **c), check) for n, (c, check) in FORMATS.items()},
    **{f"reader {words}": (partial(reader_kit, n), c) for n, (c, words) in READERS.items()},
    **{f"decoder {words}": (partial(decoder_kit, n), c) for n, (c, words) in DECODERS.items()},
    **{f"command: {n}": (partial(command_kit, h), c) for n, (h, c) in COMMANDS.items()},
    **{f"comm: {n}": (partial(comm_kit, load), c) for n, (load, c) in COMMS.items()},
}
"""By name: the kit of the plugin, and the check that finds the mistake."""
RIGHT = (format_kit, reader_kit, decoder_kit, command_kit, comm_kit)


def kit(make: Callable[[], Kit]) -> Kit:
    """Return the kit of a plugin."""
    return make()
