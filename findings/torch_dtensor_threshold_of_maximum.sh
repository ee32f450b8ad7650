#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `threshold` and `nan_to_num` of a maximum over devices are computed on the
# terms, as if both grew with their input.  They do not if the value of `threshold` is greater than its
# threshold, or if `posinf` is less than other numbers: a term that is no maximum wins.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, maximum over rows on one each:
# rows -1 and 1: threshold(x, 0, 5) is 5 instead of 1; rows inf and 1: nan_to_num(x, posinf=0) is 1
# instead of 0.
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
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

CASES = {
    "threshold": ([[-1.0], [1.0]], lambda x: F.threshold(x, 0, 5), 1.0, 5.0),
    "nan_to_num": ([[float("inf")], [1.0]], lambda x: torch.nan_to_num(x, posinf=0.0), 0.0, 1.0),
}

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
for name, (rows, function, right, wrong) in CASES.items():
    x = torch.tensor(rows)
    one = function(x.amax(0)).item()
    two = function(distribute_tensor(x, mesh, [Shard(0)]).amax(0)).full_tensor().item()
    if rank == 0:
        print(f"{name}: {one} on one device, {two} on two")
    assert (one, two) == (right, wrong)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
