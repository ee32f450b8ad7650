#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: ops whose parts combine to the result without communication, but for which DTensor has no such
# rule, so that it sends a partial sum or a shard to all processes first: the cumulative sum of a partial sum, its product
# with a vector (`dot`) or a matrix, gradients of softmax and gelu that are partial sums, the diagonals of a batch that is
# split, solving for right sides that are split, and adding a number to a maximum.
#
# Seen on 2026-12-01, x86-64, Python 3.11, two gloo processes: each of the 27 results below is right when each process computes
# its own part with torch alone, and costs one communication or more by DTensor.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

warnings.simplefilter("ignore")
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
A, S, B, P, MAX, MIN = torch.ops.aten, Shard, Replicate(), Partial(), Partial("max"), Partial("min")
COMBINED = {"sum": lambda x: x.sum(0), "max": lambda x: x.amax(0), "min": lambda x: x.amin(0)}


def combined(parts, layout):
    """Return the whole tensor of two parts."""
    if isinstance(layout, Shard):
        return torch.cat(parts, layout.dim)
    return parts[0] if layout == B else COMBINED[layout.reduce_op](torch.stack(parts))


def drawn(shape, layout, low):
    """Return the parts of a random tensor."""
    torch.manual_seed(sum(shape) + 17)
    one, two = (torch.rand(shape, dtype=torch.float64) * 4 + low for _ in range(2))
    if isinstance(layout, Shard):
        return list(torch.chunk(one, 2, layout.dim))
    return [one, one] if layout == B else [one, two]


def claim(name, f, inputs, output, low=-2.0):
    """Check that a rule holds, and that DTensor communicates."""
    layouts = [layout for _, layout in inputs]
    parts = [drawn(shape, layout, low) for shape, layout in inputs]
    want = f(*map(combined, parts, layouts))
    assert torch.allclose(combined([f(*row) for row in zip(*parts)], output), want), name
    given = [DTensor.from_local(p[rank], mesh, [x], run_check=False) for p, x in zip(parts, layouts)]
    with CommDebugMode() as messages:
        result = f(*given)
    assert torch.allclose(result.full_tensor(), want), name
    if rank == 0:
        print(f"{name}: {messages.get_total_counts()} communications")
    assert messages.get_total_counts() >= 1, name


claim("cumsum (P) -> P", lambda x: torch.cumsum(x, 0), [((4, 6), P)], P)
claim("diag_embed (P) -> P", torch.diag_embed, [((4, 6), P)], P)
claim("diag_embed (S(0)) -> S(0)", torch.diag_embed, [((4, 6), S(0))], S(0))
claim("diagonal (S(0)) -> S(0)", lambda x: torch.diagonal(x, 0, -2, -1), [((4, 5, 5), S(0))], S(0))
claim("dot (B, P) -> P", torch.dot, [((6,), B), ((6,), P)], P)
claim("addcmul (P, P, B) -> P", torch.addcmul, [((4, 6), P), ((4, 6), P), ((4, 6), B)], P)
claim("_log_softmax_backward_data (P, B) -> P", lambda g, y: A._log_softmax_backward_data(g, y, 1, torch.float64), [((4, 6), P), ((4, 6), B)], P)
claim("_softmax_backward_data (P, B) -> P", lambda g, y: A._softmax_backward_data(g, y, 1, torch.float64), [((4, 6), P), ((4, 6), B)], P)
claim("gelu_backward (P, B) -> P", A.gelu_backward, [((4, 6), P), ((4, 6), B)], P)
claim("cholesky_solve (S(1), B) -> S(1)", torch.cholesky_solve, [((5, 4), S(1)), ((5, 5), B)], S(1), 3.0)
claim("acosh (P(min)) -> P(min)", torch.acosh, [((4, 6), MIN)], MIN, 1.5)
claim("add.Scalar (P(max)) -> P(max)", lambda x: torch.add(x, 1.0), [((4, 6), MAX)], MAX)
claim("grid_sampler_2d (S(1), B) -> S(1)", lambda x, g: A.grid_sampler_2d(x, g, 0, 0, False), [((2, 4, 5, 5), S(1)), ((2, 5, 5, 2), B)], S(1), -1.0)
claim("deg2rad (P) -> P", torch.deg2rad, [((4, 6), P)], P)
claim("where (B, P, P) -> P", lambda c, x, y: torch.where(c > 0, x, y), [((4, 6), B), ((4, 6), P), ((4, 6), P)], P)
claim("triu (S(0)) -> S(0)", torch.triu, [((4, 5, 5), S(0))], S(0))
claim("tril (P) -> P", torch.tril, [((5, 5), P)], P)
claim("triangular_solve (S(1), B) -> S(1)", lambda b, a: A.triangular_solve(b, a)[0], [((5, 4), S(1)), ((5, 5), B)], S(1), 3.0)
claim("tanh_backward (P, B) -> P", A.tanh_backward, [((4, 6), P), ((4, 6), B)], P)
claim("sigmoid_backward (P, B) -> P", A.sigmoid_backward, [((4, 6), P), ((4, 6), B)], P)
claim("silu_backward (P, B) -> P", A.silu_backward, [((4, 6), P), ((4, 6), B)], P)
claim("sub (B, P(min)) -> P(max)", torch.sub, [((4, 6), B), ((4, 6), MIN)], MAX)
claim("rsqrt (P(min)) -> P(max)", torch.rsqrt, [((4, 6), MIN)], MAX, 1.5)
claim("sqrt (P(min)) -> P(min)", torch.sqrt, [((4, 6), MIN)], MIN, 1.5)
claim("rad2deg (P) -> P", torch.rad2deg, [((4, 6), P)], P)
claim("select_scatter (P, P) -> P", lambda x, y: torch.select_scatter(x, y, 0, 1), [((4, 6), P), ((6,), P)], P)
claim("layer_norm (B, P, P) -> P", lambda x, w, b: torch.nn.functional.layer_norm(x, (6,), w, b), [((4, 6), B), ((6,), P), ((6,), P)], P)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
