#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: the gradients of upsampling that write into a given tensor (`.grad_input`) have the rules of
# those that return a new one, but are called with the size of the whole image on each process, and refuse their parts.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, images split along the batch: upsample_linear1d_backward
# has the right result, and its `.grad_input` refuses: "Expected a tensor of dimension 3 and tensor.size[0] == 2 but got:
# dimension 3 and tensor.size[0] = 1".
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
from torch.distributed.tensor import Shard, distribute_tensor

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
gradient = torch.arange(18.0).reshape(2, 3, 3)
sizes = [3], [2, 3, 4], False
op = torch.ops.aten.upsample_linear1d_backward
right = op.default(gradient, *sizes)
split, into = (distribute_tensor(x, mesh, [Shard(0)]) for x in (gradient, torch.zeros(2, 3, 4)))
assert torch.equal(op.default(split, *sizes).full_tensor(), right)
assert torch.equal(op.grad_input(gradient, *sizes, grad_input=torch.zeros(2, 3, 4)), right)
try:
    op.grad_input(split, *sizes, grad_input=into)
    refused = ""
except RuntimeError as error:
    refused = str(error)
if rank == 0:
    print(refused)
assert "tensor.size[0] == 2 but got: dimension 3 and tensor.size[0] = 1" in refused
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
