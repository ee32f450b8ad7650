#!/usr/bin/env bash
# torch 2.13.0, gloo: `all_reduce` and `broadcast` take the elements of a dense tensor in the order of its memory, not of its
# indices, and do not compare the strides of the processes.  If one process has the equal tensor in another layout (a transposed
# one, or channels_last), the sum adds elements of different places, and the receivers of a broadcast get them in another order,
# without an error.  `all_gather` is right, `send` refuses such a tensor, and DistributedDataParallel compares the strides.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import sys

import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
images = torch.arange(16.0).reshape(1, 2, 2, 4)


def own():
    """Return the images, which process 0 has in the layout channels_last."""
    return images.to(memory_format=torch.channels_last) if rank == 0 else images.clone()


total = own()
dist.all_reduce(total)
sent = own() if rank == 0 else torch.zeros_like(images)
dist.broadcast(sent, 0)
gathered = [torch.zeros_like(images) for _ in range(2)]
dist.all_gather(gathered, own())
print(rank, "sum", total.flatten()[:4].tolist(), "received", sent.flatten()[:4].tolist())
assert not torch.equal(total, 2 * images)
assert torch.equal(sent, images) == (rank == 0)
assert torch.equal(sent.sort().values.flatten().sort().values, images.flatten())
assert all(torch.equal(part, images) for part in gathered)
same = images.clone()
dist.all_reduce(same)
assert torch.equal(same, 2 * images)
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" "$folder/program.py" 1 "$folder/store" &
other=$!
"$folder/venv/bin/python" "$folder/program.py" 0 "$folder/store"
wait "$other"
echo "as described"
