"""Interpreter of the pickles in files that ``torch.save`` wrote.

The opcodes of the pickle protocols 2 to 5 work on records of this module: names are looked up in a
fixed table, nothing is imported or called by name, and no opcode changes anything but these
records.  A dict is the list of its entries, so that no key is hashed.  Each opcode takes constant
memory beyond the bytes of the pickle that it consumes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.base.decoding import shown
from flow_core.checkpoint.layout import MOST_AXES

LONGEST_PICKLE = 1 << 28
"""Largest size of a pickle in bytes; it contains names and shapes only."""

MOST_STEPS = 1 << 23
"""Largest number of opcodes, of which a tensor takes about 40."""

MOST_NUMBER = (1 << 63) - 1

STORAGES: Mapping[str, tuple[str, int]] = {
    "torch FloatStorage": ("float32", 4), "torch DoubleStorage": ("float64", 8),
    "torch HalfStorage": ("float16", 2), "torch BFloat16Storage": ("bfloat16", 2),
    "torch LongStorage": ("int64", 8), "torch IntStorage": ("int32", 4),
    "torch ShortStorage": ("int16", 2), "torch CharStorage": ("int8", 1),
    "torch ByteStorage": ("uint8", 1), "torch BoolStorage": ("bool", 1),
    "torch ComplexFloatStorage": ("complex64", 8), "torch ComplexDoubleStorage": ("complex128", 16),
    "torch QUInt8Storage": ("quint8", 1), "torch QInt8Storage": ("qint8", 1),
    "torch QInt32Storage": ("qint32", 4), "torch QUInt4x2Storage": ("quint4x2", 1),
    "torch QUInt2x4Storage": ("quint2x4", 1),
    "torch.storage UntypedStorage": ("bytes", 1), "torch UntypedStorage": ("bytes", 1),
}  # fmt: skip
"""Element type, and bytes of an element, by the class of a storage."""

_DTYPES = (
    "float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128", "bool",
    "quint8", "qint8", "qint32", "quint4x2", "quint2x4", "float8_e5m2", "float8_e4m3fn",
    "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits16",
    "bits1x8", "bits2x4", "bits4x2", *(f"int{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    *(f"uint{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
)  # fmt: skip


class PickleError(ValueError):
    """A pickle that is damaged, or contains something else than weights and plain data."""


class UnknownNameError(PickleError):
    """A pickle that names a function or class outside of the table."""


class Pairs(list[tuple[object, object]]):
    """The entries of a dict, in order."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Global:
    """A function or class, by its module and name."""

    name: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object without tensors, such as a number of numpy."""


OPAQUE = Opaque()


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage: its element type, the name of its file, and its size in bytes."""

    element: str
    key: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class StridedTensor:
    """A tensor that views a storage."""

    storage: Storage
    element: str  # torch's name of the element type
    offset: int  # index of its first element in the storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # its strides, in elements
    negated: bool = False  # whether its values are the negated numbers of the storage


@dataclass(frozen=True, slots=True)
class OtherTensor:
    """A tensor or array that is listed, but cannot be read."""

    what: str


Tensor = StridedTensor | OtherTensor


def interpret(data: bytes) -> object:
    """Return the object of a pickle, made of records of this module and plain data.

    Raises:
        PickleError: see there.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except PickleError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, struct.error) as error:
        text = f"a damaged pickle, at byte {machine.at}: {error!s:.100}"
        raise PickleError(text) from None


# ------------------------------------------------------------------------------------ constructors


def _tensor(
    storage: object, offset: Any, shape: Any, strides: Any, *more: object
) -> StridedTensor | OtherTensor:
    element = storage.element if isinstance(storage, Storage) else ""
    return _view(storage, element, (offset, shape, strides), more[2] if more[2:] else None)


def _tensor_with_dtype(
    storage: object, offset: Any, shape: Any, strides: Any, *more: Any
) -> StridedTensor | OtherTensor:
    element = more[2].name.removeprefix("torch ")
    return _view(storage, element, (offset, shape, strides), more[3] if more[3:] else None)


def _view(
    storage: object, element: str, place: tuple[Any, Any, Any], metadata: object
) -> StridedTensor | OtherTensor:
    offset, shape, strides = place
    if not isinstance(storage, Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise PickleError("a tensor without a storage, shape or strides")
    if not len(shape) == len(strides) <= MOST_AXES:
        raise PickleError(f"a tensor with {len(shape)} axes and {len(strides)} strides")
    wrong = [n for n in (offset, *shape, *strides) if type(n) is not int or not _is_size(n)]
    if wrong:
        raise PickleError(f"a tensor with {shown(wrong[0])} as offset, size or stride")
    flags = {} if metadata is None else _flags(metadata)
    odd = [name for name in flags if name not in ("neg", "conj")]
    if odd:
        return OtherTensor(f"a tensor with the metadata {odd[0]!r:.60}")
    if "neg" in flags and element == "bool":
        raise PickleError("a negated tensor of bool")
    return StridedTensor(storage, element, offset, shape, strides, "neg" in flags)


def _flags(metadata: object) -> dict[str, None]:
    """Return the names of the entries of a tensor's metadata that are not false."""
    if type(metadata) is not Pairs or len(metadata) > 16:
        raise PickleError("metadata of a tensor that are not a small dict")
    values = {name: value for name, value in metadata if isinstance(name, str)}
    return {name: None for name, value in values.items() if value is not False}


def _is_size(number: int) -> bool:
    return 0 <= number <= MOST_NUMBER


def _first(data: object, *_: object) -> object:
    return data


def _dict(*arguments: object) -> Pairs:
    """Return the dict that a constructor without entries or with a dict makes."""
    last = arguments[-1] if arguments else None
    return last if type(last) is Pairs else Pairs()


def _from_type(function: object, _: object, arguments: object, *__: object) -> object:
    """Return the tensor that torch makes for a class derived from its tensors, or a parameter."""
    if function == Global("torch._tensor _rebuild_from_type_v2"):
        raise PickleError("a tensor of a class within another one")
    return _call(function, arguments)


def _other(what: str) -> Callable[..., OtherTensor]:
    return lambda *_: OtherTensor(what)


_MAKERS: Mapping[str, Callable[..., object]] = {
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor_with_dtype,
    "torch._utils _rebuild_parameter": _first,
    "torch._utils _rebuild_parameter_with_state": _first,
    "torch._tensor _rebuild_from_type_v2": _from_type,
    "torch Size": _first,
    "collections OrderedDict": _dict,
    "collections defaultdict": _dict,
    "torch._utils _rebuild_sparse_tensor": _other("a sparse tensor"),
    "torch._utils _rebuild_sparse_csr_tensor": _other("a sparse tensor"),
    "torch._utils _rebuild_qtensor": _other("a quantized tensor"),
    "torch._utils _rebuild_nested_tensor": _other("a nested tensor"),
    "torch._utils _rebuild_meta_tensor_no_storage": _other("a tensor without data"),
    "torch._utils _rebuild_wrapper_subclass": _other("a tensor of another class"),
    "torch._utils _rebuild_device_tensor_from_numpy": _other("a tensor of another device"),
    "torch._utils _rebuild_device_tensor_from_cpu_tensor": _other("a tensor of another device"),
    "numpy.core.multiarray _reconstruct": _other("a numpy array"),
    "numpy._core.multiarray _reconstruct": _other("a numpy array"),
}
"""Functions for the names that make weights and dicts; they check their arguments."""

_PLAIN = frozenset(
    [*STORAGES, *(f"torch {name}" for name in _DTYPES)]
    + [f"{module} {name}" for module in ("builtins", "__builtin__")
       for name in ("set", "frozenset", "list", "dict", "tuple", "complex", "bytearray", "int",
                    "float", "str", "bool", "bytes", "slice", "range")]
    + [f"torch {name}" for name in (
        "Tensor", "device", "strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr",
        "sparse_bsc", "per_tensor_affine", "per_channel_affine", "per_tensor_symmetric",
        "per_channel_symmetric", "per_channel_affine_float_qparams")]
    + ["torch.nn.parameter Parameter", "torch.nn.parameter Buffer",
       "torch.serialization _get_layout", "torch.torch_version TorchVersion",
       "numpy dtype", "numpy ndarray", "numpy.core.multiarray scalar",
       "numpy._core.multiarray scalar", "_codecs encode", "collections Counter",
       "collections deque", "argparse Namespace", "datetime datetime", "datetime timedelta"]
)  # fmt: skip
"""Names of objects without tensors."""


def _named(module: object, name: object) -> Global:
    text = f"{module} {name}"
    if not (isinstance(module, str) and isinstance(name, str)):
        raise PickleError("a name that is not a text")
    if text not in _MAKERS and text not in _PLAIN:
        raise UnknownNameError(f"the object {text.replace(' ', '.', 1):.120}")
    return Global(text)


def _call(function: object, arguments: object) -> object:
    if not isinstance(function, Global) or type(arguments) is not tuple:
        raise PickleError("a call of something else than a function")
    make = _MAKERS.get(function.name)
    return make(*arguments) if make else OPAQUE


def _storage(record: object) -> Storage:
    if type(record) is not tuple or len(record) != 5:
        raise PickleError("a storage without a record of five parts")
    kind, element, key, _, count = record
    name = element.name if isinstance(element, Global) else ""
    if kind != "storage" or name not in STORAGES or not isinstance(key, str):
        raise PickleError(f"a storage of the class {name!r:.60}")
    dtype, size = STORAGES[name]
    if type(count) is not int or not _is_size(count * size):
        raise PickleError(f"a storage of {shown(count)} elements")
    return Storage(dtype, key, count * size)


# ------------------------------------------------------------------------------------ the machine


class _Machine:
    """The state of a pickle's interpretation."""

    __slots__ = ("at", "below", "data", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data  # the pickle
        self.at = 0  # the position of the next byte
        self.stack: list[Any] = []  # the values above the last mark
        self.below: list[list[Any]] = []  # the values below each mark
        self.memo: dict[int, Any] = {}  # the values that opcodes recall, by number

    def run(self) -> object:
        for _ in range(MOST_STEPS):
            code = self.take(1)
            if code == b".":
                return self.stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise PickleError(f"the opcode {code!r} at byte {self.at - 1}")
            step(self)
        raise PickleError(f"a pickle of more than {MOST_STEPS} opcodes")

    def take(self, size: int) -> bytes:
        end = self.at + size
        data = self.data[self.at : end]
        if len(data) != size:
            raise PickleError(f"a pickle that ends at byte {len(self.data)}")
        self.at = end
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1000)
        if end < 0:
            raise PickleError(f"a name without an end at byte {self.at}")
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def push(self, value: object) -> None:
        self.stack.append(value)

    def unmarked(self) -> list[Any]:
        """Return the values above the last mark, and remove the mark."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def last(self, count: int) -> tuple[Any, ...]:
        """Remove the last values of the stack, and return them."""
        values = tuple(self.stack[-count:])
        if len(values) != count:
            raise PickleError(f"too few values at byte {self.at}")
        del self.stack[-count:]
        return values

    def pop(self) -> None:
        if self.stack:
            del self.stack[-1]
        else:
            self.unmarked()

    def memoize(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def append(self, items: list[Any]) -> None:
        self._extend(list, items)

    def set_items(self, items: list[Any]) -> None:
        self._extend(Pairs, list(zip(items[::2], items[1::2], strict=True)))

    def _extend(self, kind: type, items: list[Any]) -> None:
        target: Any = self.stack[-1]
        if type(target) in (kind,):  # mypy would narrow the type by `is`
            target.extend(items)
        elif target is not OPAQUE:
            raise PickleError(f"entries for a value that has none, at byte {self.at}")

    def skip_set(self) -> None:
        self.unmarked()
        self.push(OPAQUE)

    def call(self) -> None:
        function, arguments = self.last(2)
        self.push(_call(function, arguments))

    def call_with_names(self) -> None:
        function, arguments, _ = self.last(3)
        self.push(_call(function, arguments))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _float(machine: _Machine) -> float:
    number: float = struct.unpack(">d", machine.take(8))[0]
    return number


_STEPS: Mapping[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME
    b"(": _Machine.mark,
    b"0": _Machine.pop,
    b"1": _Machine.unmarked,  # POP_MARK
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),  # BININT
    b"K": lambda m: m.push(m.number(1)),  # BININT1
    b"M": lambda m: m.push(m.number(2)),  # BININT2
    b"\x8a": lambda m: m.push(int.from_bytes(m.take(m.number(1)), "little", signed=True)),  # LONG1
    b"G": lambda m: m.push(_float(m)),  # BINFLOAT
    b"X": lambda m: m.push(_text(m.take(m.number(4)))),  # BINUNICODE
    b"\x8c": lambda m: m.push(_text(m.take(m.number(1)))),  # SHORT_BINUNICODE
    b"\x8d": lambda m: m.push(_text(m.take(m.number(8)))),  # BINUNICODE8
    b"T": lambda m: m.push(m.take(m.number(4)).decode("latin-1")),  # BINSTRING
    b"U": lambda m: m.push(m.take(m.number(1)).decode("latin-1")),  # SHORT_BINSTRING
    b"B": lambda m: m.push(m.take(m.number(4))),  # BINBYTES
    b"C": lambda m: m.push(m.take(m.number(1))),  # SHORT_BINBYTES
    b"\x8e": lambda m: m.push(m.take(m.number(8))),  # BINBYTES8
    b"\x96": lambda m: m.push(m.take(m.number(8))),  # BYTEARRAY8
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push(Pairs()),
    b")": lambda m: m.push(()),
    b"\x8f": lambda m: m.push(OPAQUE),  # EMPTY_SET
    b"\x90": _Machine.unmarked,  # ADDITEMS
    b"\x91": _Machine.skip_set,  # FROZENSET
    b"t": lambda m: m.push(tuple(m.unmarked())),
    b"\x85": lambda m: m.push(m.last(1)),  # TUPLE1
    b"\x86": lambda m: m.push(m.last(2)),  # TUPLE2
    b"\x87": lambda m: m.push(m.last(3)),  # TUPLE3
    b"a": lambda m: m.append([*m.last(1)]),
    b"e": lambda m: m.append(m.unmarked()),  # APPENDS
    b"s": lambda m: m.set_items([*m.last(2)]),
    b"u": lambda m: m.set_items(m.unmarked()),  # SETITEMS
    b"q": lambda m: m.memoize(m.number(1)),  # BINPUT
    b"r": lambda m: m.memoize(m.number(4)),  # LONG_BINPUT
    b"\x94": lambda m: m.memoize(len(m.memo)),
    b"h": lambda m: m.push(m.memo[m.number(1)]),  # BINGET
    b"j": lambda m: m.push(m.memo[m.number(4)]),  # LONG_BINGET
    b"c": lambda m: m.push(_named(m.line(), m.line())),  # GLOBAL
    b"\x93": lambda m: m.push(_named(*m.last(2))),  # STACK_GLOBAL
    b"R": _Machine.call,
    b"\x81": _Machine.call,  # NEWOBJ
    b"\x92": _Machine.call_with_names,  # NEWOBJ_EX
    b"b": lambda m: m.last(1),  # BUILD: the state of an object has no weights
    b"Q": lambda m: m.push(_storage(*m.last(1))),  # BINPERSID
}
