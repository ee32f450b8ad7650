#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: the sum of powers (`linalg__powsum`, `_foreach_powsum`) keeps a partial sum as its
# input: each process raises its terms to the power, and these are added, in place of the powers of the sums.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, rows 1, 2 and -1, 3 on one each: the squares of the sum
# over rows add up to 15 instead of 25.
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
x = torch.tensor([[1.0, 2.0], [-1.0, 3.0]])
CASES = {
    "linalg__powsum": lambda x: torch.ops.aten.linalg__powsum(x.sum(0), 2),
    "_foreach_powsum": lambda x: torch._foreach_powsum([x.sum(0)], 2)[0],
}
for name, function in CASES.items():
    one, two = function(x).item(), function(distribute_tensor(x, mesh, [Shard(0)])).full_tensor().item()
    if rank == 0:
        print(f"{name}: {one} on one device, {two} on two")
    assert (one, two) == (25.0, 15.0)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
