#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: the gradient of `select` along a negative axis is laid out as if the axis were the first
# one.  For most shapes, backward is refused with the sizes of parts; where these can be broadcast, the gradient is wrong.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes: for rows on both and weights [1, 2], the gradient of
# x.select(-1, 0) is [[1, 2], [1, 2]] instead of [[1, 0], [2, 0]], that of x.select(1, 0) is right; for four rows,
# "The size of tensor a (4) must match the size of tensor b (2) at non-singleton dimension 0".
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


def gradients(size, axis):
    """Return the gradient of a weighted sum of a column: on one device, and on two."""
    x, weights = torch.ones(size, size), torch.arange(1.0, size + 1)
    two, weights_of_two = (distribute_tensor(t, mesh, [Shard(0)]) for t in (x, weights))
    for tensor, factors in ((x.requires_grad_(), weights), (two.requires_grad_(), weights_of_two)):
        (tensor.select(axis, 0) * factors).sum().backward()
    return x.grad.tolist(), two.grad.full_tensor().tolist()


right, second = gradients(2, 1)
_, last = gradients(2, -1)
try:
    gradients(4, -1)
    refused = ""
except RuntimeError as error:
    refused = str(error)
if rank == 0:
    print(f"{right} on one device; on two, {second} with axis 1, {last} with axis -1")
    print(f"four rows: {refused}")
assert right == second == [[1.0, 0.0], [2.0, 0.0]]
assert last == [[1.0, 2.0], [1.0, 2.0]]
assert "size of tensor a (4) must match the size of tensor b (2)" in refused
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
