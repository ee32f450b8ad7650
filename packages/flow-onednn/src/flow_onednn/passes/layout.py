"""Keeps activations of convolutions, pooling and batch normalisation in NHWC.

Every value of four axes may exist in NCHW, as the program wrote it, in NHWC, or in both.  Ops that
are faster on NHWC are rewritten to it, elementwise ops follow their inputs, all others get NCHW.
Where one meets the other an `onednn_reorder` says for whom it was made; each value is reordered
once at most, and not at all where one of its axes makes both layouts the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.ir import Attrs, AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.plugins.specs import KernelSpec, OpSpec
from flow_onednn.ops import TO_FIRST, TO_LAST
from flow_onednn.passes.editor import Editor, changed, edit

FIRST, LAST = "channels_first", "channels_last"
FLOATS = ("float32", "bfloat16")
POOLS = ("max_pool_2d", "avg_pool_2d")


def last(shape: Sequence[int]) -> tuple[int, ...]:
    """The NHWC shape of NCHW activations.

    >>> last((8, 3, 5, 7))
    (8, 5, 7, 3)
    """
    return tuple(shape[i] for i in TO_LAST)


@dataclass(slots=True)
class _Layouts:
    """The state of one run of the pass.

    Attributes:
        editor: the graph under change.
        specs: of all op types.
        nhwc: the NHWC form of values of the graph, where there is one.
        moved: values whose NCHW form is not made by their own op any more.
    """

    editor: Editor
    specs: Mapping[str, OpSpec]
    nhwc: dict[Value, Value] = field(default_factory=dict)
    nchw: dict[Value, Value] = field(default_factory=dict)
    moved: set[Value] = field(default_factory=set)

    def wide(self, value: Value, reader: Op) -> Value:
        """The NHWC form of a value."""
        if value not in self.nhwc:
            shape = last(self.editor.graph.type_of(value).shape)
            self.nhwc[value] = self._reordered(value, value, shape, TO_LAST, reader, "nhwc")
        return self.nhwc[value]

    def plain(self, value: Value, reader: Op | None = None) -> Value:
        """The NCHW form of a value."""
        if value not in self.moved:
            return value
        if value not in self.nchw:
            shape = self.editor.graph.type_of(value).shape
            self.nchw[value] = self._reordered(
                value, self.nhwc[value], shape, TO_FIRST, reader, "nchw"
            )
        return self.nchw[value]

    def _reordered(
        self, value: Value, source: Value, shape: Sequence[int], perm: tuple[int, ...],
        reader: Op | None, form: str,
    ) -> Value:  # fmt: skip
        editor, maker = self.editor, self.editor.graph.ops[value.op]
        type_ = tensor_type(tuple(shape), editor.graph.type_of(value).dtype)
        name = f"{value.op}/{form}" + (f"_{value.index}" if value.index else "")
        of = editor.type_of(source).shape
        place = maker.placement.only(value.index % maker.placement.size)  # an exchange has several
        longer = [axis for axis in perm if of[axis] > 1]
        if longer == sorted(longer):  # by axes: equal sizes of several look as if none had moved
            op = Op(name, "reshape", (source,), Attrs({"shape": type_.shape}), place)
        else:
            reason = f"{reader.name} takes {form.upper()}" if reader else f"a result is {form}"
            attrs: dict[str, AttrValue] = {"perm": perm, "reason": reason}
            attrs["reordered"] = type_.nbytes
            op = Op(name, "onednn_reorder", (source,), Attrs(attrs), place)
            if not editor.accepts(op, (type_,)):  # numbers that the library has no kernel for
                attrs = {"perm": perm, "batch_axis_non_change": False}
                op = Op(name, "transpose", (source,), Attrs(attrs), place)
        return editor.add(op, (type_,), maker, 0.5).output()

    def replace(self, op: Op, new: Op, types: tuple[TensorType, ...]) -> None:
        """Puts the NHWC form of an op, whose first output is in NHWC, in its place."""
        self.editor.add(new, types, op)
        value = Value(op.name, 0)
        self.nhwc[value] = value
        self.moved.add(value)


@dataclass(frozen=True)
class NhwcLayout:
    """The pass.

    Attributes:
        kernels: ours, by op: an op is rewritten where one of them takes the result.
        devices: device types whose ops run on the CPU.
    """

    kernels: Mapping[str, Sequence[KernelSpec]]
    devices: tuple[str, ...] = ("cpu",)
    name: str = "onednn_layout"

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph with NHWC activations between the ops that like them."""
        specs: Mapping[str, OpSpec] = context.specs  # type: ignore[attr-defined]  # PassContext
        if not any(op.type in RULES for op in graph.ops.values()):
            return graph
        state = _Layouts(edit(graph, self.kernels), specs)
        for op in graph.ops.values():
            if op.placement.device_type not in self.devices or not _rewritten(state, op):
                _left(state, op)
        for value in graph.results:
            state.editor.same[value] = state.plain(value)
        return _finished(state)


def _finished(state: _Layouts) -> Graph:
    same = {v: w for v, w in state.editor.same.items() if v != w}
    state.editor.same.clear()
    graph = state.editor.finish()
    results = tuple(same.get(v, v) for v in graph.results)
    return Graph(graph.ops, graph.types, results, graph.effects, graph.lines)


def _left(state: _Layouts, op: Op) -> None:
    """An op that stays: it reads NCHW."""
    inputs = tuple(state.plain(v, op) for v in op.inputs)
    state.editor.ops[op.name] = op.with_inputs(inputs)


def _rewritten(state: _Layouts, op: Op) -> bool:
    """Whether an op was rewritten to NHWC."""
    rule = RULES.get(op.type)
    if rule is not None:
        return rule(state, op)
    return _follows(state, op)


# --- ops that like NHWC

Rule = Callable[[_Layouts, Op], bool]


def _rank4(state: _Layouts, op: Op, *indices: int) -> bool:
    types = state.editor.graph.input_types(op)
    return all(len(types[i].shape) == 4 and types[i].dtype.name in FLOATS for i in indices)


def _try(state: _Layouts, op: Op, new: Op, *types: TensorType) -> bool:
    """Replaces an op if one of our kernels takes the new one."""
    if not state.editor.accepts(new, types):
        return False
    state.replace(op, new, types)
    return True


def _wide_type(type_: TensorType) -> TensorType:
    return tensor_type(last(type_.shape), type_.dtype)


def _outputs(state: _Layouts, op: Op) -> tuple[TensorType, ...]:
    return state.editor.graph.types[op.name]


_GEOMETRY = ("kernel_size", "strides", "dilation_rate", "padding_before", "groups")


def _geometry(op: Op) -> dict[str, AttrValue]:
    return {"weights_last": False, **{k: op.attrs[k] for k in _GEOMETRY}}


def _applies(state: _Layouts, op: Op, *indices: int) -> bool:
    return op.attrs.get("data_format") == FIRST and _rank4(state, op, *indices)


def _as_written(state: _Layouts, op: Op, type_: str, **more: AttrValue) -> bool:
    """A convolution that the program has in NHWC gets another name, so that it can be fused."""
    if op.attrs["data_format"] != LAST or not _rank4(state, op, 0, 1):
        return False
    attrs: dict[str, AttrValue] = {**_geometry(op), **more, "weights_last": True}
    inputs = (state.plain(v, op) for v in op.inputs[:2])
    new, types = changed(op, type_, attrs, *inputs), _outputs(state, op)
    if not state.editor.accepts(new, types):
        return False
    state.editor.add(new, types, op)
    return True


def _conv(state: _Layouts, op: Op) -> bool:
    after = op.attrs["padding_after"] or op.attrs["padding_before"]
    if not _applies(state, op, 0, 1):
        return _as_written(state, op, "onednn_conv", padding_after=after, activation="")
    (y,) = _outputs(state, op)
    attrs = {**_geometry(op), "padding_after": after, "activation": ""}
    x = state.wide(op.inputs[0], op)
    return _try(state, op, changed(op, "onednn_conv", attrs, x, op.inputs[1]), _wide_type(y))


def _conv_data_grad(state: _Layouts, op: Op) -> bool:
    (dx,) = _outputs(state, op)
    if not _applies(state, op, 0, 1):
        return _as_written(state, op, "onednn_conv_data_grad", space=dx.shape[1:3])
    attrs = {**_geometry(op), "space": dx.shape[2:]}
    dy = state.wide(op.inputs[0], op)
    new = changed(op, "onednn_conv_data_grad", attrs, dy, op.inputs[1])
    return _try(state, op, new, _wide_type(dx))


def _conv_filter_grad(state: _Layouts, op: Op) -> bool:
    if not _applies(state, op, 0, 1):
        return _as_written(state, op, "onednn_conv_filter_grad", bias=False)
    dy, x = (state.wide(v, op) for v in op.inputs)
    attrs = {**_geometry(op), "bias": False}
    new, types = changed(op, "onednn_conv_filter_grad", attrs, dy, x), _outputs(state, op)
    if not state.editor.accepts(new, types):
        return False
    state.editor.add(new, types, op)  # filters stay as they are
    return True


def _pool(state: _Layouts, op: Op) -> bool:
    if not _applies(state, op, 0):
        return False
    inputs = tuple(state.wide(v, op) for v in op.inputs)
    (y,) = _outputs(state, op)
    new = changed(op, op.type, op.attrs.with_(data_format=LAST), *inputs)
    state.replace(op, new, (_wide_type(y),))
    return True


def _norm(state: _Layouts, op: Op) -> bool:
    """The activations are the first input, in the gradient the first two."""
    wide = 2 if op.type.endswith("_grad") else 1
    if op.attrs["axis"] not in (1, -3) or not _rank4(state, op, 0):
        return False
    inputs = [state.wide(v, op) if i < wide else v for i, v in enumerate(op.inputs)]
    y, *vectors = _outputs(state, op)
    new = changed(op, op.type, op.attrs.with_(axis=3), *inputs)
    state.replace(op, new, (_wide_type(y), *vectors))
    return True


# --- ops that follow their inputs


def _moved_to_last(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(TO_LAST.index(a % 4) for a in axes))


def _bias_add(state: _Layouts, op: Op) -> bool:
    x, bias = op.inputs
    if x not in state.moved or op.attrs["axis"] % 4 != 1:
        return False
    (y,) = _outputs(state, op)
    new = changed(op, op.type, op.attrs.with_(axis=3), state.nhwc[x], bias)
    state.replace(op, new, (_wide_type(y),))
    return True


def _reduce(state: _Layouts, op: Op) -> bool:
    """A reduction whose result has at most N and C as axes longer than 1, in this order."""
    (x,), axes = op.inputs, op.attrs["axis"]
    if x not in state.moved or not isinstance(axes, tuple) or op.attrs["keepdims"]:
        return False
    kept = [a for a in range(4) if a not in {b % 4 for b in axes}]
    if not set(kept) <= {0, 1}:
        return False
    new = changed(op, op.type, op.attrs.with_(axis=_moved_to_last(axes)), state.nhwc[x])
    state.editor.add(new, _outputs(state, op), op)
    return True


def _broadcast_like(state: _Layouts, op: Op) -> bool:
    """The gradient of such a reduction."""
    (y,) = _outputs(state, op)
    x, like = op.inputs
    axes = op.attrs["broadcast_axes"]
    if like not in state.moved or set(axes) != {2, 3} or len(state.editor.type_of(x).shape) > 2:
        return False
    attrs = op.attrs.with_(broadcast_axes=(1, 2))
    state.replace(op, changed(op, op.type, attrs, x, state.nhwc[like]), (_wide_type(y),))
    return True


def _follows(state: _Layouts, op: Op) -> bool:
    """An elementwise op with an input in NHWC whose other inputs have its shape or one element."""
    spec, types = state.specs[op.type], _outputs(state, op)
    if not spec.elementwise or spec.random or spec.effect or len(types) != 1:
        return False
    shape = types[0].shape
    if len(shape) != 4 or not any(v in state.moved for v in op.inputs):
        return False
    given = [state.editor.graph.type_of(v) for v in op.inputs]
    if any(t.shape != shape and t.size != 1 for t in given):
        return False
    inputs = [
        state.wide(v, op) if t.shape == shape else v for v, t in zip(op.inputs, given, strict=True)
    ]
    state.replace(op, op.with_inputs(tuple(inputs)), (_wide_type(types[0]),))
    return True


RULES: Mapping[str, Rule] = {
    "conv2d": _conv,
    "conv_data_grad": _conv_data_grad,
    "conv_filter_grad": _conv_filter_grad,
    **dict.fromkeys((*POOLS, *(f"{p}_grad" for p in POOLS)), _pool),
    "normalization": _norm,
    "normalization_grad": _norm,
    "bias_add": _bias_add,
    "reduce_sum": _reduce,
    "broadcast_like": _broadcast_like,
}
