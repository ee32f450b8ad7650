"""Python operators of blobs, which add ops to the job being traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from flow_core.base.errors import JobError
from flow_core.frontend.trace.per_device import each
from flow_core.ir.graph import AttrValue
from flow_core.plugins.emission import emit

if TYPE_CHECKING:
    from flow_core.annotations.static import BlobType

    class Blob(Protocol):
        """A blob, or a parameter of a job, whose type is that of the arrays that calls take."""

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> Any: ...
        def __len__(self) -> int: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def __add__(self, other: Any, /) -> Any: ...
        def __radd__(self, other: Any, /) -> Any: ...
        def __sub__(self, other: Any, /) -> Any: ...
        def __rsub__(self, other: Any, /) -> Any: ...
        def __mul__(self, other: Any, /) -> Any: ...
        def __rmul__(self, other: Any, /) -> Any: ...
        def __truediv__(self, other: Any, /) -> Any: ...
        def __rtruediv__(self, other: Any, /) -> Any: ...
        def __floordiv__(self, other: Any, /) -> Any: ...
        def __mod__(self, other: Any, /) -> Any: ...
        def __pow__(self, other: Any, /) -> Any: ...
        def __matmul__(self, other: Any, /) -> Any: ...
        def __neg__(self) -> Any: ...
        def __lt__(self, other: Any, /) -> Any: ...
        def __le__(self, other: Any, /) -> Any: ...
        def __gt__(self, other: Any, /) -> Any: ...
        def __ge__(self, other: Any, /) -> Any: ...

else:
    BlobType = object

Some = TypeVar("Some", bound="Operators")


class Operators(BlobType):
    """The operators ``+ - * / // % ** @``, comparisons and unary minus for blobs.

    The other operand is a blob of the same element type or a Python number.
    """

    __slots__ = ()

    __array_priority__ = 1000  # numpy's operators defer to the operators of blobs
    __hash__ = object.__hash__

    def __add__(self, other: Blob | float) -> Self:
        return _with("add", self, other)

    def __radd__(self, other: Blob | float) -> Self:
        return _with("add", self, other)

    def __sub__(self, other: Blob | float) -> Self:
        return _with("sub", self, other)

    def __rsub__(self, other: Blob | float) -> Self:
        return -self + other

    def __mul__(self, other: Blob | float) -> Self:
        return _with("mul", self, other)

    def __rmul__(self, other: Blob | float) -> Self:
        return _with("mul", self, other)

    def __truediv__(self, other: Blob | float) -> Self:
        return _with("div", self, other)

    def __rtruediv__(self, other: Blob | float) -> Self:
        return _made("reciprocal_no_nan", self) * other

    def __floordiv__(self, other: Blob | float) -> Self:
        return _call("floordiv", self, other)

    def __mod__(self, other: Blob | float) -> Self:
        return _call("mod", self, other)

    def __pow__(self, other: Blob | float) -> Self:
        return _call("pow", self, other)

    def __matmul__(self, other: Blob) -> Self:
        return _made("matmul" if len(self.shape) == 2 else "batch_matmul", self, other)

    def __neg__(self) -> Self:
        return _made("negative", self)

    def __eq__(self, other: object) -> Any:
        return _call("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _call("not_equal", self, other)

    def __lt__(self, other: Blob | float) -> Self:
        return _call("less", self, other)

    def __le__(self, other: Blob | float) -> Self:
        return _call("less_equal", self, other)

    def __gt__(self, other: Blob | float) -> Self:
        return _call("greater", self, other)

    def __ge__(self, other: Blob | float) -> Self:
        return _call("greater_equal", self, other)


def _made(op: str, x: Some, *others: object, **attrs: AttrValue) -> Some:
    """Add an op whose inputs are a blob and other operands."""
    made: Some = emit(op, x, *others, **attrs)
    return made


def _call(kind: str, x: Some, other: object) -> Some:
    """Add a comparison or power; Python numbers become constants of x's element type."""
    names = {"floordiv": "floordiv", "mod": "floor_mod"}
    return _made(f"broadcast_{names.get(kind, kind)}", x, as_blob(other, like=x))


def _with(kind: str, x: Some, other: Blob | float) -> Some:
    """Add the op ``x kind other``; kind is add, sub, mul or div, other a blob or Python number."""
    if isinstance(other, Operators):
        return _made(f"broadcast_{kind}", x, other)
    operation, operand = _SCALAR[kind]
    return _made(operation, x, operand=operand_of(x, other, operand))


_SCALAR: dict[str, tuple[str, Callable[[float], float]]] = {
    "add": ("scalar_add", lambda number: number),
    "sub": ("scalar_add", lambda number: -number),
    "mul": ("scalar_mul", lambda number: number),
    "div": ("scalar_mul", lambda number: 1.0 / number),
}


def operand_of(
    x: Operators, other: object, change: Callable[[Any], Any] = lambda number: number
) -> Any:
    """Apply a change to a Python number and return the result in the element type of x."""
    try:
        if isinstance(other, str | bytes):  # float and int would parse the text
            raise TypeError
        return each(float if x.dtype.is_floating else int, change(other))
    except (TypeError, ValueError, ArithmeticError):
        raise JobError.at_caller(
            f"an operator of {x!r}",
            found=f"{type(other).__name__} {other!r:.60}",
            allowed="a blob of the same element type, or a Python number (as a divisor not 0)",
            hint="feed the array as a parameter of the job, or keep it in flow.get_variable"
            if hasattr(other, "shape")
            else None,
        ) from None


def as_blob(number: object, like: Operators) -> Any:
    """Return a blob unchanged; turn a number into a constant of shape (1,) of ``like``'s type."""
    if isinstance(number, Operators):
        return number
    return emit("constant", value=operand_of(like, number), dtype=like.dtype.name, shape=(1,))
