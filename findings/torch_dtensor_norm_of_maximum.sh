#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: a reduction that changes its elements first (the infinity norm takes
# magnitudes, `any` compares with 0) keeps a partial layout of its input whose combination has the same
# name.  The infinity norm of maxima is then that of values which lost, and a sum of 0 is "any".
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, rows -5 and 1 on one each: 5 instead of 1
# for the infinity norm of the maximum over rows; rows -1 and 1: True instead of False for `any` of the sum.
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

CASES = {
    "the infinity norm of amax": (
        [[-5.0], [1.0]], lambda x: torch.linalg.vector_norm(x.amax(0), float("inf")), 1.0, 5.0),
    "any of sum": ([[-1.0], [1.0]], lambda x: x.sum(0).any(), False, True),
}

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
for name, (rows, function, right, wrong) in CASES.items():
    x = torch.tensor(rows)
    one = function(x).item()
    two = function(distribute_tensor(x, mesh, [Shard(0)])).full_tensor().item()
    if rank == 0:
        print(f"{name}: {one} on one device, {two} on two")
    assert (one, two) == (right, wrong)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
