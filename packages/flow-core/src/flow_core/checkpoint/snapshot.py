"""OneFlow's own layout: a folder per variable, raw data in ``out``, shape and type in ``meta``.

Older versions of OneFlow wrote ``out`` alone; such variables are read with the shape and element
type that the caller wants.  Slashes in names are nested folders.  See `origin` for what holds when
another process replaces the checkpoint, and `sums` for the digests of the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from flow_core.base.dtypes import DType, as_asked, as_dtype
from flow_core.base.errors import CheckpointError, CheckpointReplacedError, InferenceError
from flow_core.base.shapes import Shape
from flow_core.checkpoint.layout import (
    DATA,
    DONE,
    LONGEST_META,
    META,
    SUMS,
    check_names,
    meta_text,
    parse_meta,
    path_parts,
)
from flow_core.checkpoint.origin import TRIES, Array, Origin, Stamp, stamp
from flow_core.checkpoint.sums import Sums, is_marked, read_sums
from flow_core.ir.graph import TensorType


class StoredVariable:
    """A variable in a folder of its own; its files stay on disk until they are asked for.

    What is read is of the checkpoint that was opened, and is compared with its digest if there is
    one; else it is an error.

    Attributes:
        folder: where its files are.
    """

    __slots__ = ("_origin", "_type", "folder")

    def __init__(
        self, folder: Path, wanted: TensorType | None = None, origin: Origin | None = None
    ) -> None:
        self.folder = folder
        self._origin = Origin.around(folder) if origin is None else origin
        self._type = wanted

    @property
    def type(self) -> TensorType | None:
        """Shape and element type; None for the older layout without ``meta``.

        Raises:
            CheckpointError: ``meta`` cannot be read.
        """
        meta = self.folder / META
        if self._type is None and self._origin.has(meta):
            self._type = parse_meta(self._origin.text(meta, LONGEST_META), meta)
        return self._type

    @property
    def file_path(self) -> str:
        """The file with the raw data."""
        return str(self.folder / DATA)

    @property
    def has_meta_info(self) -> bool:
        """Whether shape and element type are known."""
        return self.type is not None

    @property
    def shape(self) -> Shape:
        """Shape; raises `CheckpointError` when it is not known."""
        return self._known().shape

    @property
    def dtype(self) -> DType:
        """Element type; raises `CheckpointError` when it is not known."""
        return self._known().dtype

    def _known(self) -> TensorType:
        kind = self.type
        if kind is None:
            raise CheckpointError(
                f"reading {self.file_path}",
                found="no file 'meta' beside it, as older versions wrote it",
                hint="load it into a variable, whose shape and element type are then used",
            )
        return kind

    def typed(self, wanted: TensorType) -> StoredVariable:
        """The same variable with a shape and element type, should it have none of its own."""
        return self if self.has_meta_info else StoredVariable(self.folder, wanted, self._origin)

    def numpy(self) -> Array:
        """The data, read into memory and checked.

        Raises:
            CheckpointError: the file has another size than shape and element type say, or other
                bytes than those that were saved.
            CheckpointReplacedError: another checkpoint was saved at the path in the meantime.
        """
        kind = self._known()
        self.check_size()
        raw = self._origin.array(self.folder / DATA, kind.nbytes)
        return raw.view(kind.dtype.numpy).reshape(kind.shape)

    def check_size(self) -> None:
        """Raise `CheckpointError` when the file has another size than its type says."""
        kind, file = self._known(), self.folder / DATA
        found = stamp(file)
        if found is None or found[2] != kind.nbytes:
            size = "no file" if found is None else f"{found[2]} bytes"
            raise self._origin.refused(file, size, f"{kind.nbytes} for {kind}")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """The data for numpy; see `numpy`."""
        found: Array = as_asked(self.numpy(), dtype, copy)
        return found

    def __repr__(self) -> str:
        return f"StoredVariable({str(self.folder)!r})"


class Snapshot(Mapping[str, Array]):
    """The variables of a checkpoint folder; each is read when it is asked for.

    Attributes:
        variables: what there is, by name.
        problems: a line for each thing that is wrong with the checkpoint as a whole.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write(folder, {"dense-bias": np.arange(3, dtype=np.float32)})
    >>> read(folder)["dense-bias"].tolist()
    [0.0, 1.0, 2.0]
    """

    def __init__(
        self, variables: Mapping[str, StoredVariable], problems: tuple[str, ...] = ()
    ) -> None:
        self.variables = variables
        self.problems = problems

    def __getitem__(self, name: str) -> Array:
        return self.variables[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __contains__(self, name: object) -> bool:
        return name in self.variables  # the inherited one would read the variable

    def type_of(self, name: str) -> TensorType | None:
        """Shape and element type of a variable without reading it; None when not known."""
        return self.variables[name].type

    def typed(self, wanted: Mapping[str, TensorType]) -> Snapshot:
        """The same, with shapes and element types for variables that have none of their own."""
        variables = {
            name: _typed(variable, wanted.get(name)) for name, variable in self.variables.items()
        }
        return Snapshot(variables, self.problems)


def _typed(variable: StoredVariable, wanted: TensorType | None) -> StoredVariable:
    try:
        return variable if wanted is None else variable.typed(wanted)
    except CheckpointError:  # 'meta' is damaged, which is told when the variable is asked for
        return variable


MOST_SEARCHED = 1000
"""Folders in which `can_open` looks for variables: the path may be a home folder by mistake."""


def can_open(path: Path) -> bool:
    """Whether a folder has variables in this layout, or is a finished save without any."""
    path = Path(path)
    if not path.is_dir():
        return False
    return any(True for _ in _variable_folders(path, MOST_SEARCHED)) or _is_bare(os.listdir(path))


def _is_bare(names: list[str]) -> bool:
    return bool(names) and {DONE, SUMS}.issuperset(names)


def read(path: Path) -> Snapshot:
    """Open a checkpoint folder; data are read on access.

    Raises:
        CheckpointError: its list of digests is damaged.
        CheckpointReplacedError: other processes replace its files all the time.
    """
    root = Path(path)
    for _ in range(TRIES):
        sums = read_sums(root)
        found = _read_unlisted(root) if sums is None else _read_listed(Origin(root, sums), sums)
        if found is not None:
            return found
    raise CheckpointReplacedError(
        f"loading {root}",
        found="files that other processes replace all the time",
        allowed="files that stay for as long as it takes to list them",
    )


def _read_listed(origin: Origin, sums: Sums) -> Snapshot | None:
    """A checkpoint with digests; None where its folders are those of another save."""
    root = origin.root
    names = [name.removesuffix(f"/{DATA}") for name in sums.digests if name.endswith(f"/{DATA}")]
    there = _folders(root)
    problems = tuple(_problems(root, there, names))
    if problems and not origin.is_current():
        return None
    return _snapshot({name: root / name for name in names if name in there}, origin, problems)


def _read_unlisted(root: Path) -> Snapshot | None:
    """A checkpoint without digests, as it was at one moment; None where there was none."""
    folders = _folders(root)
    stamps = _stamps(folders.values())
    problems = tuple(_problems(root, folders, folders))
    steady = stamps == _stamps(_variable_folders(root)) and not (root / SUMS).exists()
    return _snapshot(folders, Origin(root, None, stamps), problems) if steady else None


def _problems(root: Path, there: Iterable[str], listed: Iterable[str]) -> Iterator[str]:
    """What is wrong with a checkpoint as a whole: lines for an error."""
    if not is_marked(root):
        yield f"incomplete no file {DONE!r}, which the end of a save writes"
    for name in sorted({*there} ^ {*listed}):
        yield (
            f"foreign    {name!r} came after the save: {SUMS} does not list it"
            if name in there
            else f"lost       {name!r}, which {SUMS} lists, has no file {DATA!r}"
        )


def _folders(root: Path) -> dict[str, Path]:
    """The folders of variables by name."""
    return {folder.relative_to(root).as_posix(): folder for folder in _variable_folders(root)}


def _stamps(folders: Iterable[Path]) -> dict[Path, Stamp | None]:
    return {folder / file: stamp(folder / file) for folder in folders for file in (DATA, META)}


def _snapshot(folders: Mapping[str, Path], origin: Origin, problems: tuple[str, ...]) -> Snapshot:
    variables = {name: StoredVariable(folders[name], None, origin) for name in sorted(folders)}
    return Snapshot(variables, problems)


def _variable_folders(root: Path, most: int | None = None) -> Iterator[Path]:
    """All folders below ``root`` with a data file; links are followed, but never in a circle."""
    seen: set[str] = set()
    for folder, subfolders, files in islice(os.walk(root, followlinks=True), most):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        if DATA in files and Path(folder) != root:
            yield Path(folder)


def write(path: Path, variables: Mapping[str, Array]) -> None:
    """Write variables into an empty folder.

    Raises:
        CheckpointError: a name or an element type that the layout does not have.
    """
    check_names(variables)
    for name, value in variables.items():
        _write_variable(Path(path).joinpath(*path_parts(name)), name, value)


def _write_variable(folder: Path, name: str, value: Array) -> None:
    kind = variable_type(name, value)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / DATA).exists():
        raise CheckpointError(
            f"saving variable {name!r}",
            found=f"another variable in {str(folder)!r}",
            hint="this file system does not tell upper from lower case: rename one of them",
        )
    data = np.ascontiguousarray(value, kind.dtype.numpy).reshape(-1).view(np.uint8)
    (folder / DATA).write_bytes(data.data)
    (folder / META).write_text(meta_text(kind))


def variable_type(name: str, value: Array) -> TensorType:
    """Shape and element type of an array; raises `CheckpointError` when flow has no such type."""
    try:
        dtype = as_dtype(value.dtype)
    except InferenceError as error:
        raise CheckpointError(
            f"saving variable {name!r}",
            found=f"elements of type {value.dtype}",
            allowed=error.allowed,
        ) from None
    return TensorType(tuple(value.shape), dtype)
