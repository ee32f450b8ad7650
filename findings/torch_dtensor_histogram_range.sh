#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `histc` whose least and greatest value are equal, and not 0, takes the range of
# its input.  Each device takes the range of its part, so that the counts are added over different bins.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, 0, 1, 2 and 9 split in halves:
# histc(x, 3, min=1, max=1) is [2, 0, 2] instead of [3, 0, 1].
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
x = torch.tensor([0.0, 1.0, 2.0, 9.0])
one = torch.histc(x, 3, min=1.0, max=1.0)
two = torch.histc(distribute_tensor(x, mesh, [Shard(0)]), 3, min=1.0, max=1.0).full_tensor()
if rank == 0:
    print(f"{one.tolist()} on one device, {two.tolist()} on two")
assert one.tolist() == [3, 0, 1]
assert two.tolist() == [2, 0, 2]
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
