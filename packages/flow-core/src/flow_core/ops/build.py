"""Construction of graphs op by op, with type inference for every op that is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.dtypes import DType
from flow_core.base.errors import GraphError, InferenceError, SourceLine, nearest
from flow_core.ir.graph import NO_ATTRS, Attrs, AttrValue, GraphBuilder, Op, TensorType, Value
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec
from flow_core.sharding.sbp import NdSbp
from flow_core.sharding.topology import Placement


class Emitter:
    """An interface to a `GraphBuilder` that completes attributes and infers types of ops."""

    def __init__(self, builder: GraphBuilder, specs: Mapping[str, OpSpec]) -> None:
        self.builder = builder
        self.specs = specs

    def spec(self, type_: str, line: SourceLine | None = None) -> OpSpec:
        """Return the spec of an op type."""
        spec = self.specs.get(type_)
        if spec is None:
            raise GraphError(
                f"adding an op of type {type_!r}",
                at=line,
                found="no plugin registers that op",
                hint=nearest(type_, self.specs) or "see `flow doctor` for the loaded plugins",
            )
        return spec

    def emit(
        self,
        type_: str,
        inputs: Sequence[Value],
        attrs: Mapping[str, AttrValue] = NO_ATTRS,
        *,
        placement: Placement,
        name: str | None = None,
        line: SourceLine | None = None,
        sbp: tuple[NdSbp | None, ...] = (),
        control: tuple[str, ...] = (),
    ) -> tuple[Value, ...]:
        """Add an op and return its outputs; ``name=None`` generates a unique name."""
        spec = self.spec(type_, line)
        builder = self.builder
        name = name or builder.unique_name(type_)
        types = tuple([builder.types[v.op][v.index] for v in inputs])
        full = complete_attrs(spec, attrs, name, line)
        context = InferContext(name, type_, types, full, line)
        _refuse_long_numbers(context)
        if not spec.host:
            _refuse_objects(context)
        outputs = tuple(spec.infer(context))
        _check_sizes(context, outputs)
        op = Op(name, type_, tuple(inputs), full, placement, sbp, control)
        builder.add(op, outputs, line=line, effect=spec.effect)
        return tuple([Value(name, i) for i in range(len(outputs))])


LARGEST = 2**63 - 1
"""Maximum size of an axis, and of a tensor in bytes: the largest index of 64 bits."""

LONGEST = 1024
"""Maximum number of bits of an integer attribute; such integers exceed the range of float64."""


def _check_sizes(ctx: InferContext, outputs: Sequence[TensorType]) -> None:
    for found in outputs:
        whole = all(hasattr(n, "__index__") for n in found.shape)
        if not whole or found.nbytes > LARGEST or max(found.shape, default=0) > LARGEST:
            allowed = "integer sizes, and at most 2**63 - 1 bytes per tensor"
            ctx.fail(f"a result of type {found}", allowed)


def _refuse_long_numbers(ctx: InferContext) -> None:
    """Reject integers that are too long for Python to convert to text."""
    for key, value in ctx.attrs.items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number.bit_length() > LONGEST:
                found = f"{key} with an integer of {number.bit_length():,} bits"
                ctx.fail(found, f"integers of at most {LONGEST:,} bits, and sizes below 2**63")


def _refuse_objects(ctx: InferContext) -> None:
    found = next((t for t in ctx.inputs if t.dtype.is_object), None)
    if found is not None:
        hint = "use flow.tensor_buffer_to_tensor, a decoder or flow.image.Resize on the blob"
        ctx.fail(f"a blob of type {found}", "blobs of numbers", hint)


def complete_attrs(
    spec: OpSpec, given: Mapping[str, AttrValue], name: str, line: SourceLine | None = None
) -> Attrs:
    """Return the attributes of an op, completed by the spec's defaults; reject unknown names."""
    if not spec.attrs and not given:
        return NO_ATTRS
    unknown = [key for key in given if key not in spec.attrs]
    full = {**spec.attrs, **given}
    missing = [key for key, value in full.items() if value is REQUIRED]
    if unknown or missing:
        raise InferenceError(
            f"{spec.type} {name!r}",
            at=line,
            found=f"unknown attributes {unknown}" if unknown else f"no value for {missing}",
            allowed=", ".join(spec.attrs) or "no attributes",
        )
    return Attrs(full)


@dataclass(frozen=True, slots=True)
class Sym:
    """A value of a graph, for use in gradient rules; Python operators on the value emit ops."""

    maker: Maker
    value: Value

    @property
    def type(self) -> TensorType:
        """The shape and element type."""
        return self.maker.emitter.builder.type_of(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    def __add__(self, other: Sym | float) -> Sym:
        return self._binary("add", other)

    def __radd__(self, other: float) -> Sym:
        return self + other

    def __sub__(self, other: Sym | float) -> Sym:
        return self + -other if isinstance(other, int | float) else self._binary("sub", other)

    def __rsub__(self, other: float) -> Sym:
        return -self + other

    def __mul__(self, other: Sym | float) -> Sym:
        return self._binary("mul", other)

    def __rmul__(self, other: float) -> Sym:
        return self * other

    def __truediv__(self, other: Sym | float) -> Sym:
        if isinstance(other, int | float):
            return self * (1.0 / other)
        return self._binary("div", other)

    def __rtruediv__(self, other: float) -> Sym:
        return self.maker.one("reciprocal", self) * other

    def __neg__(self) -> Sym:
        return self.maker.one("negative", self)

    def _binary(self, kind: str, other: Sym | float) -> Sym:
        if isinstance(other, Sym):
            return self.maker.one(f"broadcast_{kind}", self, other)
        return self.maker.one(f"scalar_{kind}", self, operand=float(other))


@dataclass(frozen=True, slots=True)
class Maker:
    """An emitter of ops that share a name prefix, a placement and a source line."""

    emitter: Emitter
    placement: Placement
    prefix: str
    line: SourceLine | None = None

    def all(self, type_: str, *inputs: Sym, **attrs: AttrValue) -> tuple[Sym, ...]:
        """Add an op and return all its outputs."""
        name = self.emitter.builder.unique_name(f"{self.prefix}/{type_}")
        values = self.emitter.emit(
            type_,
            [s.value for s in inputs],
            attrs,
            placement=self.placement,
            name=name,
            line=self.line,
        )
        return tuple([Sym(self, v) for v in values])

    def one(self, type_: str, *inputs: Sym, **attrs: AttrValue) -> Sym:
        """Add an op and return its first output."""
        return self.all(type_, *inputs, **attrs)[0]


Backward = Callable[[Emitter, Mapping[Value, Value], Iterable[Value]], Mapping[Value, Value]]
"""`flow_core.autograd.backward`, which this layer cannot import."""


@dataclass(frozen=True, slots=True)
class GradContext:
    """The arguments of a gradient rule.

    Attributes:
        op: the forward op.
        inputs, outputs: the inputs and outputs of the forward op.
        grads: the gradient of each output; None for outputs without a gradient.
        needed: whether the gradient is needed, for each input.
        maker: the emitter of the backward ops.
        backward: `flow_core.autograd.backward`, for ops that have graphs of their own.
    """

    op: Op
    inputs: tuple[Sym, ...]
    outputs: tuple[Sym, ...]
    grads: tuple[Sym | None, ...]
    needed: tuple[bool, ...]
    maker: Maker
    backward: Backward

    @property
    def attrs(self) -> Attrs:
        """The forward op's attributes."""
        return self.op.attrs

    @property
    def x(self) -> Sym:
        """The first input."""
        return self.inputs[0]

    @property
    def y(self) -> Sym:
        """The first output."""
        return self.outputs[0]

    @property
    def dy(self) -> Sym:
        """The gradient of the first output."""
        grad = self.grads[0]
        if grad is None:
            raise GraphError(f"gradient of {self.op.name!r}", found="no gradient of output 0")
        return grad

    def one(self, type_: str, *inputs: Sym, **attrs: AttrValue) -> Sym:
        """Add a backward op and return its first output."""
        return self.maker.one(type_, *inputs, **attrs)

    def all(self, type_: str, *inputs: Sym, **attrs: AttrValue) -> tuple[Sym, ...]:
        """Add a backward op and return all its outputs."""
        return self.maker.all(type_, *inputs, **attrs)
