"""Execution plans of cuDNN graphs, which are chosen once per problem and cached on disk.

The cache holds the choice.  For plans with the behavior note RUNTIME_COMPILATION, it also holds
the serialized plan, which the next process loads without compilation.

OneFlow's settings affect plan selection as follows:

* ``cudnn_conv_heuristic_search_algo``: if set, use the first plan of the heuristics (mode A,
  then the fallbacks) that can be built; otherwise, build all plans, time them on scratch memory,
  and use the fastest.
* ``cudnn_conv_use_deterministic_algo_only``: exclude plans with the note NONDETERMINISTIC.
* ``cudnn_buf_limit_mbyte``: exclude plans that need a larger workspace.
* ``cudnn_conv_enable_pseudo_half``: if set, accumulate float16 in float32, and exclude plans with
  the note REDUCED_PRECISION_REDUCTION; otherwise, the computation type is float16.
* ``cudnn_conv_force_*_algo``: algorithm numbers of the legacy API, which cuDNN graphs no longer
  have.  A number selects a family of plans by their notes; see
  `flow_cuda.cudnn.problems.ALGORITHMS`.
* ``enable_tensor_float_32_compute(False)``: for float32, exclude plans with the notes
  TENSOR_CORE and DOWN_CONVERT_INPUTS.
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
from flow_cuda.cudnn.problems import FAMILIES, Choice, LibraryGraph, Problem, Search

TYPES = {
    "float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
    "int32": "INT32", "uint8": "UINT8", "bool": "BOOLEAN",
}  # fmt: skip
"""The library's names of element types."""


class DnnError(FlowError):
    """The error of an execution plan that cuDNN cannot run."""


class Bench(Protocol):
    """Times plans on scratch memory."""

    stream: int  # the stream on which runs must be queued

    def seconds(self, run: Callable[[Sequence[int]], None], nbytes: Sequence[int]) -> float:
        """Return the run time of a function in seconds.

        The function is called with the addresses of scratch buffers of ``nbytes`` bytes each.
        """


@dataclass(frozen=True, eq=False)
class Planned:
    """A graph with a plan that is ready to execute."""

    graph: Any
    index: int  # index of the plan in the graph
    workspace: int  # workspace size in bytes
    numbers: Any  # scalars of the problem, in host memory that does not move

    def execute(self, handle: Any, addresses: Sequence[int], workspace: int) -> None:
        """Queue the plan, given the addresses of inputs and outputs."""
        start, step = self.numbers.ctypes.data, self.numbers.itemsize
        given = (*addresses, *(start + step * i for i in range(len(self.numbers))))
        self.graph.execute_plan_at_index(
            dict(enumerate(given, 1)), workspace, self.index, handle
        )  # fmt: skip


def _planned_at(problem: Problem, graph: LibraryGraph, index: int) -> Planned:
    """Describe a built plan of a graph."""
    numbers = np.array(list(problem.scalars.values()), np.float32)
    return Planned(graph, index, graph.get_workspace_size_plan_at_index(index), numbers)


class DnnPlans:
    """A planner that chooses plans, builds these and queues them on one device."""

    def __init__(
        self,
        library: Any,
        architecture: str,  # architecture of the device; a part of the key of cached choices
        bench: Bench,
        # Cache of choices; without a cache, each process chooses plans again.
        cache: DiskCache | None = None,
        # Calls a function with the device current, so that plans are loaded on that device.
        within: Callable[[Callable[[], Any]], Any] = lambda call: call(),
        compiled: DiskCache | None = None,  # cache of serialized plans
    ) -> None:
        self.library = library
        self._within = within
        self._bench = bench
        self._handle = library.create_handle()
        self._refusals = (library.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self._types = {name: getattr(library.data_type, its) for name, its in TYPES.items()}
        self._cache = cache
        self._origin = library.__version__, str(library.backend_version()), architecture
        self._compiled = compiled
        self._choices: dict[tuple[Problem, Search], Choice | None] = {}
        self._planned: dict[tuple[Problem, str], Planned] = {}
        self._stream: int | None = None

    # ----------------------------------------------------------------------------- choices

    def choose(self, problem: Problem, search: Search) -> Choice | None:
        """Return the plan of a problem, the same in all runs; None if the library has no plan."""
        key = (problem, search)
        if key not in self._choices:
            self._choices[key] = self._within(lambda: self._cached_choice(problem, search))
        return self._choices[key]

    def _cached_choice(self, problem: Problem, search: Search) -> Choice | None:
        """Return the cached choice; choose again if it is missing or its plan no longer exists."""
        if self._cache is None:
            return self._search(problem, search)
        content = repr(problem), repr(search), *self._origin
        for kept in _decode(self._cache.read(content)):
            found = None if kept is None else self._find(problem, kept.plan)
            if kept is None or (found is not None and found.workspace == kept.workspace):
                return kept
        choice = self._search(problem, search)
        text = json.dumps(None if choice is None else asdict(choice))
        self._cache.write(content, text.encode())
        return choice

    def _search(self, problem: Problem, search: Search) -> Choice | None:
        """Return the first plan that can be built, or the fastest of all if the search measures."""
        graph = self._graph(problem)
        if graph is None:
            return None
        self._restrict(graph, problem, search)
        found = self._buildable(graph)
        index = self._fastest(problem, graph, found) if search.measured else next(found, None)
        if index is None:
            return None
        planned = _planned_at(problem, graph, index)
        choice = Choice(graph.get_plan_name_at_index(index), planned.workspace)
        self._planned[problem, choice.plan] = planned
        self._cache_plan(problem, choice.plan, planned)
        return choice

    def _restrict(self, graph: LibraryGraph, problem: Problem, search: Search) -> None:
        """Exclude the plans of a graph that a search does not allow."""
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

    def _buildable(self, graph: LibraryGraph) -> Iterator[int]:
        """Yield the allowed plans that can be built, in the order of the heuristics."""
        for index in range(graph.get_execution_plan_count()):
            if self._builds(graph, index):
                yield index

    def _builds(self, graph: LibraryGraph, index: int) -> bool:
        try:
            graph.build_plan_at_index(index)
        except self._refusals:
            return False
        return True

    def _fastest(self, problem: Problem, graph: LibraryGraph, found: Iterator[int]) -> int | None:
        tensors = (*problem.reads.values(), *problem.writes.values())
        nbytes = [t.nbytes for t in tensors]
        self._set_stream(self._bench.stream)

        def seconds(index: int) -> float:
            planned = _planned_at(problem, graph, index)

            def run(addresses: Sequence[int]) -> None:
                *given, workspace = addresses
                planned.execute(self._handle, given, workspace)

            return self._bench.seconds(run, (*nbytes, planned.workspace))

        return min(found, key=seconds, default=None)

    # ------------------------------------------------------------------------------- plans

    def planned(self, problem: Problem, plan: str) -> Planned:
        """Return a chosen plan, ready to execute.

        Raises `DnnError` if the library on this machine does not provide the plan.
        """
        found: Planned | None = self._planned.get((problem, plan))
        if found is None:
            found = self._within(lambda: self._find(problem, plan))
        if found is None:
            raise DnnError(
                f"building {problem.title}",
                found=f"no plan {plan!r} on this device (cuDNN {self.library.backend_version()})",
                allowed="the device and cuDNN version that the program was compiled for",
                hint="compile the program on this machine",
            )
        return found

    def _find(self, problem: Problem, plan: str) -> Planned | None:
        """Return the plan of a name, deserialized from the cache or built, and ready to execute."""
        key = (problem, plan)
        if key not in self._planned:
            found = self._load_plan(problem, plan) or self._build_plan(problem, plan)
            if found is None:
                return None
            self._planned[key] = found
        return self._planned[key]

    def _build_plan(self, problem: Problem, plan: str) -> Planned | None:
        graph = self._graph(problem)
        count = 0 if graph is None else graph.get_execution_plan_count()
        names = [graph.get_plan_name_at_index(i) for i in range(count)]
        index = names.index(plan) if plan in names else None
        if index is None or not self._builds(graph, index):
            return None
        planned = _planned_at(problem, graph, index)
        self._cache_plan(problem, plan, planned)
        return planned

    def _load_plan(self, problem: Problem, plan: str) -> Planned | None:
        """Return the plan from the cache; None if it is missing or the library rejects it."""
        data = None if self._compiled is None else self._compiled.read(self._key(problem, plan))
        if data is None:
            return None
        graph = self._empty(problem)
        try:
            graph.deserialize(self._handle, list(data))
            return _planned_at(problem, graph, 0)
        except self._refusals as error:
            text = f"cuDNN rejects the cached plan for {problem.title}; building it again: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)
            return None

    def _cache_plan(self, problem: Problem, plan: str, planned: Planned) -> None:
        """Write a plan to the cache if it required a compilation and can be serialized."""
        graph, note = planned.graph, self.library.behavior_note.RUNTIME_COMPILATION
        if self._compiled is None:
            return
        try:
            if note not in graph.get_behavior_notes_for_plan_at_index(planned.index):
                return
            graph.build_plan_at_index(planned.index)  # `serialize` returns the plan built last
            data = bytes(graph.serialize())
        except self._refusals:
            return
        self._compiled.write(self._key(problem, plan), data)

    def _key(self, problem: Problem, plan: str) -> tuple[str, ...]:
        """Return the cache key of a compiled plan: problem, library version, and architecture."""
        return repr(problem), plan, *self._origin

    def _graph(self, problem: Problem) -> LibraryGraph:
        """Return the graph of a problem with its unbuilt plans; None if it is not supported."""
        library, graph = self.library, self._build_graph(problem)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
        except self._refusals:
            return None
        return graph

    def _empty(self, problem: Problem) -> LibraryGraph:
        types = self._types
        return self.library.pygraph(
            io_data_type=types["float32"], intermediate_data_type=types["float32"],
            compute_data_type=types[problem.compute], handle=self._handle,
        )  # fmt: skip

    def _build_graph(self, problem: Problem) -> LibraryGraph:
        """Return the graph of a problem; its inputs, outputs and scalars have uids 1, 2, ..."""
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
        """Queue a problem with a plan, given the addresses of inputs and outputs."""
        self._set_stream(stream)
        self.planned(problem, plan).execute(self._handle, addresses, workspace)

    def _set_stream(self, stream: int) -> None:
        if stream != self._stream:
            self.library.set_stream(self._handle, stream)
            self._stream = stream


def _decode(text: bytes | None) -> tuple[Choice | None, ...]:
    """Decode a cache entry to a 1-tuple of the choice; empty if the entry is missing or invalid."""
    try:
        kept = json.loads(text or b"")
        return (None if kept is None else Choice(**kept),)
    except (ValueError, TypeError):
        return ()
