#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `linalg.solve_triangular` with copies of a batch of matrices and right sides split along the
# same batch is computed without communication, as if there were one matrix for all.  Each process solves with all
# matrices: for one right side per process, these are broadcast and the parts are too large; else the call is refused.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes: of two systems, each process holds the solutions of two
# instead of one, and the first holds [1, 0.5] for its only right side; of four, "The size of tensor a (2) must match the
# size of tensor b (4) at non-singleton dimension 0".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" GLOO_SOCKET_IFNAME=lo
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def solutions(size, placed=lambda tensor, layout: tensor):
    """Solve `size` systems of one equation, i * x = 1 for i from 1."""
    matrices = torch.arange(1.0, size + 1).reshape(size, 1, 1)
    right = placed(torch.ones(size, 1, 1), Shard(0))
    return torch.linalg.solve_triangular(placed(matrices, Replicate()), right, upper=True)


def split(tensor, layout):
    """Return a distributed tensor."""
    return distribute_tensor(tensor, mesh, [layout])


found = solutions(2, split)
part = found.to_local().flatten().tolist()
try:
    solutions(4, split)
    refused = ""
except RuntimeError as error:
    refused = str(error)
if rank == 0:
    print(f"one device: {solutions(2).flatten().tolist()}; {found.placements}: {part} on the first")
    print(f"four systems: {refused}")
assert part == [1.0, 0.5] and found.shape[0] == 2
assert "size of tensor a (2) must match the size of tensor b (4)" in refused
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
