#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `linalg_pinv` with tolerances that are tensors accepts partial ones, so that each process
# compares singular values with its term of the sum.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, a tolerance of 0.7 + 0.7: the inverse of diag(4, 1) is
# diag(0.25, 1) instead of diag(0.25, 0).
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
matrix, terms, zero = torch.diag(torch.tensor([4.0, 1.0])), torch.tensor([0.7, 0.7]), torch.tensor(0.0)
one = torch.linalg.pinv(matrix, atol=terms.sum(), rtol=zero).diag().tolist()
whole, none = (distribute_tensor(x, mesh, [Replicate()]) for x in (matrix, zero))
limit = distribute_tensor(terms, mesh, [Shard(0)]).sum()
two = torch.linalg.pinv(whole, atol=limit, rtol=none).full_tensor().diag().tolist()
if rank == 0:
    print(f"{one} on one device, {two} on two")
assert (one, two) == ([0.25, 0.0], [0.25, 1.0])
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
