#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `view` with an element type keeps a partial sum as its layout: the bits of the terms are
# added as numbers of the new type.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, rows 1 and 3 on one each: the bits of the sum, 4.0, are
# 1082130432; the view of the sum over rows is 2143289344.
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
x = torch.tensor([[1.0], [3.0]])
one = x.sum(0).view(torch.int32).item()
two = distribute_tensor(x, mesh, [Shard(0)]).sum(0).view(torch.int32).full_tensor().item()
if rank == 0:
    print(f"{one} on one device, {two} on two")
assert (one, two) == (1082130432, 2143289344)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
