"""The exporter to Graphviz."""

import json
import os
from pathlib import Path


def write(job, path, rankdir="TB"):
    """Write a job's graph, with a node for each op and an edge, labeled with the type, per value.

    Args:
        job: the `ExportedJob`.
        path: the file, which the complete text replaces at once.
        rankdir: direction of the edges, as Graphviz defines it.
    """
    lines = [f"digraph {quoted(job.name)} {{", f"  rankdir={quoted(rankdir)}", *edges(job), "}"]
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_text("\n".join(lines) + "\n", "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def edges(job):
    """Yield one line for each op, for each input of an op, and for each result."""
    for op in job.graph.ops.values():
        size = f"\n{job.variables[op.name].nbytes:,} bytes" if op.type == "variable" else ""
        yield f"  {quoted(op.name)} [label={quoted(f'{op.type}{size}')}]"
        for value in op.inputs:
            yield edge(job, value, op.name)
    for number, value in enumerate(job.graph.results):
        yield edge(job, value, f"result {number}")


def edge(job, value, target):
    """Return the line for one edge."""
    label = quoted(str(job.graph.type_of(value)))
    return f"  {quoted(value.op)} -> {quoted(target)} [label={label}]"


def quoted(text):
    """Return a text as a quoted Graphviz string."""
    return json.dumps(text, ensure_ascii=False)
