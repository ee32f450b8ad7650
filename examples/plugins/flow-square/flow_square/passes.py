"""The pass that replaces products of a value with itself."""

from dataclasses import dataclass

from flow_core.authoring.pass_api import Rewriter, like_op


@dataclass(frozen=True)
class Square:
    """A pass that replaces products of a value with itself."""

    name: str = "square"

    def apply(self, graph, context):
        """Return the graph with an op ``square`` in place of each such product."""
        rewriter = Rewriter(graph)
        for op in graph.of_type("broadcast_mul"):
            first, second = op.inputs
            if first == second:
                rewriter.replace(op, like_op(op, "square", {}, (first,)))
        return rewriter.finish()
