"""Convert a predict job to an ONNX model and write it."""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, helper

import flow_onnx
from flow_core.authoring.specs import ExportedJob, Graph
from flow_core.base.errors import PluginError, UnsupportedError
from flow_onnx.files import Weights, save, tensor
from flow_onnx.network import Built, build, declared, read_by
from flow_onnx.options import OPSETS, Checker, Options
from flow_onnx.sizes import Sized, refuse, resized
from flow_onnx.stored import array_of
from flow_onnx.types import ELEMENT_TYPES

_log = logging.getLogger("flow_onnx")


def write(
    job: ExportedJob,
    path: str,
    *,
    continue_on_error: bool = False,
    opset: Any = None,
    extra_opset: Any = None,
    shape_override: Any = None,
    external_data: bool = False,
) -> None:
    """Write a job as a model; see ``flow.onnx.export`` for the options.

    Raises:
        ConfigError: an option is invalid.
        UnsupportedError: ONNX has no equivalent of some ops, or the model is too large for one
            file.
    """
    inputs = {name: job.graph.type_of(value) for name, value in job.inputs.items()}
    check = Checker(f"exporting job {job.name!r} to ONNX", job.at)
    options = Options(
        opset=check.opset(opset),
        extra=check.extra(extra_opset),
        keep=bool(continue_on_error),
        sizes=check.sizes(shape_override, inputs),
        external=bool(external_data),
    )
    model, weights = converted(job, options)
    save(model, weights, path, options.external, check)


def converted(job: ExportedJob, options: Options) -> tuple[ModelProto, Weights]:
    """Return the checked model without weights, and the weights by name."""
    sized = resized(job, options)
    _check_types(job, sized.graph, options)
    built = _built(job, sized, options)
    model = _model(job, sized, built, options)
    _check(job, model)
    _warn(built)
    return model, {built.values[op.output()]: array_of(job, op.output()) for op in built.stored}


def _built(job: ExportedJob, sized: Sized, options: Options) -> Built:
    """Build the nodes; with open sizes, check that the nodes are the same for other sizes."""
    built = build(job, sized, options)
    if sized.other is not None:
        _check_agreement(job, sized, built, build(job, sized.swapped, options))
    return built


def _check_agreement(job: ExportedJob, sized: Sized, built: Built, other: Built) -> None:
    """Reject nodes whose attributes or constants depend on an open size."""
    for node, again in zip_longest(built.network.nodes, other.network.nodes):
        if not node or not again or _content(built, node) != _content(other, again):
            owner, odd = (built, node) if node else (other, again)
            maker = owner.made_by.get(odd.name)  # None for a constant result
            kind = (node or again).op_type
            refuse(job, sized.graph, maker, f"{kind} needs numbers for the open sizes")


def _content(built: Built, node: NodeProto) -> tuple[object, ...]:
    """Return the content of a node, without the names of the values that it reads and makes."""
    constants = built.network.constants
    arrays = [constants[name] for name in read_by(node) if name in constants]
    attributes = [attribute.SerializeToString() for attribute in node.attribute]
    return node.op_type, attributes, [(array.dtype, array.tolist()) for array in arrays]


def _check_types(job: ExportedJob, graph: Graph, options: Options) -> None:
    """Reject graphs with objects or, before opset 13, with bfloat16 values."""
    known = [name for name in ELEMENT_TYPES if options.opset >= 13 or name != "bfloat16"]
    for name, types in graph.types.items():
        odd = [t for t in types if t.dtype.name not in known]
        if odd:
            raise UnsupportedError(
                f"exporting job {job.name!r} to ONNX, opset {options.opset}",
                at=graph.lines.get(name),
                found=f"{graph.ops[name].type} {name!r} with a result of type {odd[0]}",
                allowed=f"numbers: {', '.join(known)}",
                hint="pass opset=13 or a later one, since bfloat16 was added in opset 13"
                if odd[0].dtype.name == "bfloat16"
                else "export a job with arrays as inputs, without readers and decoders",
            )


def _model(job: ExportedJob, sized: Sized, built: Built, options: Options) -> ModelProto:
    """Build the model; weights are declared as inputs until their arrays are added."""
    inputs, results, between = declared(built, sized)
    nodes, used = built.network.nodes, _used(built)
    constants = [tensor(n, a) for n, a in built.network.constants.items() if n in used]
    weights = [sized.info(built.values[op.output()], op.output()) for op in built.stored]
    made = helper.make_graph(
        nodes, job.name, [*inputs, *weights], results, constants, value_info=between
    )
    domains = [("", options.opset), *options.extra]
    domains += [options.domain] if built.kept and options.domain not in domains else []
    imports = [helper.make_opsetid(*domain) for domain in domains]
    return helper.make_model(
        made,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True),
        producer_name="flow",
        producer_version=flow_onnx.__version__,
    )


def _used(built: Built) -> set[str]:
    return {name for node in built.network.nodes for name in read_by(node)}


def _check(job: ExportedJob, model: ModelProto) -> None:
    """Run ONNX's checker, and check that inferred shapes and types are those of the job."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise PluginError(
            f"checking the ONNX model of job {job.name!r}",
            at=job.at,
            found=str(error),
            hint="an operator may support these element types in a later opset only: try "
            f"opset={OPSETS[-1]}, or report it with the job",
        ) from error


def _warn(built: Built) -> None:
    for gap in built.kept:
        _log.warning("%s is kept unconverted", gap)
