"""The file that describes a saved model: its graphs in text form, and their signatures."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flow_core.api.serving.batch_sizes import BatchSizes
from flow_core.base.decoding import Decoder, Mismatch, parsed, shown
from flow_core.base.errors import CheckpointError
from flow_core.base.formats.regular_files import read_regular
from flow_core.checkpoint import swap

FILE = "saved_model.json"
FORMAT = 1
CHECKPOINT = "variables"
"""Name of the folder of the variables that a save writes."""
LONGEST = 1 << 26
"""Largest size of the file in bytes; it is read as a whole."""


UNKNOWN = BatchSizes(
    fixed="the model was saved by a version that did not record what the size changes"
)


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of inputs and outputs for callers, with the blobs that they name.

    Attributes:
        inputs: parameter of the job by name of the input.
        outputs: index of the result by name of the output.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A saved predict job.

    Attributes:
        text: its graph, see `flow_core.ir.text`.
        inputs: name of the ``input`` op by parameter of the job.
        signatures: by name.
        default_signature: name of the signature to use if a caller names none; "" for the names of
            the job's parameters.
        batch: how the graph depends on the batch size; see `batch_sizes`.
    """

    text: str
    inputs: Mapping[str, str]
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    default_signature: str = ""
    batch: BatchSizes = UNKNOWN


@dataclass(frozen=True, slots=True)
class SavedModel:
    """One version of a saved model.

    Attributes:
        name: name of the model.
        version: its version, which is also the name of its folder.
        checkpoint_dir: the folder of the variables, below that of the version.
        default_graph_name: name of the first job.
        graphs: jobs by name.
    """

    name: str
    version: int
    checkpoint_dir: str
    default_graph_name: str
    graphs: Mapping[str, SavedGraph]

    def write(self, folder: Path) -> None:
        """Write the description into the folder of the version."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        (folder / FILE).write_text(text, encoding="utf-8")


@contextmanager
def new_version(path: Path, version: int, attempted: str) -> Iterator[Path]:
    """Yield an empty hidden folder, and make it a version of a model after the ``with`` block.

    The lock of the model's folder is held; saves of one version in several processes take turns.

    Args:
        path: the folder of the model, which is created.
        version: number of the version.
        attempted: description for errors.

    Raises: CheckpointError: the version exists, or the file system reports an error.
    """
    folder = path / str(version)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with swap.locked(path) as alone:
            if alone:
                swap.remove_leftovers(folder)
            _check_new(folder, attempted)
            new = swap.fresh_folder(folder)
            try:
                yield new
                swap.sync_tree(new)
                _check_new(folder, attempted)
                os.rename(new, folder)  # fails if another program has put files there
                swap.sync(path)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
    except OSError as error:
        raise CheckpointError.at_caller(attempted, found=str(error)) from error


def _check_new(folder: Path, attempted: str) -> None:
    if os.path.lexists(folder):
        raise CheckpointError.at_caller(
            attempted, found=f"version {folder.name}, which already exists", allowed="a new version"
        )


def versions(path: Path) -> list[int]:
    """Return the numbers of the complete versions of a model, the latest first."""
    names = [entry.name for entry in path.glob("*") if (entry / FILE).exists()]
    numbers = {name: int(name) for name in names if name.isascii() and name.isdecimal()}
    return sorted((n for name, n in numbers.items() if name == str(n)), reverse=True)


_DECODER = Decoder()


def read_model(folder: Path) -> SavedModel:
    """Read the description in the folder of a version.

    Raises: CheckpointError: there is none, or it is damaged.
    """
    path = folder / FILE
    try:
        found = parsed(read_regular(path, LONGEST))
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise Mismatch("another format", f'an object with "format": {FORMAT}')
        model: SavedModel = _DECODER.decode(SavedModel, found)
        _check(model)
    except (OSError, MemoryError) as error:
        raise damaged(path, str(error) or "more than fits in memory") from None
    except Mismatch as error:
        raise damaged(path, f"{error.where or 'the file'}: {error.found}", error.allowed) from None
    return model


def damaged(path: Path, found: str, allowed: str | None = None) -> CheckpointError:
    """Return the error for a description that cannot be used."""
    return CheckpointError(
        f"reading the saved model {path}",
        found=found,
        allowed=allowed or "a folder that flow.saved_model.ModelBuilder wrote",
        hint="save the model again, or use another copy",
    )


def _check(model: SavedModel) -> None:
    """Raise `Mismatch` for names that the model does not have, and a folder outside of it."""
    parts = model.checkpoint_dir.replace("\\", "/").split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in model.checkpoint_dir:
        raise Mismatch(shown(model.checkpoint_dir), "a folder in that of the version").within(
            ".checkpoint_dir"
        )
    if model.default_graph_name not in model.graphs:
        wrong = Mismatch(shown(model.default_graph_name), "the name of a graph")
        raise wrong.within(".default_graph_name")
    for name, graph in model.graphs.items():
        try:
            _check_graph(graph)
        except Mismatch as error:
            raise error.within(f".graphs[{name!a}]") from None


def _check_graph(graph: SavedGraph) -> None:
    chosen = graph.default_signature
    if chosen and chosen not in graph.signatures:
        raise Mismatch(shown(chosen), "the name of a signature").within(".default_signature")
    for name, signature in graph.signatures.items():
        unknown = [shown(p) for p in signature.inputs.values() if p not in graph.inputs]
        if unknown:
            allowed = f"parameters of the job: {', '.join(graph.inputs) or 'none'}"
            raise Mismatch(unknown[0], allowed).within(f".signatures[{name!a}].inputs")
