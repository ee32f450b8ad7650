"""From a logical graph to a physical plan: order, memory, tasks."""
