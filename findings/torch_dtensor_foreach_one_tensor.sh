#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: `_foreach_add`, `_foreach_mul` and their in-place forms with one tensor for a list
# bring that tensor into the layout that the first tensor of the list needs.  Where another tensor of the list
# needs a different one, its result is wrong: a partial sum times a partial sum stays partial, and a replicated
# tensor is added to each term.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes, a replicated [1, 2] and a partial [2, 4] in a list:
# times a partial 20, the second is [20, 40] instead of [40, 80]; plus a replicated 10, [22, 24] instead of [12, 14].
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
from torch.distributed.tensor import DTensor, Partial, Replicate

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def tensor(value, placement):
    return DTensor.from_local(torch.tensor(value), mesh, [placement])


whole, parts = tensor([1.0, 2.0], Replicate()), tensor([1.0, 2.0], Partial())
factor, term = tensor(10.0, Partial()), tensor(10.0, Replicate())
CASES = {
    "times": (torch.ops.aten._foreach_mul.Tensor, factor, [40.0, 80.0], [20.0, 40.0]),
    "plus": (torch.ops.aten._foreach_add.Tensor, term, [12.0, 14.0], [22.0, 24.0]),
}
for name, (function, other, right, wrong) in CASES.items():
    alone = function([parts], other)[0].full_tensor().tolist()
    second = function([whole, parts], other)[1].full_tensor().tolist()
    if rank == 0:
        print(f"{name}: {alone} alone, {second} after a replicated tensor")
    assert (alone, second) == (right, wrong)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
