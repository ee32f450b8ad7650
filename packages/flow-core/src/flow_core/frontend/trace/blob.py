"""Blobs: the symbolic tensors of a job being traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType
from flow_core.base.errors import JobError, NoValueError, user_line
from flow_core.frontend.config.scope import ParallelConf, current_scope
from flow_core.frontend.trace.division import shape_of_parts
from flow_core.frontend.trace.foreign_attributes import BLOB, missing_attribute
from flow_core.frontend.trace.indexing import part_of
from flow_core.frontend.trace.operators import Operators
from flow_core.frontend.trace.per_device import per_device
from flow_core.frontend.trace.sbp_request import Distribution, decode_distribution
from flow_core.ir.graph import TensorType, Value, tensor_type
from flow_core.sharding.sbp import NdSbp, Sbp, Split
from flow_core.sharding.topology import Placement

NO_SPLIT = -22
"""The value of ``split_axis`` for a blob without a requested split, as in OneFlow 0.3.4."""


@dataclass(frozen=True, slots=True)
class LogicalBlobId:
    """The names of an op and of one of its outputs, with the fields of OneFlow's message."""

    op: str
    output: str

    def op_name(self) -> str:
        """Return the name of the op."""
        return self.op

    def blob_name(self) -> str:
        """Return the name of the output, such as ``out_0``."""
        return self.output


class BlobDef(Operators):
    """A placeholder for a value of the graph being traced: it has a shape and a type, no data.

    Attributes:
        batch_axis: the axis that counts samples, None if there is none.
        is_dynamic: whether the shape may change from step to step, as that of arrays fed in lists.
        rows: the number of valid rows, a `flow_core.frontend.trace.valid_rows.Rows`; None if all
            rows are valid.

    >>> import oneflow as flow
    >>> @flow.global_function()
    ... def job(x=flow.FixedTensorDef((2, 3))):
    ...     print(x.shape, x.dtype)
    ...     return 2 * x
    >>> traced = job.prepare()
    (2, 3) float32
    """

    __slots__ = (
        "_bound", "_distribute", "_job", "_requested", "_value", "batch_axis", "is_dynamic", "rows",
    )  # fmt: skip

    def __init__(
        self, job: Any, value: Value, batch_axis: int | None = None, is_dynamic: bool = False
    ) -> None:
        self._job = job
        self._value = value
        self.batch_axis = batch_axis
        self.is_dynamic = is_dynamic
        self._distribute: Distribution | None = None
        self._requested: Sbp | None = None
        self._bound: TensorType | None = None
        self.rows: Any = None  # `Rows`, whose module imports this one

    @property
    def value(self) -> Value:
        """The value in the job's graph."""
        return self._value

    @property
    def parts(self) -> tuple[Value, ...]:
        """The value in the graph; in the mirrored view, one value per device, in device order."""
        return (self._value,)

    @property
    def job(self) -> Any:  # `JobBuild`, whose module imports this one
        """The job being traced that owns this blob."""
        return self._job

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape; the largest possible shape if the shape changes from step to step.

        In the mirrored view, this is the shape of each device's part, on which ops compute.
        """
        shape = tuple((self._bound or self._job.builder.type_of(self._value)).shape)
        return shape_of_parts(self, shape) if current_scope().mirrored else shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        dtype: DType = (self._bound or self._job.builder.type_of(self._value)).dtype
        return dtype

    @property
    def op_name(self) -> str:
        """Name of the op that produces this blob."""
        return self._value.op

    @property
    def name(self) -> str:
        """Same as `op_name`."""
        return self._value.op

    @property
    def unique_name(self) -> str:
        """The name that OneFlow gives to the blob: the op's name and the number of the output."""
        return f"{self.op_name}/{self.blob_name}"

    @property
    def logical_blob_name(self) -> str:
        """Same as `unique_name`."""
        return self.unique_name

    @property
    def parallel_conf(self) -> ParallelConf:
        """The devices of the op that produces this blob."""
        return ParallelConf(self._job.builder.ops[self._value.op].placement)

    @property
    def blob_name(self) -> str:
        """The name of the output of the op: ``out_0`` for the first one."""
        return f"out_{self._value.index}"

    @property
    def lbi(self) -> LogicalBlobId:
        """The names of the op and of its output."""
        return LogicalBlobId(self.op_name, self.blob_name)

    @property
    def job_name(self) -> str:
        """The name of the job function."""
        name: str = self._job.name
        return name

    @property
    def parallel_size(self) -> int:
        """The number of devices of the op that produces this blob."""
        return len(self.parallel_conf.device_name())

    @property
    def split_axis(self) -> int:
        """The axis of the requested split; `NO_SPLIT` if no split is requested."""
        asked: NdSbp | None = self._job.requested_sbp(self._value)
        requested = self._requested if asked is None else asked[0]
        return requested.axis if isinstance(requested, Split) else NO_SPLIT

    @property
    def distribute(self) -> Distribution | None:
        """The requested distribution, None if none is requested."""
        return self._distribute

    @property
    def requested(self) -> Sbp | None:
        """The requested SBP over the first hierarchy dimension, None if none is requested."""
        return self._requested

    def with_distribute(self, distribute: Distribution | None) -> BlobDef:
        """Return the same blob with a requested distribution.

        Raises:
            JobError: the distribution splits an axis that the blob does not have.
        """
        shape = self._job.builder.type_of(self._value).shape
        asking = f"distribution of {self.op_name!r} in job {self._job.name!r}"
        return self.with_request(
            distribute, decode_distribution(distribute, shape, asking, user_line(2))
        )

    def with_request(self, distribute: Distribution | None, sbp: Sbp | None) -> BlobDef:
        """Return the same blob with a requested distribution, given with its decoded SBP."""
        blob = copy(self)
        blob._distribute, blob._requested = distribute, sbp
        return blob

    @property
    def is_tensor_list(self) -> bool:
        """Whether this blob is a list of tensors, whose shapes may change from step to step."""
        return self._bound is not None

    def with_bound(self, shape: Sequence[int], dtype: DType) -> BlobDef:
        """Return this blob as a list of tensors whose shapes have an upper bound."""
        blob = copy(self)
        blob._bound, blob.is_dynamic = tensor_type(tuple(shape), dtype), True
        return blob

    def with_rows(self, rows: Any) -> BlobDef:
        """Return the same blob with a number of valid rows."""
        blob = copy(self)
        blob.rows, blob.is_dynamic = rows, True
        return blob

    def with_gradient_distribute(self, distribute: Distribution | None) -> BlobDef:
        """Return the same blob with a requested distribution of its gradient."""
        blob: BlobDef = self.job.methods.cast(self, gradient_distribute=distribute)
        return blob

    def with_nd_sbp(self, texts: Sequence[str]) -> BlobDef:
        """Return the same blob with an SBP per dimension of the hierarchy of the devices in scope.

        Args:
            texts: such as ``["S(0)", "B"]``; without texts, nothing is requested.
        """
        blob: BlobDef = self.job.methods.cast_nd(self, texts) if texts else self
        return blob

    def numpy(self, parallel_id: int | None = None) -> Any:
        """Return the blob's array in the call that defines the job; in eager mode only.

        Args:
            parallel_id: the number of the device whose array to return; None for all devices.

        Raises:
            JobError: the session is not in eager mode, so that blobs have no data.
        """
        if self.is_tensor_list:  # the list has one tensor
            return self._now().numpy_list()[parallel_id or 0]
        return self._now().numpy(parallel_id)

    def numpy_list(self) -> list[Array]:
        """Return one array per device; otherwise like `numpy`."""
        arrays: list[Any] = self._now().numpy_list()
        return arrays

    def numpy_lists(self) -> list[list[Array]]:
        """Return a list of arrays per device; otherwise like `numpy`."""
        lists: list[list[Any]] = self._now().numpy_lists()
        return lists

    def numpy_size(self) -> int:
        """Return the number of values: one, or in the mirrored view one per device."""
        return len(self.parts)

    def _now(self) -> Any:
        return self.job.evaluate(self, user_line(3))

    def __copy__(self) -> BlobDef:
        """Return another `BlobDef` for the same value."""
        blob = object.__new__(type(self))
        for name in (n for kind in type(self).__mro__ for n in getattr(kind, "__slots__", ())):
            setattr(blob, name, getattr(self, name))
        return blob

    def __repr__(self) -> str:
        return f"BlobDef({self._value}: {self.dtype}{list(self.shape)})"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> BlobDef:
        """Return a part of the blob, by numpy's index notation; see `indexing`."""
        part: BlobDef = part_of(self, key)
        return part

    def __bool__(self) -> bool:
        """Return True, so that ``if bias:`` tests for the presence of an optional blob.

        Raises:
            NoValueError: the blob holds truth values (int8, bool), which comparisons return; a
                branch on truth values needs data.
        """
        return self.dtype.name not in ("int8", "bool") or _refuse_truth(self)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else repr(self)

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, "a blob", name, BLOB)


if TYPE_CHECKING:
    from flow_core.frontend.trace.operators import Blob as Blob
else:
    Blob = BlobDef


def checked_blob(blob: Blob, used_by: str = "a value as a blob") -> BlobDef:
    """Return a blob; raise `JobError` for any other value."""
    if isinstance(blob, BlobDef):
        return blob
    raise JobError.at_caller(
        f"use of {used_by}",
        found=f"{type(blob).__name__} {blob!r:.60}",
        allowed="blobs: parameters of the job function and results of flow's functions",
        hint="turn the value into a constant blob: flow.constant(value, dtype=..., shape=...)",
    )


def _refusal(what: str, hint: str) -> Callable[..., NoReturn]:
    """Return a special method that raises an error, because it would need the blob's data."""

    def refuse(blob: BlobDef, *_: object, **__: object) -> NoReturn:
        raise NoValueError.at_caller(
            f"{what} {blob!r}",
            found="a placeholder, which has no data while a job is defined",
            hint=hint,
        )

    return refuse


_NUMBER = (
    "a Python number of",
    "compute with flow's functions; sizes are numbers: blob.shape[0]; or return the blob, and go "
    "on with the job's result",
)
_REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("__int__", "__float__", "__index__", "__complex__"), _NUMBER),
    "__iter__": ("a loop over", "loop over range(blob.shape[0]), and take row i as blob[i]"),
    "__contains__": ("a search in", "flow.math.equal(blob, number), flow.math.reduce_any"),
    "__setitem__": (
        "an assignment to a part of",
        "flow.slice_update(blob, part, [[begin, end, step], ...]) gives the changed blob",
    ),
    "__array__": (
        "numpy's view of",
        "compute with flow's functions, such as those of flow.math; numpy takes the job's results",
    ),
}
_REFUSED |= dict.fromkeys(
    ("__reduce_ex__", "__deepcopy__"),
    (
        "pickling or deep-copying",
        "return the blob, and pickle or copy the result of the job; to share what computes it, "
        "call one Python function in several jobs",
    ),
)
for _method, _words in _REFUSED.items():
    setattr(BlobDef, _method, _refusal(*_words))
_refuse_truth = _refusal(
    "truth value of", "compute with flow.where(...), or decide on a Python value outside the job"
)


class MirroredBlob(BlobDef):
    """A blob in the mirrored view, with one value per device.

    Sizes that differ between the devices are `PerDevice` numbers.
    """

    __slots__ = ("_parts", "differs", "placement")

    def __init__(
        self,
        job: Any,
        parts: Sequence[Value],
        placement: Placement,
        *,
        differs: bool,
        batch_axis: int | None = None,
        is_dynamic: bool = False,
    ) -> None:
        super().__init__(job, parts[0], batch_axis, is_dynamic)
        self._parts = tuple(parts)
        self.placement = placement
        self.differs = differs  # whether the values may differ between devices

    @property
    def value(self) -> Value:
        """Raises an error, because a blob of the mirrored view has no single value."""
        raise JobError.at_caller(
            f"use of {self!r}",
            found=f"a blob of the mirrored view, with a value on each of {self.placement}",
            allowed="a logical blob of the consistent view",
            hint="use the blob in the mirrored view, or convert it with "
            "flow.cast_to_current_logical_view(blob)",
        )

    @property
    def parts(self) -> tuple[Value, ...]:
        """The values of the devices, in order."""
        return self._parts

    @property
    def parallel_conf(self) -> ParallelConf:
        """The devices of the mirrored view."""
        return ParallelConf(self.placement)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on each device."""
        if self._bound is not None:
            return tuple(self._bound.shape)
        type_of = self._job.builder.type_of
        return tuple(map(per_device, zip(*(type_of(p).shape for p in self._parts), strict=True)))

    @property
    def op_name(self) -> str:
        """Name of the op that produces this blob, without the device."""
        return self._value.op.rsplit("#", 1)[0]

    name = op_name

    def with_distribute(self, distribute: Distribution | None) -> BlobDef:
        """Raise an error, because each device has a value of its own."""
        raise JobError.at_caller(
            f"with_distribute of {self!r}",
            found=f"a blob of the mirrored view, with a value on each of {self.placement}",
            allowed="logical blobs of the consistent view",
        )

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"MirroredBlob({self.op_name}: {self.dtype}[{shape}] on {self.placement})"
