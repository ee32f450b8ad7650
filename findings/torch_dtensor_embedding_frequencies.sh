#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: the gradient of `embedding` with `scale_grad_by_freq=True`, which is divided
# by the number of occurrences of a token in the batch, is computed on each device's tokens, so that the
# divisors are those of the parts.  The sum over devices is then too large.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, tokens 1, 1, 1, 2 split in halves: the
# gradient of row 1 is 2 instead of 1.
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
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def gradient(table, tokens):
    """Return the gradient of the sum of all looked-up rows."""
    rows = F.embedding(tokens, table.requires_grad_(), scale_grad_by_freq=True)
    (found,) = torch.autograd.grad(rows.sum(), table)
    return found


tokens, table = torch.tensor([1, 1, 1, 2]), torch.zeros(3, 1)
one = gradient(table.clone(), tokens)
split = distribute_tensor(tokens, mesh, [Shard(0)])
two = gradient(distribute_tensor(table, mesh, [Replicate()]), split).full_tensor()
if rank == 0:
    print("one device:", one.flatten().tolist(), "two:", two.flatten().tolist())
assert one.flatten().tolist() == [0, 1, 1]
assert two.flatten().tolist() == [0, 2, 1]
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
