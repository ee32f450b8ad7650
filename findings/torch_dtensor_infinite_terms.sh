#!/usr/bin/env bash
# torch 2.13.0, CPU, DTensor: casts and `special.modified_bessel_i1` keep minima and maxima as their layout.  If a shard has
# infinities only, such as those of a mask, its term is infinite: the cast to integers makes the least integer of positive
# infinity, and the function NaN of negative infinity, which win.
#
# Seen on 2026-11-30, x86-64, Python 3.11, two gloo processes: the minimum over [3, inf] as an integer is
# -9223372036854775808 instead of 3; the function of the maximum over [1, -inf] is NaN instead of 0.565.
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


def of_two(function, numbers):
    """Apply a function to numbers on one device, and on two."""
    x = torch.tensor(numbers)
    split = distribute_tensor(x, mesh, [Shard(0)])
    return function(x).item(), function(split).full_tensor().item()


least = of_two(lambda x: x.amin(0).to(torch.int64), [3.0, torch.inf])
bessel = of_two(lambda x: torch.special.modified_bessel_i1(x.amax(0)), [1.0, -torch.inf])
if rank == 0:
    print(f"minimum: {least}, function of the maximum: {bessel}")
assert least == (3, -(2**63))
assert round(bessel[0], 3) == 0.565 and bessel[1] != bessel[1]
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait $!
echo "as described"
