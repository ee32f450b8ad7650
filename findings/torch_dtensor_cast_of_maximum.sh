#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: a cast of a maximum or minimum over devices to integers is computed on the terms.  To a
# narrower type, it wraps around, so that a smaller term becomes a greater one; of infinity, it is the least integer.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes: the maximum over the int64 rows -1 and 1, on one each, is 255
# as uint8 instead of 1; the minimum over the rows 3 and infinity is -9223372036854775808 as int64 instead of 3.
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
for rows, reduced, kind, wanted in (
    ([[-1], [1]], torch.amax, torch.uint8, (1, 255)),
    ([[3.0], [torch.inf]], torch.amin, torch.int64, (3, -(2**63))),
):
    x = torch.tensor(rows)
    one = reduced(x, 0).to(kind).item()
    two = reduced(distribute_tensor(x, mesh, [Shard(0)]), 0).to(kind).full_tensor().item()
    if rank == 0:
        print(f"{one} on one device, {two} on two")
    assert (one, two) == wanted
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
