"""The element types, with the names that OneFlow uses.

Numpy is imported on use, since `flow --help` imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flow_core.base.errors import InferenceError, nearest

if TYPE_CHECKING:
    from flow_core.base.arrays import Array, NumpyType


@dataclass(frozen=True)
class DType:
    """An element type.

    >>> float32.itemsize, float32.is_floating, str(int8)
    (4, True, 'int8')
    """

    name: str
    kind: str
    itemsize: int

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"oneflow.{self.name}"

    @property
    def is_floating(self) -> bool:
        """Whether this is a floating-point type; only such types have gradients."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type."""
        return self.kind in "iu"

    @property
    def is_object(self) -> bool:
        """Whether elements are objects on the host, whose size may change from step to step."""
        return self.kind == "O"

    @cached_property
    def numpy(self) -> NumpyType:
        """The numpy dtype with the same storage (from ``ml_dtypes`` for bfloat16)."""
        import numpy as np

        if self.is_object:
            return np.dtype(object)
        if self.name == "bfloat16":
            import ml_dtypes

            storage: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return storage
        return np.dtype("int8" if self.name == "char" else self.name)

    @property
    def accumulate(self) -> DType:
        """The type in which sums of this type are accumulated."""
        return float32 if self.name in ("float16", "bfloat16") else self


float16 = DType("float16", "f", 2)
bfloat16 = DType("bfloat16", "f", 2)
float32 = DType("float32", "f", 4)
float64 = DType("float64", "f", 8)
int8 = DType("int8", "i", 1)
int32 = DType("int32", "i", 4)
int64 = DType("int64", "i", 8)
uint8 = DType("uint8", "u", 1)
bool_ = DType("bool", "b", 1)
char = DType("char", "i", 1)
tensor_buffer = DType("tensor_buffer", "O", 8)
record = DType("record", "O", 8)

ALL: tuple[DType, ...] = (
    float16, bfloat16, float32, float64, int8, int32, int64, uint8, bool_, char
)  # fmt: skip
FLOATS: tuple[DType, ...] = tuple(d for d in ALL if d.is_floating)
OBJECTS: tuple[DType, ...] = (tensor_buffer, record)
BY_NAME: dict[str, DType] = {
    **{d.name: d for d in (*ALL, *OBJECTS)}, "float": float32, "double": float64
}  # fmt: skip


@lru_cache(maxsize=256)
def _from_numpy(dtype: NumpyType) -> DType | None:
    return BY_NAME.get(dtype.name)


def as_dtype(value: object) -> DType:
    """Return the DType for a DType, a name, or anything that numpy accepts as a dtype.

    >>> import numpy as np
    >>> as_dtype("float"), as_dtype(np.int64)
    (oneflow.float32, oneflow.int64)
    """
    if isinstance(value, DType):
        return value
    dtype = BY_NAME.get(value) if isinstance(value, str) else None
    if dtype is None:
        import numpy as np

        try:
            if value is None:  # numpy would return float64
                raise TypeError
            dtype = _from_numpy(np.dtype(value))  # type: ignore[call-overload]
        except (TypeError, ValueError, SyntaxError, OverflowError):  # numpy parses some strings
            dtype = None
    if dtype is None:
        raise InferenceError.at_caller(
            "use of an element type",
            found=repr(value),
            allowed=", ".join(d.name for d in ALL),
            hint=nearest(str(value), BY_NAME) or None,
        )
    return dtype


def as_asked(array: Array, dtype: Any, copy: bool | None) -> Array:
    """Implement ``__array__``: cast an array, and copy it if ``copy`` requests it.

    Raises:
        ValueError: ``copy=False`` for an array that has to be cast.

    >>> import numpy as np
    >>> numbers = np.ones(2)
    >>> as_asked(numbers, None, None) is numbers, as_asked(numbers, "int8", None)
    (True, array([1, 1], dtype=int8))
    """
    import numpy as np

    if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
        raise ValueError(f"no array of {np.dtype(dtype)} without a copy of one of {array.dtype}")
    return array.astype(dtype or array.dtype, copy=bool(copy))
