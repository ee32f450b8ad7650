#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `view_copy` is accepted without communication where the new first axis does not divide the rows
# of each process, and fails there with the shape of its part; `view` is refused with an explanation.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes: 50 x 5 numbers, split by rows, as 5 x 50: "shape '[3, 50]' is
# invalid for input of size 125".
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
x = torch.arange(250.0).reshape(50, 5)
split = distribute_tensor(x, mesh, [Shard(0)])
found = {}
for name, op in (("view", torch.Tensor.view), ("view_copy", torch.view_copy)):
    assert op(x, (5, 50)).shape == (5, 50)
    try:
        found[name] = str(op(split, (5, 50)).placements)
    except RuntimeError as error:
        found[name] = str(error).strip().splitlines()[0]
    if rank == 0:
        print(f"{name}: {found[name]}")
assert "invalid for input of size 125" in found["view_copy"]
assert "invalid for input" not in found["view"]
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
