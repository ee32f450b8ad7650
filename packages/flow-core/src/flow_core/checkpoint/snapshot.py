"""OneFlow's own layout: a folder per variable with raw data in ``out`` and the type in ``meta``.

The file ``meta`` contains the shape and the element type.  Older versions of OneFlow wrote only
``out``; such variables are read with the shape and element type that the caller passes.  A variable
whose name contains slashes is in nested folders.  The module `origin` defines what is guaranteed
when another process replaces the checkpoint; the module `sums` defines the digests of the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from flow_core.base.dtypes import DType, as_asked, as_dtype
from flow_core.base.errors import (
    CheckpointError,
    CheckpointReplacedError,
    InferenceError,
    located,
    user_line,
)
from flow_core.base.host_arrays import HostDLPack
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


class StoredVariable(HostDLPack):
    """A variable in its own folder; the data stay on disk until they are read.

    Every read returns data of the checkpoint that was opened.  If the checkpoint has a digest for
    the data, the read verifies them.
    """

    __slots__ = ("_origin", "_type", "folder")

    def __init__(
        self, folder: Path, wanted: TensorType | None = None, origin: Origin | None = None
    ) -> None:
        self.folder = folder  # the folder with the variable's files
        self._origin = Origin.around(folder) if origin is None else origin
        self._type = wanted

    @property
    def type(self) -> TensorType | None:
        """The shape and element type; None in the older layout without ``meta``.

        Raises `CheckpointError` if ``meta`` cannot be read.
        """
        meta = self.folder / META
        if self._type is None and self._origin.has(meta):
            self._type = parse_meta(self._origin.text(meta, LONGEST_META), meta)
        return self._type

    @property
    def file_path(self) -> str:
        """The path of the file with the raw data."""
        return str(self.folder / DATA)

    @property
    def has_meta_info(self) -> bool:
        """Whether the shape and element type are known."""
        return self.type is not None

    @property
    def shape(self) -> Shape:
        """The shape; access raises `CheckpointError` if it is unknown."""
        return self._known().shape

    @property
    def dtype(self) -> DType:
        """The element type; access raises `CheckpointError` if it is unknown."""
        return self._known().dtype

    def _known(self) -> TensorType:
        kind = self.type
        if kind is None:
            raise CheckpointError(
                f"reading {self.file_path}",
                found="a folder without a file 'meta', as older versions of OneFlow wrote it",
                hint="load the file into a variable, which supplies the shape and element type",
            )
        return kind

    def typed(self, wanted: TensorType) -> StoredVariable:
        """Return the variable with the given shape and element type, unless it has its own."""
        return self if self.has_meta_info else StoredVariable(self.folder, wanted, self._origin)

    def numpy(self) -> Array:
        """Read the data into memory and verify them.

        Raises:
            CheckpointError: the file's size does not match the shape and element type, or its bytes
                differ from the bytes that were saved.
            CheckpointReplacedError: another checkpoint was saved to the path in the meantime.
        """
        with located(user_line(2)):
            kind = self._known()
            self.check_size()
            raw = self._origin.array(self.folder / DATA, kind.nbytes)
        return raw.view(kind.dtype.numpy).reshape(kind.shape)

    def check_size(self) -> None:
        """Raise `CheckpointError` if the file's size does not match its type."""
        kind, file = self._known(), self.folder / DATA
        current = stamp(file)
        if current is None or current[2] != kind.nbytes:
            size = "no file" if current is None else f"{current[2]} bytes"
            raise self._origin.refused(file, size, f"{kind.nbytes} for {kind}")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """Convert the variable to a numpy array, as `numpy` does."""
        array: Array = as_asked(self.numpy(), dtype, copy)
        return array

    def __repr__(self) -> str:
        return f"StoredVariable({str(self.folder)!r})"


class Snapshot(Mapping[str, Array]):
    """The variables of a checkpoint folder; each variable is read on access.

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
        self.problems = problems  # one line for each problem of the checkpoint as a whole

    def __getitem__(self, name: str) -> Array:
        return self.variables[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __contains__(self, name: object) -> bool:
        return name in self.variables  # the inherited method would read the variable

    def type_of(self, name: str) -> TensorType | None:
        """Return a variable's shape and element type without reading its data; None if unknown."""
        return self.variables[name].type

    def typed(self, wanted: Mapping[str, TensorType]) -> Snapshot:
        """Return a snapshot with shapes and element types for variables that lack them."""
        variables = {
            name: _typed(variable, wanted.get(name)) for name, variable in self.variables.items()
        }
        return Snapshot(variables, self.problems)


def _typed(variable: StoredVariable, wanted: TensorType | None) -> StoredVariable:
    try:
        return variable if wanted is None else variable.typed(wanted)
    except CheckpointError:  # 'meta' is damaged; reading the variable reports it
        return variable


MOST_SEARCHED = 1000
"""The largest number of folders that `can_open` searches.

The limit is needed because a user may pass the path of a large folder, such as the home folder, by
mistake.
"""


def can_open(path: Path) -> bool:
    """Return whether a folder has variables in this layout, or is a finished empty checkpoint."""
    path = Path(path)
    if not path.is_dir():
        return False
    return any(True for _ in _variable_folders(path, MOST_SEARCHED)) or _is_bare(os.listdir(path))


def _is_bare(names: list[str]) -> bool:
    return bool(names) and {DONE, SUMS}.issuperset(names)


def read(path: Path) -> Snapshot:
    """Open a checkpoint folder, whose data are read on access.

    Raises:
        CheckpointError: the checkpoint's list of digests is damaged.
        CheckpointReplacedError: other processes keep replacing the checkpoint's files.
    """
    root = Path(path)
    for _ in range(TRIES):
        sums = read_sums(root)
        snapshot = _read_unlisted(root) if sums is None else _read_listed(Origin(root, sums), sums)
        if snapshot is not None:
            return snapshot
    raise CheckpointReplacedError(
        f"loading {root}",
        found="files that other processes keep replacing",
        allowed="files that do not change while they are listed",
    )


def _read_listed(origin: Origin, sums: Sums) -> Snapshot | None:
    """Open a checkpoint with digests; return None if its folders are those of another save."""
    root = origin.root
    names = [name.removesuffix(f"/{DATA}") for name in sums.digests if name.endswith(f"/{DATA}")]
    folders = _folders(root)
    problems = tuple(_problems(root, folders, names))
    if problems and not origin.is_current():
        return None
    return _snapshot({name: root / name for name in names if name in folders}, origin, problems)


def _read_unlisted(root: Path) -> Snapshot | None:
    """Open a checkpoint without digests; return None if its files change in the meantime."""
    folders = _folders(root)
    stamps = _stamps(folders.values())
    problems = tuple(_problems(root, folders, folders))
    steady = stamps == _stamps(_variable_folders(root)) and not (root / SUMS).exists()
    return _snapshot(folders, Origin(root, None, stamps), problems) if steady else None


def _problems(root: Path, present: Iterable[str], listed: Iterable[str]) -> Iterator[str]:
    """Yield one line for each problem of a checkpoint as a whole."""
    if not is_marked(root):
        yield f"incomplete no file {DONE!r}, which a save writes last"
    for name in sorted({*present} ^ {*listed}):
        yield (
            f"foreign    {name!r} was added after the save: {SUMS} does not list it"
            if name in present
            else f"lost       {name!r}, which {SUMS} lists, has no file {DATA!r}"
        )


def _folders(root: Path) -> dict[str, Path]:
    return {folder.relative_to(root).as_posix(): folder for folder in _variable_folders(root)}


def _stamps(folders: Iterable[Path]) -> dict[Path, Stamp | None]:
    return {folder / file: stamp(folder / file) for folder in folders for file in (DATA, META)}


def _snapshot(folders: Mapping[str, Path], origin: Origin, problems: tuple[str, ...]) -> Snapshot:
    variables = {name: StoredVariable(folders[name], None, origin) for name in sorted(folders)}
    return Snapshot(variables, problems)


def _variable_folders(root: Path, most: int | None = None) -> Iterator[Path]:
    """Yield all folders below ``root`` that have a data file; follow each link target only once."""
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

    Raises `CheckpointError` if the layout does not support a name or an element type.
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
            hint="rename one of the two variables: this file system does not distinguish upper and "
            "lower case",
        )
    data = np.ascontiguousarray(value, kind.dtype.numpy).reshape(-1).view(np.uint8)
    (folder / DATA).write_bytes(data.data)
    (folder / META).write_text(meta_text(kind))


def variable_type(name: str, value: Array) -> TensorType:
    """Return an array's shape and element type, or raise `CheckpointError` if not supported."""
    try:
        dtype = as_dtype(value.dtype)
    except InferenceError as error:
        raise CheckpointError(
            f"saving variable {name!r}",
            found=f"elements of type {value.dtype}",
            allowed=error.allowed,
        ) from None
    return TensorType(tuple(value.shape), dtype)
