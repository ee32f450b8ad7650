#!/usr/bin/env bash
# torch 2.13.0: after a milestone of `SequentialLR`, `MultiplicativeLR` goes on from the learning rate of the scheduler before,
# already multiplied, where `ExponentialLR` starts at the optimizer's rate.  A warm-up therefore never reaches its rate, and
# after a small constant one all rates stay as small.  Alone, `MultiplicativeLR` with the factor 0.9 is `ExponentialLR` with
# 0.9.
#
# Seen on 2026-12-01, x86-64, Python 3.11, rate 1, five steps of a linear warm-up from 0.1, then 0.9: 0.82, 1, 0.9 with
# ExponentialLR, 0.82, 0.738, 0.664 with MultiplicativeLR; after a constant 0.1: 1, 0.9 and 0.09, 0.081.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import torch
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, LinearLR, MultiplicativeLR, SequentialLR

FIRST = {
    "warm-up": lambda optimizer: LinearLR(optimizer, 0.1, 1.0, 5),
    "constant": lambda optimizer: ConstantLR(optimizer, 0.1, 5),
}
SECOND = {
    "exponential": lambda optimizer: ExponentialLR(optimizer, 0.9),
    "multiplicative": lambda optimizer: MultiplicativeLR(optimizer, lambda step: 0.9),
}


def rates(make):
    """Return the learning rates of eight steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(8):
        found.append(round(optimizer.param_groups[0]["lr"], 3))
        optimizer.step()
        scheduler.step()
    return found


assert rates(SECOND["exponential"]) == rates(SECOND["multiplicative"])
seen = {
    (one, two): rates(lambda optimizer: SequentialLR(optimizer, [FIRST[one](optimizer), SECOND[two](optimizer)], [5]))
    for one in FIRST
    for two in SECOND
}
print(seen)
assert [found[4:7] for found in seen.values()] == [
    [0.82, 1, 0.9], [0.82, 0.738, 0.664], [0.1, 1, 0.9], [0.1, 0.09, 0.081],
]
EOF
echo "as described"
