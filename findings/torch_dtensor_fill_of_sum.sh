#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `fill_` keeps a partial sum as its layout, so that each process fills its terms with the
# number, and these are added.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes: a sum over rows on both, filled with 1, is 2.
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
one = x.sum(0).fill_(1.0).tolist()
two = distribute_tensor(x, mesh, [Shard(0)]).sum(0).fill_(1.0).full_tensor().tolist()
if rank == 0:
    print(f"{one} on one device, {two} on two")
assert (one, two) == ([1.0, 1.0], [2.0, 2.0])
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
