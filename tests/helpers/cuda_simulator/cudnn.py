"""A simulation of cuDNN graphs, written from the documentation of cudnn-frontend.

The simulation checks the order of calls, the sizes and strides of tensors, their alignment and the
workspace size, and rejects what cuDNN rejects. It overwrites the workspace, so that no other work
can rely on the workspace's content.
"""

from __future__ import annotations

import ctypes
import enum
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cuda_simulator.cublaslt import array_at
from cuda_simulator.cudnn_engines import ENGINES, FakeEngine
from cuda_simulator.cudnn_nodes import NODES, window_sizes
from cuda_simulator.cudnn_tensors import FakeNode, FakeTensor, Ints, packed, unpacked
from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_cuda.cudnn.plans import TYPES
from flow_cuda.cudnn.problems import LibraryEnum

ALIGN = 16
"""The alignment in bytes that execution plans require of tensors."""

_NAMES = {its: ours for ours, its in TYPES.items()}
_NOTES = (
    "TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT",
    "NONDETERMINISTIC", "WINOGRAD",
)  # fmt: skip


class NotSupportedError(Exception):
    """The error for a graph that has no execution plan."""


class MisuseError(Exception):
    """The error for a call that the library's documentation does not allow."""


class Stage(enum.IntEnum):
    """The stages in the life of a graph, in order."""

    OPEN = 0
    VALID = 1
    DESCRIBED = 2
    PLANNED = 3


def _names(*names: str) -> LibraryEnum:
    """Create an enumeration with these names."""
    return enum.Enum("names", names)


class SimulatedCudnn:
    """The `flow_cuda.cudnn.plans.Library` on the host.

    Args:
        refuses: titles of node sequences without a plan, such as "conv_fprop bias relu".
        engines: the engines that provide execution plans.

    Attributes:
        calls: number of executions so far.
        cost: simulated time of the last execution.
        compiled: number of plans compiled so far.
    """

    __version__ = "0"
    data_type: Any = _names(*TYPES.values())
    heur_mode: Any = _names("A", "B", "FALLBACK")
    numerical_note: Any = _names(*_NOTES)
    behavior_note: Any = _names("RUNTIME_COMPILATION")
    # The names are those of the library:
    cudnnGraphNotSupportedError: type[Exception] = NotSupportedError

    def __init__(
        self, refuses: Collection[str] = (), engines: Sequence[FakeEngine] = ENGINES
    ) -> None:
        self.refuses, self.engines = refuses, engines
        self.calls, self.cost, self.compiled = 0, 0.0, 0
        self.streams: dict[int, int] = {}

    def backend_version(self) -> int:
        """Return a version number that no release of cuDNN has."""
        return 90000

    def create_handle(self) -> int:
        """Create a handle."""
        self.streams[len(self.streams) + 1] = 0
        return len(self.streams)

    def set_stream(self, handle: int, stream: int) -> None:
        """Set the stream of a handle."""
        self.streams[handle] = stream

    def pygraph(self, **settings: Any) -> FakeGraph:
        """Create an empty graph."""
        return FakeGraph(self, **settings)


@dataclass(eq=False)
class FakeGraph:
    """A graph under construction, which later has execution plans."""

    library: SimulatedCudnn
    io_data_type: Any
    intermediate_data_type: Any
    compute_data_type: Any
    handle: int
    nodes: list[FakeNode] = field(default_factory=list)
    given: list[FakeTensor] = field(default_factory=list)
    stage: Stage = Stage.OPEN
    plans: list[FakeEngine] = field(default_factory=list)
    barred: set[int] = field(default_factory=set)
    built: set[int] = field(default_factory=set)
    limit: int = 1 << 62
    last: int = -1
    loaded: bool = False

    # ------------------------------------------------------------------------ construction

    def tensor(
        self, *, name: str, dim: Sequence[int], stride: Sequence[int], data_type: LibraryEnum,
        uid: int, is_pass_by_value: bool = False,
    ) -> FakeTensor:  # fmt: skip
        """Add an input; an input passed by value is in host memory."""
        made = FakeTensor(name, tuple(dim), tuple(stride), data_type, uid, False, is_pass_by_value)
        self.given.append(made)
        return made

    def _add(
        self, kind: str, inputs: Mapping[str, FakeTensor], dim: Ints, **params: Any
    ) -> FakeTensor:
        if self.stage is not Stage.OPEN:
            raise MisuseError(f"{kind} added to a graph that has been validated")
        out = FakeTensor(f"{kind}::out", dim, data_type=self.intermediate_data_type)
        self.nodes.append(FakeNode(kind, inputs, (out,), params))
        return out

    def conv_fprop(self, *, image: FakeTensor, weight: FakeTensor, **params: Any) -> FakeTensor:
        """Add a convolution."""
        made: FakeTensor = self._add("conv_fprop", {"image": image, "weight": weight}, (), **params)
        sizes = window_sizes(image.dim, weight.dim, self.nodes[-1])
        return made.set_dim((image.dim[0], weight.dim[0], *sizes))

    def conv_dgrad(self, *, loss: FakeTensor, filter: FakeTensor, **params: Any) -> FakeTensor:
        """Add the gradient with respect to the input."""
        return self._add("conv_dgrad", {"loss": loss, "filter": filter}, (), **params)

    def conv_wgrad(self, *, image: FakeTensor, loss: FakeTensor, **params: Any) -> FakeTensor:
        """Add the gradient with respect to the weights."""
        return self._add("conv_wgrad", {"image": image, "loss": loss}, (), **params)

    def bias(self, *, input: FakeTensor, bias: FakeTensor) -> FakeTensor:
        """Add a broadcast addition."""
        return self._add("bias", {"input": input, "bias": bias}, input.dim)

    def relu(self, *, input: FakeTensor) -> FakeTensor:
        """Add a ReLU."""
        return self._add("relu", {"input": input}, input.dim)

    def add(self, *, a: FakeTensor, b: FakeTensor) -> FakeTensor:
        """Add an addition."""
        return self._add("add", {"a": a, "b": b}, a.dim)

    def batchnorm(
        self, *, input: FakeTensor, scale: FakeTensor, bias: FakeTensor,
        in_running_mean: FakeTensor, in_running_var: FakeTensor, epsilon: FakeTensor,
        momentum: FakeTensor,
    ) -> list[FakeTensor | None]:  # fmt: skip
        """Add batch normalization, with the statistics of the batch and the moving statistics."""
        given = {
            "input": input, "scale": scale, "bias": bias, "in_running_mean": in_running_mean,
            "in_running_var": in_running_var, "epsilon": epsilon, "momentum": momentum,
        }  # fmt: skip
        y = self._add("batchnorm", given, input.dim)
        return [y, *(self._extra_output(scale.dim) for _ in range(4))]

    def batchnorm_backward(
        self, *, grad: FakeTensor, input: FakeTensor, scale: FakeTensor, mean: FakeTensor,
        inv_variance: FakeTensor,
    ) -> list[FakeTensor | None]:  # fmt: skip
        """Add the gradients of batch normalization."""
        given = {
            "grad": grad, "input": input, "scale": scale, "mean": mean,
            "inv_variance": inv_variance,
        }  # fmt: skip
        dx = self._add("batchnorm_backward", given, input.dim)
        return [dx, self._extra_output(scale.dim), self._extra_output(scale.dim)]

    def sdpa(
        self, *, q: FakeTensor, k: FakeTensor, v: FakeTensor, bias: FakeTensor | None = None,
        attn_scale: float, generate_stats: bool,
    ) -> list[FakeTensor | None]:  # fmt: skip
        """Add attention, optionally with the log-sum-exp."""
        given = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
        out = self._add("sdpa", given, (*q.dim[:3], v.dim[3]), attn_scale=attn_scale)
        if not generate_stats:
            return [out, None]
        return [out, self._extra_output((*q.dim[:3], 1))]

    def sdpa_backward(
        self, *, q: FakeTensor, k: FakeTensor, v: FakeTensor, o: FakeTensor, dO: FakeTensor,
        stats: FakeTensor, bias: FakeTensor | None = None, attn_scale: float,
        use_deterministic_algorithm: bool,
    ) -> list[FakeTensor | None]:  # fmt: skip
        """Add the gradients of attention."""
        given = {"q": q, "k": k, "v": v, "o": o, "dO": dO, "stats": stats}
        given |= {} if bias is None else {"bias": bias}
        dq = self._add(
            "sdpa_backward", given, q.dim, attn_scale=attn_scale,
            repeats=use_deterministic_algorithm,
        )  # fmt: skip
        return [dq, self._extra_output(k.dim), self._extra_output(v.dim)]

    def _extra_output(self, dim: Ints) -> FakeTensor:
        """Add another output to the last node."""
        node = self.nodes[-1]
        out = FakeTensor(f"{node.kind}::more", dim, data_type=self.intermediate_data_type)
        self.nodes[-1] = replace(node, outputs=(*node.outputs, out))
        return out

    # ------------------------------------------------------------------------------ queries

    def tensors(self) -> Iterator[FakeTensor]:
        """Yield all tensors."""
        yield from self.given
        for node in self.nodes:
            yield from node.outputs

    def type_name(self, tensor: FakeTensor) -> str:
        """Return flow-core's name of a tensor's element type."""
        return _NAMES[tensor.data_type.name]

    def itemsize(self, tensor: FakeTensor) -> int:
        """Return the element size of a tensor in bytes."""
        return as_dtype(self.type_name(tensor)).itemsize

    def convolved(self, node: FakeNode) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
        """Return input, weights and output of a convolution, forward or backward."""
        (out,), given = node.outputs, node.inputs
        x = given.get("image", out)
        w = given.get("weight") or given.get("filter") or out
        return x, w, given.get("loss", out)

    # ------------------------------------------------------------------------------- checks

    def validate(self) -> None:
        """Check the tensors and the nodes."""
        self._require_stage(Stage.OPEN, "validate")
        outside = [t for t in self.tensors() if not t.virtual]
        for tensor in outside:
            _check_tensor(tensor)
        if len({t.uid for t in outside}) != len(outside):
            raise MisuseError("two tensors with the same uid")
        for node in self.nodes:
            self._check_node(node)
        self.stage = Stage.VALID

    def _check_node(self, node: FakeNode) -> None:
        if node.kind.startswith("sdpa"):
            self._check_attention(node)
        if node.kind.startswith("batchnorm"):
            rows = [t for name, t in node.inputs.items() if name not in ("input", "grad")]
            if {self.type_name(t) for t in rows} != {"float32"}:
                raise NotSupportedError("parameters must be float32")
        if not node.kind.startswith("conv"):
            return
        x, w, y = self.convolved(node)
        want = (x.dim[0], w.dim[0], *window_sizes(x.dim, w.dim, node))
        if y.dim != want:
            raise NotSupportedError(f"output shape {y.dim}, expected {want}")
        if x.dim[1] % w.dim[1] or w.dim[0] % (x.dim[1] // w.dim[1]):
            raise NotSupportedError(f"{x.dim[1]} channels with weights of shape {w.dim}")
        if len(x.dim) not in (4, 5):
            raise NotSupportedError(f"tensors of rank {len(x.dim)}")

    def _check_attention(self, node: FakeNode) -> None:
        """Require 16-bit types with contiguous features, and a float32 log-sum-exp."""
        t = dict(node.inputs)
        stats, mask = t.pop("stats", None), t.pop("bias", None)
        kinds = {self.type_name(x) for x in t.values()}
        if kinds not in ({"float16"}, {"bfloat16"}) or any(x.stride[3] != 1 for x in t.values()):
            raise NotSupportedError(f"attention in {kinds}")
        if stats is not None and self.type_name(stats) != "float32":
            raise NotSupportedError("the log-sum-exp must be float32")
        if any(x.dim[3] % 8 for x in t.values()):
            raise NotSupportedError("head sizes must be multiples of 8")
        scores = (*t["q"].dim[:3], t["k"].dim[2])
        wide = mask is None or all(a in (1, b) for a, b in zip(mask.dim, scores, strict=True))
        same = t["k"].dim[:3] == t["v"].dim[:3] and t["q"].dim[3] == t["k"].dim[3]
        if not (wide and same and t["q"].dim[:2] == t["k"].dim[:2]):
            raise NotSupportedError("inconsistent sizes of attention operands")

    def _require_stage(self, stage: Stage, what: str) -> None:
        if self.stage is not stage:
            raise MisuseError(f"{what} on a graph in state {self.stage.name.lower()}")

    def build_operation_graph(self) -> None:
        """Lower the graph to the backend."""
        self._require_stage(Stage.VALID, "build_operation_graph")
        self.stage = Stage.DESCRIBED

    def create_execution_plans(self, modes: Sequence[Any]) -> None:
        """Query the heuristics for plans."""
        self._require_stage(Stage.DESCRIBED, "create_execution_plans")
        title = " ".join(node.kind for node in self.nodes)
        self.plans = [e for e in self.library.engines if e.takes(self)]
        if title in self.library.refuses or not self.plans or not modes:
            raise NotSupportedError(f"no engine for {title}")
        self.stage = Stage.PLANNED

    # -------------------------------------------------------------------------------- plans

    def _filter(self, notes: Sequence[Any], keep: bool) -> None:
        self._require_stage(Stage.PLANNED, "a filter by notes")
        for note in notes:
            for i, plan in enumerate(self.plans):
                if (note.name in plan.notes) != keep:
                    self.barred.add(i)

    def deselect_numeric_notes(self, notes: Sequence[Any]) -> None:
        """Exclude the plans that have at least one of the notes."""
        self._filter(notes, keep=False)

    def select_numeric_notes(self, notes: Sequence[Any]) -> None:
        """Exclude the plans that lack at least one of the notes."""
        self._filter(notes, keep=True)

    def deselect_workspace_greater_than(self, limit: int) -> None:
        """Exclude plans that need a larger workspace."""
        self.limit = limit

    def _require_plan_list(self, what: str) -> None:
        self._require_stage(Stage.PLANNED, what)
        if self.loaded:
            raise MisuseError(f"{what} on a graph that was deserialized")

    def get_execution_plan_count(self) -> int:
        """Return the number of plans, including excluded ones."""
        self._require_plan_list("get_execution_plan_count")
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        """Return the engine and knobs of a plan."""
        self._require_plan_list("get_plan_name_at_index")
        return self.plans[index].name

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[Any]:
        """Return the behavior notes of a plan."""
        compiles = self.plans[index].compiles
        return [self.library.behavior_note.RUNTIME_COMPILATION] if compiles else []

    def build_plan_at_index(self, index: int) -> None:
        """Build a plan."""
        self._require_plan_list("build_plan_at_index")
        if index in self.barred or self.plans[index].workspace(self) > self.limit:
            raise NotSupportedError("the plan was deselected")
        self.library.compiled += self.plans[index].compiles and index not in self.built
        self.built.add(index)
        self.last = index

    def serialize(self) -> list[int]:
        """Return the graph with the plan built last, as bytes."""
        if self.last not in self.built:
            raise MisuseError("serialization of a graph without a plan")
        kept = packed(self.given, self.nodes) | {
            "plan": self.plans[self.last].name, "compute": self.compute_data_type.name,
        }  # fmt: skip
        return list(json.dumps(kept).encode())

    def deserialize(self, handle: int, data: Sequence[int]) -> None:
        """Load a serialized graph; its plan has index 0."""
        self._require_stage(Stage.OPEN, "deserialize")
        if not isinstance(data, list) or handle not in self.library.streams:
            raise MisuseError("the arguments are not a handle and a list of numbers")
        try:
            kept = json.loads(bytes(data))
            plans = [e for e in self.library.engines if e.name == kept["plan"]]
        except (ValueError, TypeError, KeyError) as error:
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM") from error
        if not plans:
            raise NotSupportedError(f"no engine {kept['plan']}")
        types = self.library.data_type
        self.given, self.nodes = unpacked(kept, types)
        self.compute_data_type = types[kept["compute"]]
        self.plans, self.built, self.stage, self.loaded = plans[:1], {0}, Stage.PLANNED, True

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        """Return the workspace size of a built plan in bytes."""
        if index not in self.built:
            raise MisuseError("the plan is not built, its workspace size is unknown")
        return self.plans[index].workspace(self)

    # ---------------------------------------------------------------------------- execution

    def execute_plan_at_index(
        self, pack: Mapping[int, int], workspace: int, index: int, handle: int
    ) -> None:
        """Execute a plan immediately."""
        if index not in self.built or handle not in self.library.streams:
            raise MisuseError("an execution without a built plan or a handle")
        outside = {t.uid: t for t in self.tensors() if not t.virtual}
        if pack.keys() != outside.keys():
            raise MisuseError(f"tensors {sorted(pack)}, expected {sorted(outside)}")
        plan = self.plans[index]
        nbytes = plan.workspace(self)
        addresses = [pack[uid] for uid, t in outside.items() if not t.by_value]
        addresses += [workspace] if nbytes else []
        if any(address % ALIGN or not address for address in addresses):
            raise MisuseError(f"memory is not aligned to {ALIGN} bytes")
        if nbytes:
            ctypes.memset(workspace, 0xEE, nbytes)
        arrays = {uid: self._array(t, pack[uid]) for uid, t in outside.items()}
        self._compute(arrays)
        self.library.calls += 1
        self.library.cost = plan.cost

    def _array(self, tensor: FakeTensor, address: int) -> Array:
        """Return a view of a tensor's memory."""
        last = sum((n - 1) * s for n, s in zip(tensor.dim, tensor.stride, strict=True))
        flat = array_at(address, last + 1, self.type_name(tensor))
        strides = tuple(s * flat.dtype.itemsize for s in tensor.stride)
        return np.lib.stride_tricks.as_strided(flat, tensor.dim, strides)

    def _compute(self, arrays: Mapping[int, Any]) -> None:
        """Compute all nodes in order; intermediate tensors are not rounded."""
        values: dict[int, Any] = {}
        wide = as_dtype(_NAMES[self.compute_data_type.name]).numpy
        for tensor in self.given:
            values[id(tensor)] = arrays[tensor.uid].astype(wide)
        for node in self.nodes:
            given = {name: values[id(t)] for name, t in node.inputs.items()}
            made = NODES[node.kind](node, given, node.outputs[0].dim)
            made = made if isinstance(made, tuple) else (made,)
            for tensor, value in zip(node.outputs, made, strict=False):  # some outputs are optional
                values[id(tensor)] = value
                if not tensor.virtual:
                    arrays[tensor.uid][...] = value


def _check_tensor(tensor: FakeTensor) -> None:
    """Check the sizes, strides and element type of a tensor in memory."""
    if tensor.uid < 0 or tensor.data_type is None or min(tensor.dim, default=0) < 1:
        raise MisuseError(f"{tensor.name} has no uid, type or elements")
    if len(tensor.dim) != len(tensor.stride) or min(tensor.stride) < 1:
        raise MisuseError(f"{tensor.name} has sizes {tensor.dim} but strides {tensor.stride}")
    rows = sorted(zip(tensor.stride, tensor.dim, strict=True))
    reach = 1
    for step, size in rows:
        if size > 1 and step < reach:
            raise MisuseError(f"elements of {tensor.name} overlap in memory")
        reach = max(reach, step * size)


class SimulatedBench:
    """A `flow_cuda.cudnn.plans.Bench` that returns the simulated cost of engines.

    Args:
        library: the library whose engines run.
    """

    stream = 0

    def __init__(self, library: SimulatedCudnn) -> None:
        self._library = library

    def seconds(self, run: Callable[[Sequence[int]], None], nbytes: Sequence[int]) -> float:
        """Run on scratch memory and return the cost."""
        kept = [np.zeros(n + ALIGN, np.uint8) for n in nbytes]
        run([a.ctypes.data + -a.ctypes.data % ALIGN for a in kept])
        return self._library.cost
