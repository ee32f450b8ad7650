"""Results of job calls: arrays, handles, callbacks."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from queue import SimpleQueue
from typing import Any, NoReturn

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_asked
from flow_core.base.errors import JobError, NoValueError
from flow_core.base.host_arrays import HostDLPack
from flow_core.frontend.trace.blob import BlobDef, MirroredBlob
from flow_core.runtime.pipeline import Pipeline, Step


class DeviceArrays(list[Any]):
    """The fetched arrays of a blob of the mirrored view, one per device."""

    __slots__ = ("axis", "is_dynamic")

    def __init__(self, arrays: Iterable[Array], axis: int | None, is_dynamic: bool) -> None:
        super().__init__(arrays)
        self.axis = axis  # of the batch, for the concatenation
        self.is_dynamic = is_dynamic

    def joined(self) -> Array:
        """Concatenate the arrays of all devices."""
        if self.axis is None or self.is_dynamic:
            raise JobError.at_caller(
                "taking one array of a blob of the mirrored view",
                found="arrays whose shapes may differ between devices"
                if self.is_dynamic
                else "arrays without a batch axis",
                allowed="numpy(parallel_id) for one device, or numpy_list() for all",
                hint="annotate the job with -> tp.ListNumpy",
            )
        return np.concatenate(list(self), self.axis)


class Fetched:
    """The position of a blob's arrays among a step's results."""

    __slots__ = ("_axis", "_counts", "_dynamic", "_lead", "_mirrored", "_where")

    def __init__(self, where: slice, blob: BlobDef) -> None:
        self._where = where
        self._mirrored = isinstance(blob, MirroredBlob)
        self._axis = blob.batch_axis
        self._dynamic = blob.is_dynamic
        self._lead = None if blob.rows is None else (slice(None),) * blob.rows.axis
        self._counts = slice(where.stop, 2 * where.stop - where.start)

    def of(self, results: Sequence[Array]) -> Array | DeviceArrays:
        """Return the blob's array, or, in the mirrored view, its `DeviceArrays`."""
        found = results[self._where]
        if self._lead is not None:
            counts = results[self._counts]
            found = [self._cut(x, n) for x, n in zip(found, counts, strict=True)]
        return DeviceArrays(found, self._axis, self._dynamic) if self._mirrored else found[0]

    def _cut(self, array: Array, count: Array) -> Array:
        """Return the valid rows of an array, given their number."""
        return array[(*(self._lead or ()), slice(max(0, int(count.reshape(-1)[0]))))]


class LocalBlob(HostDLPack):
    """A fetched value that behaves like the array it holds.

    >>> loss = LocalBlob(np.array([0.5], np.float32))
    >>> loss * 2 + 1, float(loss), f"{float(loss):.3f}"
    (array([2.], dtype=float32), 0.5, '0.500')
    """

    __slots__ = ("_fetched",)

    def __init__(self, fetched: Array | DeviceArrays) -> None:
        self._fetched = fetched

    @property
    def _array(self) -> Array:
        fetched = self._fetched
        return fetched.joined() if isinstance(fetched, DeviceArrays) else fetched

    def numpy(self, parallel_id: int | None = None) -> Array:
        """Return the array of one device, or the concatenated batches of all devices."""
        return self._array if parallel_id is None else self.numpy_list()[parallel_id]

    def numpy_list(self) -> list[Array]:
        """Return one array per device."""
        return _as_list(self._fetched)

    def numpy_lists(self) -> list[list[Array]]:
        """Return a list of arrays per device."""
        return _as_lists(self._fetched)

    def ndarray(self) -> Array:
        """Return the same as `numpy`, under its older name."""
        return self.numpy()

    def ndarray_list(self) -> list[Array]:
        """Return `numpy_list()`; this is an older name of that method."""
        return self.numpy_list()

    @property
    def ndarray_list_(self) -> list[Array]:
        """The same as `numpy_list()`, as an attribute."""
        return self.numpy_list()

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape may differ from step to step."""
        if isinstance(self._fetched, DeviceArrays):
            return self._fetched.is_dynamic
        return bool(self._fetched.dtype == object)

    def parallel_num(self) -> int:
        """Return the number of devices."""
        return len(self.numpy_list())

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        return as_asked(self._array, dtype, copy)

    def __reduce__(self) -> tuple[object, ...]:
        return LocalBlob, (self._fetched,)

    def __deepcopy__(self, memo: dict[int, object]) -> LocalBlob:
        return LocalBlob(deepcopy(self._fetched, memo))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    def __repr__(self) -> str:
        return f"LocalBlob({self._fetched!r})"


def _of_array(method: str) -> Callable[..., Any]:
    """Return a method that calls the method of the same name of the array."""

    def call(blob: LocalBlob, *args: object) -> Any:
        plain = (arg.numpy() if isinstance(arg, LocalBlob) else arg for arg in args)
        return getattr(blob.numpy(), method)(*plain)

    return call


def _of_number(convert: Callable[[Any], Any]) -> Callable[[LocalBlob], Any]:
    """Return a number conversion for arrays of one element and any rank; losses have shape (1,)."""
    return lambda blob: convert(blob.numpy().item())


_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
}
_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("lshift", "rshift", "and", "or", "xor"),
)
_OF_ARRAYS = (
    *(prefix + name for name in _BINARY for prefix in ("", "r", "i")),
    *("lt", "le", "eq", "ne", "gt", "ge", "neg", "pos", "abs", "invert"),
    *("len", "iter", "contains", "getitem", "setitem"),
)
for _method in _OF_ARRAYS:
    if hasattr(np.ndarray, f"__{_method}__"):
        setattr(LocalBlob, f"__{_method}__", _of_array(f"__{_method}__"))
for _method, _convert in _NUMBERS.items():
    setattr(LocalBlob, f"__{_method}__", _of_number(_convert))


def _as_list(fetched: Array | DeviceArrays) -> list[Array]:
    """Return one array per device; replace a list of one tensor by the tensor."""
    arrays = fetched if isinstance(fetched, DeviceArrays) else [fetched]
    return [array[0] if array.dtype == object else array for array in arrays]


def _as_lists(fetched: Array | DeviceArrays) -> list[list[Array]]:
    """Return a list of arrays per device; tensors of a list get a leading axis of size 1."""
    arrays = fetched if isinstance(fetched, DeviceArrays) else [fetched]
    return [[x[np.newaxis] for x in a] if a.dtype == object else [a] for a in arrays]


FORMS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda fetched: fetched.joined() if isinstance(fetched, DeviceArrays) else fetched,
    "list": _as_list,
    "list_list": _as_lists,
    "blob": LocalBlob,
}
"""For each kind of annotation, the conversion of a fetched array (or `DeviceArrays`)."""


_TO_GET_IT = (
    "job(...).get() waits for the arrays, job(...)(function) has them handed over; "
    "with the annotation -> tp.Numpy a job returns its array"
)


class Pending:
    """A handle of a step whose results have not been requested yet.

    The actor that runs callbacks waits until a callback is registered on this handle, so that
    callbacks run in the order of the calls.  The actor stops waiting when this handle is garbage
    collected, or when the wait blocks another thread; a callback that is registered later runs in
    the thread that registers it.

    Args:
        arrange: converts the results of a step to the structure that the job returns.
    """

    __slots__ = ("__weakref__", "_arrange", "_mailbox", "_pipeline", "_step")

    def __init__(self, pipeline: Pipeline, arrange: Callable[[Step], Any]) -> None:
        self._mailbox = _Mailbox()
        self._pipeline = pipeline
        self._arrange = arrange
        self._step: Step | None = None

    def deliverer(self) -> Callable[[Step], None]:
        """Return the function that the callback actor calls; it does not refer to this handle."""
        mailbox, arrange = self._mailbox, self._arrange
        gone = mailbox.cancel_without(self)

        def deliver(step: Step) -> None:
            callback = mailbox.wait()
            if callback is not None and callback is not gone:
                result = arrange(step)
                try:
                    callback(result)
                except Exception as error:
                    if error.__traceback__ and error.__traceback__.tb_next is None:
                        error.add_note(_whereabouts(callback))  # the callback was not entered
                    raise

        return deliver

    @property
    def release(self) -> Callable[[], object]:
        """Return the function to call when the wait for a callback blocks a thread."""
        mailbox = self._mailbox
        return lambda: mailbox.put(None)

    def attach(self, step: Step) -> None:
        """Set the step for which `get` waits."""
        self._step = step

    def __call__(self, callback: Callable[[Any], object]) -> None:
        """Register a callback; the callback thread calls it with the results."""
        if not callable(callback):
            raise JobError.at_caller(
                "registering a callback",
                found=f"{callback!r:.60}",
                allowed="a function of one argument",
            )
        self._pipeline.check_process()
        if not self._mailbox.put(callback):
            callback(self.get())

    def async_get(self, callback: Callable[[Any], Any]) -> None:
        """Register a callback, as a call of this handle does."""
        self(callback)

    def get(self) -> Any:
        """Wait for the step and return its results."""
        step = self._step
        if step is None:
            raise JobError("getting a job's result", found="a call that was not started")
        if not step.done:
            self._pipeline.check_process()
        self._mailbox.put(None)
        self._pipeline.wait_for(step)
        if step.error is not None:
            self._pipeline.forget(step.error)
            raise step.error
        return self._arrange(step)

    def numpy(self) -> Array:
        """Wait for the step and return the array of its single result."""
        return self._one("numpy").numpy()

    def numpy_list(self) -> list[Array]:
        """Wait for the step and return one array per device of its single result."""
        arrays: list[Any] = self._one("numpy_list").numpy_list()
        return arrays

    def numpy_lists(self) -> list[list[Array]]:
        """Wait for the step and return a list of arrays per device of its single result."""
        lists: list[list[Any]] = self._one("numpy_lists").numpy_lists()
        return lists

    def __getattr__(self, name: str) -> Any:
        text = f"the result of a call has no {name!r} yet: {_TO_GET_IT}"
        raise AttributeError(text, name=name, obj=self)

    __array_priority__ = 1000  # numpy's operators defer to those below, whose errors are clearer

    def __repr__(self) -> str:
        return f"<the result of a call, not fetched: {_TO_GET_IT}>"

    def _one(self, what: str) -> LocalBlob:
        result = self.get()
        if not isinstance(result, LocalBlob):
            raise JobError.at_caller(
                f"use of {what}()",
                found=f"results in a {type(result).__name__}",
                allowed="a job without annotation that returns one blob",
                hint=f"convert one element of the results: job(...).get()[0].{what}()",
            )
        return result


def _not_yet(what: str) -> Callable[..., NoReturn]:
    """Return a special method that raises an error, because it would need the fetched arrays."""

    def refuse(pending: Pending, *_: object, **__: object) -> NoReturn:
        raise NoValueError.at_caller(
            f"{what} the result of a call",
            found="a call whose arrays have not been fetched",
            hint=_TO_GET_IT,
        )

    return refuse


_ASKED = {
    "pickling or copying": ("__reduce_ex__",),
    "an index into": ("__getitem__",),
    "a loop over": ("__iter__",),
    "numpy's view of": ("__array__", "__dlpack__", "__dlpack_device__"),
    "a Python number of": ("__int__", "__float__", "__index__"),
    "arithmetic with": tuple(
        f"__{side}{name}__"
        for name in ("add", "sub", "mul", "truediv", "pow", "matmul")
        for side in ("", "r")
    ),
}
for _what, _methods in _ASKED.items():
    for _method in _methods:
        setattr(Pending, _method, _not_yet(_what))


def _whereabouts(callback: Callable[..., object]) -> str:
    """Return text that names a callback and its line.

    The traceback lacks that line if the arguments do not match the callback's parameters.
    """
    code = getattr(callback, "__code__", None)
    where = f" (at {code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"in the callback {getattr(callback, '__qualname__', repr(callback))}{where} of a job"


class _Mailbox:
    """A place for one callback, which is registered at most once or cancelled."""

    __slots__ = ("_given", "_items", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._given = False

    def put(self, callback: Callable[[Any], Any] | None) -> bool:
        """Register a callback, or None to cancel; return False if either was done before."""
        with self._lock:
            if self._given:
                return False
            self._given = True
            self._items.put(callback)
            return True

    def cancel_without(self, holder: object) -> weakref.ref[object]:
        """Cancel when an object is garbage collected; `wait` then returns the object's weakref.

        The finalizer is a C function, because a Ctrl-C during a Python finalizer would be lost.
        """
        return weakref.ref(holder, self._items.put)

    def wait(self) -> Any:
        """Wait until a callback is registered or cancelled, and return what `put` received."""
        return self._items.get()
