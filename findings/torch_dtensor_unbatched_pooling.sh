#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: the rule for the gradient of `adaptive_avg_pool2d` takes axis 1 for the channels.  Of an image
# without a batch, [C, H, W], it is the rows: if the image and the gradient are split by rows, each process computes the
# gradient of its rows from other windows, and the result is wrong without an error.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, 6 rows pooled to 5: the sum of the gradient's first row is
# 3 instead of 1.5 if rows are split, and right if channels are.
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
image, weights = torch.ones(2, 6, 4), torch.arange(1.0, 21).reshape(2, 5, 2)


def gradient(place):
    """Return the gradient of a weighted sum of the pooled image."""
    x, w = place(image.clone()).requires_grad_(), place(weights)
    (torch.nn.functional.adaptive_avg_pool2d(x, (5, 2)) * w).sum().backward()
    return x.grad


right = gradient(lambda tensor: tensor)
rows, channels = (
    gradient(lambda tensor: distribute_tensor(tensor, mesh, [Shard(axis)])).full_tensor()
    for axis in (1, 0)
)
sums = [float(found[0, 0].sum()) for found in (right, rows, channels)]
if rank == 0:
    print("first row: {} on one device, {} split by rows, {} by channels".format(*sums))
assert torch.equal(channels, right)
assert sums == [1.5, 3.0, 1.5]
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
