"""Plans of cuDNN's graphs: chosen once per problem, kept on disk, built once per device, queued.

What is kept is the choice, and of plans that the library compiles when they are built (its
behaviour note RUNTIME_COMPILATION) also what it serializes: the next start loads that.

`Library` is what we call of NVIDIA's cudnn-frontend, the package ``cudnn``; simulators bring one
that computes with numpy.  What OneFlow's settings mean for its plans:

* ``cudnn_conv_heuristic_search_algo``: the first plan of the library's heuristics (mode A, then
  the fallbacks) that can be built.  Without it all plans are built and run on scratch memory, and
  the fastest is taken.
* ``cudnn_conv_use_deterministic_algo_only``: no plan with the note NONDETERMINISTIC.
* ``cudnn_buf_limit_mbyte``: no plan that needs a larger workspace.
* ``cudnn_conv_enable_pseudo_half``: float16 is summed in float32, and no plan has the note
  REDUCED_PRECISION_REDUCTION; without it the type of computation is float16.
* ``cudnn_conv_force_*_algo``: numbers of algorithms that graphs do not have any more.  They stand
  for families of plans, told apart by notes; see `flow_cuda.cudnn.problems.ALGORITHMS`.
* ``enable_tensor_float_32_compute(False)``: for float32 no plan with the notes TENSOR_CORE and
  DOWN_CONVERT_INPUTS.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from flow_core.base.disk_cache import CacheWarning, DiskCache
from flow_core.base.errors import FlowError
from flow_cuda.cudnn.problems import FAMILIES, Choice, Problem, Search

TYPES = {
    "float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
    "int32": "INT32", "uint8": "UINT8", "bool": "BOOLEAN",
}  # fmt: skip
"""The library's names of element types."""


class DnnError(FlowError):
    """cuDNN cannot do what a plan says that it does."""


class Library(Protocol):
    """The package ``cudnn``: makers of graphs and handles, and its enumerations."""

    __version__: str
    data_type: Any
    heur_mode: Any
    numerical_note: Any
    behavior_note: Any
    norm_forward_phase: Any
    cudnnGraphNotSupportedError: type[Exception]

    def pygraph(self, **settings: Any) -> Any:
        """An empty graph."""

    def create_handle(self) -> Any:
        """A handle of the current device."""

    def set_stream(self, handle: Any, stream: int) -> None:
        """Where what is executed with a handle is queued."""

    def backend_version(self) -> int:
        """Such as 92800."""


class Bench(Protocol):
    """Scratch memory and a clock, for plans that are measured.

    Attributes:
        stream: where runs are to be queued.
    """

    stream: int

    def seconds(self, run: Callable[[Sequence[int]], None], nbytes: Sequence[int]) -> float:
        """How long a run takes that is given so much memory, by addresses."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A graph with a plan that is ready to run.

    Attributes:
        graph: the library's.
        index: of the plan among those of the graph.
        workspace: bytes.
        numbers: of the problem, in memory that stays where it is.
    """

    graph: Any
    index: int
    workspace: int
    numbers: Any

    def execute(self, handle: Any, addresses: Sequence[int], workspace: int) -> None:
        """Queues it, given the addresses of what it reads and what it writes."""
        start, step = self.numbers.ctypes.data, self.numbers.itemsize
        given = (*addresses, *(start + step * i for i in range(len(self.numbers))))
        self.graph.execute_plan_at_index(
            dict(enumerate(given, 1)), workspace, self.index, handle
        )  # fmt: skip


def _at(problem: Problem, graph: Any, index: int) -> Planned:
    """A plan of a graph, which is built."""
    numbers = np.array(list(problem.scalars.values()), np.float32)
    return Planned(graph, index, graph.get_workspace_size_plan_at_index(index), numbers)


class DnnPlans:
    """Chooses plans, builds them and queues them on one device.

    Args:
        library: the package.
        architecture: of the device; a choice on disk is for one.
        bench: for plans that are measured.
        cache: where choices are kept; they are made anew in each process without one.
        compiled: where plans are kept that the library compiles.
        within: calls a function with the device as the current one: plans are loaded there.
    """

    def __init__(
        self,
        library: Library,
        architecture: str,
        bench: Bench,
        cache: DiskCache | None = None,
        within: Callable[[Callable[[], Any]], Any] = lambda call: call(),
        compiled: DiskCache | None = None,
    ) -> None:
        self.library = library
        self._within = within
        self._bench = bench
        self._handle = library.create_handle()
        self._refusals = (library.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self._types = {name: getattr(library.data_type, its) for name, its in TYPES.items()}
        self._types["inference"] = library.norm_forward_phase.INFERENCE
        self._cache = cache
        self._origin = library.__version__, str(library.backend_version()), architecture
        self._compiled = compiled
        self._choices: dict[tuple[Problem, Search], Choice | None] = {}
        self._planned: dict[tuple[Problem, str], Planned] = {}
        self._stream: int | None = None

    # ----------------------------------------------------------------------------- choices

    def choose(self, problem: Problem, search: Search) -> Choice | None:
        """The plan of a problem, the same one in all runs; None where the library has none."""
        key = (problem, search)
        if key not in self._choices:
            self._choices[key] = self._within(lambda: self._remembered(problem, search))
        return self._choices[key]

    def _remembered(self, problem: Problem, search: Search) -> Choice | None:
        """The choice on disk, made where there is none, and anew where its plan is gone."""
        if self._cache is None:
            return self._searched(problem, search)
        content = repr(problem), repr(search), *self._origin
        for kept in _decoded(self._cache.read(content)):
            found = None if kept is None else self._find(problem, kept.plan)
            if kept is None or (found is not None and found.workspace == kept.workspace):
                return kept
        choice = self._searched(problem, search)
        text = json.dumps(None if choice is None else asdict(choice))
        self._cache.write(content, text.encode())
        return choice

    def _searched(self, problem: Problem, search: Search) -> Choice | None:
        """The first plan that can be built, or the fastest of all of them."""
        graph = self._graph(problem)
        if graph is None:
            return None
        self._forbid(graph, problem, search)
        found = self._buildable(graph)
        index = self._fastest(problem, graph, found) if search.measured else next(found, None)
        if index is None:
            return None
        planned = _at(problem, graph, index)
        choice = Choice(graph.get_plan_name_at_index(index), planned.workspace)
        self._planned[problem, choice.plan] = planned
        self._keep(problem, choice.plan, planned)
        return choice

    def _forbid(self, graph: Any, problem: Problem, search: Search) -> None:
        """Leaves out the plans that a search does not allow."""
        note, family = self.library.numerical_note, FAMILIES[search.family]
        refused = dict.fromkeys(family.refuses)
        if problem.compute != "float16":
            refused["REDUCED_PRECISION_REDUCTION"] = None
        if search.deterministic:
            refused["NONDETERMINISTIC"] = None
        first = next(iter(problem.reads.values()))
        if first.dtype == "float32" and not search.tf32:
            refused |= dict.fromkeys(("TENSOR_CORE", "DOWN_CONVERT_INPUTS"))
        if refused:
            graph.deselect_numeric_notes([getattr(note, name) for name in refused])
        if family.needs:
            graph.select_numeric_notes([getattr(note, name) for name in family.needs])
        graph.deselect_workspace_greater_than(search.limit)

    def _buildable(self, graph: Any) -> Iterator[int]:
        """The plans that are allowed and can be built, the library's favourite first."""
        for index in range(graph.get_execution_plan_count()):
            if self._builds(graph, index):
                yield index

    def _builds(self, graph: Any, index: int) -> bool:
        try:
            graph.build_plan_at_index(index)
        except self._refusals:
            return False
        return True

    def _fastest(self, problem: Problem, graph: Any, found: Iterator[int]) -> int | None:
        tensors = (*problem.reads.values(), *problem.writes.values())
        nbytes = [t.nbytes for t in tensors]
        self._on(self._bench.stream)

        def seconds(index: int) -> float:
            planned = _at(problem, graph, index)

            def run(addresses: Sequence[int]) -> None:
                *given, workspace = addresses
                planned.execute(self._handle, given, workspace)

            return self._bench.seconds(run, (*nbytes, planned.workspace))

        return min(found, key=seconds, default=None)

    # ------------------------------------------------------------------------------- plans

    def planned(self, problem: Problem, plan: str) -> Planned:
        """A plan that was chosen, ready to run.

        Raises:
            DnnError: the library of this machine does not have it.
        """
        found: Planned | None = self._planned.get((problem, plan))
        if found is None:
            found = self._within(lambda: self._find(problem, plan))
        if found is None:
            raise DnnError(
                f"building {problem.title}",
                found=f"no plan {plan!r} on this device, by cuDNN {self.library.backend_version()}",
                allowed="the plans of the device and the library that the program was compiled for",
                hint="compile the program here",
            )
        return found

    def _find(self, problem: Problem, plan: str) -> Planned | None:
        """The plan of a name, ready to run: the one that was kept, or built."""
        key = (problem, plan)
        if key not in self._planned:
            found = self._loaded(problem, plan) or self._built(problem, plan)
            if found is None:
                return None
            self._planned[key] = found
        return self._planned[key]

    def _built(self, problem: Problem, plan: str) -> Planned | None:
        graph = self._graph(problem)
        count = 0 if graph is None else graph.get_execution_plan_count()
        names = [graph.get_plan_name_at_index(i) for i in range(count)]
        index = names.index(plan) if plan in names else None
        if index is None or not self._builds(graph, index):
            return None
        planned = _at(problem, graph, index)
        self._keep(problem, plan, planned)
        return planned

    def _loaded(self, problem: Problem, plan: str) -> Planned | None:
        """The plan as it was kept, if the library still takes it."""
        data = None if self._compiled is None else self._compiled.read(self._key(problem, plan))
        if data is None:
            return None
        graph = self._empty(problem)
        try:
            graph.deserialize(self._handle, list(data))
            return _at(problem, graph, 0)
        except self._refusals as error:
            text = f"the kept plan for {problem.title} is made again, as cuDNN refuses it: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)
            return None

    def _keep(self, problem: Problem, plan: str, planned: Planned) -> None:
        """Keeps a plan that took the library a compilation, if it can be serialized."""
        graph, note = planned.graph, self.library.behavior_note.RUNTIME_COMPILATION
        if self._compiled is None:
            return
        try:
            if note not in graph.get_behavior_notes_for_plan_at_index(planned.index):
                return
            graph.build_plan_at_index(planned.index)  # what was built last is serialized
            data = bytes(graph.serialize())
        except self._refusals:
            return
        self._compiled.write(self._key(problem, plan), data)

    def _key(self, problem: Problem, plan: str) -> tuple[str, ...]:
        """What a compiled plan depends on: the problem, the library, and the kind of device."""
        return repr(problem), plan, *self._origin

    def _graph(self, problem: Problem) -> Any:
        """The graph of a problem with all plans, none of them built; None where it is refused."""
        library, graph = self.library, self._described(problem)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
        except self._refusals:
            return None
        return graph

    def _empty(self, problem: Problem) -> Any:
        types = self._types
        return self.library.pygraph(
            io_data_type=types["float32"], intermediate_data_type=types["float32"],
            compute_data_type=types[problem.compute], handle=self._handle,
        )  # fmt: skip

    def _described(self, problem: Problem) -> Any:
        """The graph of a problem; tensors are numbered from 1: inputs, outputs, numbers."""
        types, wide, graph = self._types, self._types["float32"], self._empty(problem)
        given = {
            name: graph.tensor(
                name=name, dim=list(t.sizes), stride=list(t.steps), data_type=types[t.dtype],
                uid=uid,
            )
            for uid, (name, t) in enumerate(problem.reads.items(), 1)
        }  # fmt: skip
        start, one = 1 + len(given), [1] * len(next(iter(problem.reads.values())).sizes)
        for uid, name in enumerate(problem.scalars, start + len(problem.writes)):
            given[name] = graph.tensor(
                name=name, dim=one, stride=one, data_type=wide, uid=uid, is_pass_by_value=True
            )
        made = problem.build(graph, types, given)
        for uid, (name, t) in enumerate(problem.writes.items(), start):
            made[name].set_uid(uid).set_output(True).set_data_type(types[t.dtype])
            made[name].set_dim(list(t.sizes)).set_stride(list(t.steps))
        return graph

    # --------------------------------------------------------------------------- execution

    def queue(
        self, problem: Problem, plan: str, addresses: Sequence[int], workspace: int, stream: int
    ) -> None:
        """Queues a problem by a plan, given the addresses of what it reads and what it writes."""
        self._on(stream)
        self.planned(problem, plan).execute(self._handle, addresses, workspace)

    def _on(self, stream: int) -> None:
        if stream != self._stream:
            self.library.set_stream(self._handle, stream)
            self._stream = stream


def _decoded(text: bytes | None) -> tuple[Choice | None, ...]:
    """The choice that an entry holds; nothing where there is none, or where it makes no sense."""
    try:
        kept = json.loads(text or b"")
        return (None if kept is None else Choice(**kept),)
    except (ValueError, TypeError):
        return ()
