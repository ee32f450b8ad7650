"""Importers of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_onnx.importers.context import Blob, Importer, Node, reshaped, transposed
from flow_onnx.importers.folding import emit

DIRECTIONS: Mapping[str, Sequence[bool]] = {
    "forward": (False,), "reverse": (True,), "bidirectional": (False, True),
}  # fmt: skip
"""Whether each layer of a node goes from the last position to the first."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A recurrent operator."""

    op: str  # the op of one direction
    order: Sequence[int]  # the parts of the weights of the op, as numbers of those of the operator
    activations: Sequence[str]  # the functions that the op has
    states: Sequence[int]  # numbers of the inputs that are the first states

    def __call__(self, n: Node) -> tuple[Blob, ...]:
        """Import a node: the results of all positions, and the last states."""
        reverses, batch_first = self._directions(n), bool(n.attr("layout", 0))
        x = n.blob() if batch_first else transposed(n.blob(), (1, 0, 2))
        self._check(n, x, len(reverses))
        weights = [_parts(n, i, len(reverses)) for i in (1, 2, 3)]
        firsts = [_parts(n, i, len(reverses), int(batch_first)) for i in self.states]
        found = []
        for d, reverse in enumerate(reverses):
            given = [parts and parts[d] for parts in weights]
            states = [parts and parts[d] for parts in firsts]
            found.append(self._one(x, given, states, reverse))
        ys, *lasts = zip(*found, strict=True)
        axis, perm = (2, (0, 1, 2)) if batch_first else (1, (1, 0, 2))
        joined = [_stacked([transposed(y, perm) for y in ys], axis)]
        return *joined, *(_stacked(states, int(batch_first)) for states in lasts)

    def _directions(self, n: Node) -> Sequence[bool]:
        """Return the direction of each layer; refuse what the ops lack."""
        direction = n.attr("direction", "forward")
        if direction not in DIRECTIONS:
            n.invalid(f"direction={direction!r}", ", ".join(DIRECTIONS))
        given = [text.decode() for text in n.attr("activations", ())]
        if given not in ([], [*self.activations] * len(DIRECTIONS[direction])):
            n.unsupported(f"activations={given}")
        if self.op == "gru" and not n.attr("linear_before_reset", 0):
            n.unsupported("linear_before_reset=0")
        positions = n.shape()[1 if n.attr("layout", 0) else 0]
        lengths = n.ints(4, "sequence_lens")
        if lengths is not None and set(lengths) != {positions}:
            n.unsupported(f"sequence_lens={lengths} of {positions} positions")
        return DIRECTIONS[direction]

    def _check(self, n: Node, x: Blob, count: int) -> None:
        """Check the shapes of weights and states, which ONNX's inference does not."""
        (batch, _, width), units = x.shape, n.shape(2)[-1]
        rows = len(self.order) * units
        state = (batch, count, units) if n.attr("layout", 0) else (count, batch, units)
        wanted = {1: (count, rows, width), 2: (count, rows, units), 3: (count, 2 * rows)}
        wanted |= dict.fromkeys(self.states, state)
        for i, shape in wanted.items():
            if n.has(i) and tuple(n.shape(i)) != shape:
                n.invalid(f"input {i} of shape {tuple(n.shape(i))}", f"shape {shape}")
        if n.attr("hidden_size", units) != units:
            n.invalid(
                f"hidden_size={n.attr('hidden_size')} for weights of {units} units", str(units)
            )

    def _one(
        self, x: Blob, given: Sequence[Blob], states: Sequence[Blob], reverse: bool
    ) -> tuple[Blob, ...]:
        """Return the results of one direction, shape (batch, positions, units), and its states."""
        weight, recurrent, bias = given
        (batch, positions, width), units = x.shape, recurrent.shape[-1]
        rows = len(self.order) * units
        flat, weight = reshaped(x, (batch * positions, width)), self._ordered(weight)
        total, more = emit("matmul", flat, weight, transpose_a=False, transpose_b=True), []
        if bias is not None:
            own, other = (self._ordered(b) for b in emit("split", bias, axis=1, sizes=(rows, rows)))
            joined = self.op == "lstm"
            total = emit(
                "bias_add", total, emit("broadcast_add", own, other) if joined else own, axis=1
            )
            more = [] if joined else [other]
        parts = reshaped(total, (batch, positions, rows))
        corner = emit("slice", parts, start=(0, 0, 0), stop=(batch, 1, units), step=(1, 1, 1))
        zeros = emit("zero_like", emit("squeeze", corner, axes=(1,)))
        first = [zeros if s is None else reshaped(s, (batch, units)) for s in states]
        recurrent = self._ordered(recurrent)
        _, y, memory = emit(self.op, parts, recurrent, *first, *more, reverse=reverse)
        sequences = (y, memory) if self.op == "lstm" else (y,)
        return y, *(_last(z, 0 if reverse else positions - 1) for z in sequences)

    def _ordered(self, weight: Blob) -> Blob:
        """Return a weight, with a first axis of 1, with the parts in the order of the op."""
        flat = reshaped(weight, tuple(weight.shape[1:]))
        count = len(self.order)
        parts = emit("split", flat, axis=0, sizes=(flat.shape[0] // count,) * count)
        return emit("concat", *(parts[k] for k in self.order), axis=0)


def _parts(n: Node, index: int, count: int, axis: int = 0) -> Sequence[Blob] | None:
    """Return an input per direction; None if it is omitted."""
    if not n.has(index):
        return None
    found = emit("split", n.blob(index), axis=axis, sizes=(1,) * count)
    return found if isinstance(found, tuple) else (found,)


def _last(x: Blob, position: int) -> Blob:
    batch, _, units = x.shape
    stop = (batch, position + 1, units)
    row = emit("slice", x, start=(0, position, 0), stop=stop, step=(1, 1, 1))
    return emit("squeeze", row, axes=(1,))


def _stacked(parts: Sequence[Blob], axis: int) -> Blob:
    found = [emit("expand_dims", x, axis=axis) for x in parts]
    return found[0] if len(found) == 1 else emit("concat", *found, axis=axis)


IMPORTERS: Mapping[str, Importer] = {
    "LSTM": Layer("lstm", (0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), (5, 6)),
    "GRU": Layer("gru", (1, 0, 2), ("Sigmoid", "Tanh"), (5,)),
}
