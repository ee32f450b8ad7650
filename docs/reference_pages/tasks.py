"""The tasks by which the index of the reference groups names: what defines a name decides."""

from __future__ import annotations

from collections.abc import Iterable

from reference_pages.names import Entry

_TABLE = """
Jobs and their arguments: flow_core.frontend.job flow_core.frontend.config.function_config
    flow_core.api.session.job flow_core.api.session.current flow_core.frontend.session.default
    flow_core.frontend.trace.blob flow_core.api.session.replay flow_typing
Data sets, batches and readers: flow_data.batches flow_data.datasets flow_data.mnist
    flow_data.readers flow_data.decoders flow_data.records
Layers: flow_core.api.nn.layers flow_core.api.nn.layers_norm flow_core.api.nn.layers_sequence
    flow_core.api.nn.layers_experts
Variables, initializers and regularizers: flow_core.frontend.session.variables
    flow_core.api.array.initializers flow_core.api.array.regularizers flow_core.api.array.assignment
Activations, attention and norms: flow_core.api.nn.activation flow_core.api.nn.attention
    flow_core.api.nn.basic flow_core.api.nn.group_norms flow_core.api.nn.experts
Convolution and pooling: flow_core.api.nn.conv flow_core.api.nn.pool
Losses: flow_core.api.nn.losses flow_core.api.nn.ctc flow_core.api.nn.legacy_losses
    flow_core.api.nn.partial_fc
Optimizers and learning rates: flow_core.api.optim
Arithmetic and comparisons: flow_core.api.math.unary flow_core.api.math.binary
    flow_core.api.math.comparison flow_core.api.math.trigonometry
Products, norms and reductions: flow_core.api.math.linalg flow_core.api.math.einsum
    flow_core.api.math.norms flow_core.api.math.reduce flow_core.api.math.array
Create, reshape, join and divide: flow_core.api.array.source flow_core.api.array.shape
    flow_core.api.array.select flow_core.api.array.parts flow_core.api.array.padding
    flow_core.api.array.dtypes
Index, sort and search: flow_core.api.array.index flow_core.api.array.dynamic
    flow_core.api.array.encoding
Conditions, loops and random numbers: flow_core.api.array.conditional flow_core.api.array.scanning
    flow_core.api.array.random
Checkpoints and weights: flow_core.api.session.train flow_core.api.session.weights
ONNX, saved models and serving: flow_core.api.session.export flow_core.api.serving.model_import
    flow_core.api.serving
Devices and distribution: flow_core.frontend.config.scope flow_core.frontend.trace.sbp_hints
    flow_core.api.session.scope flow_core.api.session.distribute flow_core.api.session.views
    flow_core.api.session.advanced
TensorBoard: flow_core.api.summary
Images, objects and ragged values: flow_data.image flow_data.detection flow_data.ragged
Quantization: flow_core.api.nn.quantization
Settings of the session: flow_core.api.session.config flow_core.api.session.env
Older and newer releases of OneFlow: flow_core.api.compat flow_core.api.deprecation
    flow_data.legacy
"""


def _rows() -> dict[str, tuple[str, ...]]:
    lines = _TABLE.replace("\n    ", " ").strip().splitlines()
    return {title: tuple(names.split()) for title, _, names in (s.partition(": ") for s in lines)}


def by_task(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each task, in order of their names.

    Raises:
        KeyError: no task has the module of an entry.
    """
    rows = _rows()
    tasks = {module: title for title, modules in rows.items() for module in modules}
    found: dict[str, list[Entry]] = {title: [] for title in rows}
    for entry in sorted(entries, key=lambda entry: entry.name):
        module = entry.object.__module__
        while module not in tasks and "." in module:
            module = module.rpartition(".")[0]
        found[tasks[module]].append(entry)
    return found
