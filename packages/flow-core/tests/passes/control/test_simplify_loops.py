"""Loops lose what no op reads, and ops that give the same at all positions."""

from __future__ import annotations

from collections.abc import Callable

from flow_core.ir.text import parse_graph
from flow_core.passes.control.simplify_loops import SimplifyLoops

BEFORE = """
graph
h = input() : float32[2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (2,)}
x = input() : float32[5,2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (5, 2)}
w = input() : float32[2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (2,)}
loop = scan(h:0, x:0, w:0) : float32[2]; float32[5,2]; float32[5,2] @cpu[0:0] {'body': ((('tanh', 'tanh', ((-1, 2),), ()), ('a', 'broadcast_mul', ((-1, 0), (0, 0)), ()), ('b', 'broadcast_add', ((1, 0), (-1, 1)), ()), ('c', 'relu', ((2, 0),), ())), ((2, 0), (-1, 0), (3, 0))), 'carries': 1, 'draws_as': '', 'length': 5, 'reverse': False, 'sequences': 1}
return loop:0, loop:2
effects
"""
AFTER = """
graph
h = input() : float32[2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (2,)}
x = input() : float32[5,2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (5, 2)}
w = input() : float32[2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (2,)}
loop/tanh = tanh(w:0) : float32[2] @cpu[0:0] {}
loop/simplified = scan(h:0, x:0, loop/tanh:0) : float32[2]; float32[5,2] @cpu[0:0] {'body': ((('a', 'broadcast_mul', ((-1, 0), (-1, 2)), ()), ('b', 'broadcast_add', ((0, 0), (-1, 1)), ()), ('c', 'relu', ((1, 0),), ())), ((1, 0), (2, 0))), 'carries': 1, 'draws_as': 'loop', 'length': 5, 'reverse': False, 'sequences': 1}
return loop/simplified:0, loop/simplified:1
effects
"""


def test_unread_results_and_invariant_ops_leave_the_loop(apply: Callable[..., str]) -> None:
    assert apply(SimplifyLoops(), BEFORE) == AFTER
    assert apply(SimplifyLoops(), AFTER) == AFTER


def test_loops_within_loops_lose_unread_results(apply: Callable[..., str]) -> None:
    """The inner loop adds three times, and would return its states, too."""
    text = """
graph
h = input() : float32[2] @cpu[0:0] {'batch_axis': None, 'dtype': 'float32', 'shape': (2,)}
loop = scan(h:0) : float32[2] @cpu[0:0] {'body': ((('inner', 'scan', ((-1, 0),), (('body', ((('twice', 'scalar_mul', ((-1, 0),), (('operand', 2.0),)),), ((0, 0), (-1, 0)))), ('carries', 1), ('length', 3), ('sequences', 0))),), ((0, 0),)), 'carries': 1, 'draws_as': '', 'length': 5, 'reverse': False, 'sequences': 0}
return loop:0
effects
"""
    (loop,) = parse_graph(apply(SimplifyLoops(), text)).of_type("scan")
    ((_, _, _, attrs),), _ = loop.attrs["body"]
    assert dict(attrs)["body"][1] == ((0, 0),)
