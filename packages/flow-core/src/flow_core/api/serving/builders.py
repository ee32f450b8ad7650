"""``flow.saved_model``: builders that save predict jobs with their graphs, weights and signatures.

Example::

    builder = flow.saved_model.ModelBuilder("models").ModelName("digits").Version(1)
    builder.AddFunction(predict)
    builder.Save()
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flow_core.api.serving.batch_sizes import batch_sizes
from flow_core.api.serving.model_file import (
    CHECKPOINT,
    SavedGraph,
    SavedModel,
    Signature,
    new_version,
)
from flow_core.api.session.job import get_all_variables
from flow_core.api.session.train import checked_path, save_by
from flow_core.base.arrays import Array
from flow_core.base.errors import FlowError, JobError, UnsupportedError, shown, user_line
from flow_core.checkpoint import store
from flow_core.frontend.job.exported import traced_for_export
from flow_core.frontend.session.session import default_session
from flow_core.ir.graph import Value
from flow_core.ir.text import print_graph
from flow_core.ops.system.python_kernel import PYTHON_KERNEL
from flow_core.plugins.exporters import ExportedJob

__all__ = ["GraphBuilder", "ModelBuilder", "SignatureBuilder"]

_LARGEST = (1 << 63) - 1


def _fail(attempted: str, found: str, allowed: str) -> FlowError:
    return JobError.at_caller(attempted, found=found, allowed=allowed)


def _blob_name(value: Value) -> str:
    """Return the ``logical_blob_name`` of a value."""
    return f"{value.op}/out_{value.index}"


class ModelBuilder:
    """A builder of one version of a saved model; every method but `AddFunction` returns it.

    Args:
        save_path: the folder of the model, below which each version has a folder.

    Raises: CheckpointError: ``save_path`` is not a path of the file system.
    """

    def __init__(self, save_path: str) -> None:
        self._path = Path(checked_path("flow.saved_model.ModelBuilder", save_path, folder=True))
        self._name = self._path.name
        self._version: int | None = None
        self._graphs: dict[str, GraphBuilder] = {}

    def ModelName(self, model_name: str) -> ModelBuilder:
        """Set the name of the model; by default that of its folder."""
        self._name = model_name
        return self

    def Version(self, version: int) -> ModelBuilder:
        """Set the number of the version, which is required.

        Raises:
            JobError: ``version`` is not an integer from 0 to 2**63 - 1.
        """
        try:
            number = -1 if isinstance(version, bool) else operator.index(version)
        except TypeError:
            number = -1
        if not 0 <= number <= _LARGEST:
            allowed = f"an integer from 0 to {_LARGEST}"
            raise _fail("ModelBuilder.Version", shown(version), allowed)
        self._version = number
        return self

    def AddFunction(self, func: Any) -> GraphBuilder:
        """Add a predict job, and return the builder of its signatures.

        Raises:
            JobError: ``func`` is not a predict job, or another job has its name.
        """
        graph = GraphBuilder(func, self)
        if graph.name in self._graphs:
            found = f"another function {graph.name!r}"
            raise _fail("ModelBuilder.AddFunction", found, "one function per name")
        self._graphs[graph.name] = graph
        return graph

    def Save(self, save_model_before_graph_complete: bool = True) -> None:
        """Write the version: its graphs, and the values that the variables have now.

        The job functions run again, for other batch sizes, to find out what depends on the size.
        The version appears at once, when it is complete.  If the process is killed before, or two
        processes save the same version, no other version is affected.

        Args:
            save_model_before_graph_complete: has no effect; graphs are saved as traced.

        Raises:
            CheckpointError: the version exists, or cannot be written.
            JobError: there is no function or no version.
        """
        attempted = f"saving the model in {self._path}"
        if not self._graphs or self._version is None:
            found = "no function" if not self._graphs else "no version"
            raise _fail(attempted, found, "a call of AddFunction, and one of Version")
        graphs = {name: graph.saved() for name, graph in self._graphs.items()}
        names = {name for graph in self._graphs.values() for name in graph.variables}
        model = SavedModel(self._name, self._version, CHECKPOINT, next(iter(graphs)), graphs)
        formats = tuple(default_session().registry.formats.values())

        def write(variables: Mapping[str, Array]) -> None:
            with new_version(self._path, model.version, attempted) as folder:
                store.save(folder / CHECKPOINT, variables, formats)
                model.write(folder)

        save_by(write, {k: v.numpy() for k, v in get_all_variables().items() if k in names})


class GraphBuilder:
    """A builder of the signatures of one job of a saved model.

    Args:
        function: a predict job.
        model_builder: the builder of the model.
    """

    def __init__(self, function: Any, model_builder: ModelBuilder) -> None:
        self._owner = model_builder
        self._job: ExportedJob = traced_for_export(
            function, "ModelBuilder.AddFunction", user_line(2)
        )
        kernels = [op.name for op in self._job.graph.of_type(PYTHON_KERNEL)]
        if kernels:
            raise UnsupportedError.at_caller(
                "ModelBuilder.AddFunction",
                found=f"ops that are Python functions of the program: {', '.join(kernels)}",
                allowed="ops of flow-core and of plugins",
            )
        self._signatures: dict[str, SignatureBuilder] = {}
        self._default = ""

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._job.name

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that the job needs."""
        return tuple(op.name for op in self._job.graph.of_type("variable"))

    def AddSignature(self, signature_name: str) -> SignatureBuilder:
        """Add a signature, and return its builder; the first one is the default."""
        if signature_name in self._signatures:
            found = f"another signature {signature_name!r}"
            raise _fail("GraphBuilder.AddSignature", found, "one signature per name")
        self._default = self._default or signature_name
        self._signatures[signature_name] = SignatureBuilder(signature_name, self)
        return self._signatures[signature_name]

    def OwnerModelBuilder(self) -> ModelBuilder:
        """Return the builder of the model."""
        return self._owner

    def AsDefault(self, signature_name: str) -> GraphBuilder:
        """Make a signature the default."""
        self._default = signature_name
        return self

    def parameter(self, lbn: str) -> str:
        """Return the parameter of the job whose placeholder has a logical blob name."""
        found = {_blob_name(value): name for name, value in self._job.inputs.items()}
        if lbn not in found:
            raise _fail("SignatureBuilder.Input", repr(lbn), ", ".join(found) or "no inputs")
        return found[lbn]

    def result(self, lbn: str) -> int:
        """Return the index of the result that has a logical blob name."""
        found = [_blob_name(value) for value in self._job.graph.results]
        if lbn not in found:
            raise _fail("SignatureBuilder.Output", repr(lbn), ", ".join(found))
        return found.index(lbn)

    def saved(self) -> SavedGraph:
        """Return the record of the job."""
        return SavedGraph(
            print_graph(self._job.graph),
            {name: value.op for name, value in self._job.inputs.items()},
            {name: builder.saved() for name, builder in self._signatures.items()},
            self._default,
            batch_sizes(self._job),
        )


class SignatureBuilder:
    """A builder of one signature; `Input` and `Output` return it.

    Args:
        name: name of the signature.
        graph_builder: the builder of its job.
    """

    def __init__(self, name: str, graph_builder: GraphBuilder) -> None:
        self.name = name
        self._owner = graph_builder
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, int] = {}

    def Input(self, input_name: str, lbn: str) -> SignatureBuilder:
        """Name an input.

        Args:
            input_name: its name for callers.
            lbn: ``logical_blob_name`` of a placeholder of the job.
        """
        self._inputs[input_name] = self._owner.parameter(lbn)
        return self

    def Output(self, output_name: str, lbn: str) -> SignatureBuilder:
        """Name an output; ``lbn`` is the ``logical_blob_name`` of a result of the job."""
        self._outputs[output_name] = self._owner.result(lbn)
        return self

    def OwnerGraphBuilder(self) -> GraphBuilder:
        """Return the builder of the job."""
        return self._owner

    def AsDefault(self) -> SignatureBuilder:
        """Make this signature the default."""
        self._owner.AsDefault(self.name)
        return self

    def saved(self) -> Signature:
        """Return the record of the signature."""
        return Signature(self._inputs, self._outputs)
