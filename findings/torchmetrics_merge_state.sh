#!/usr/bin/env bash
# torchmetrics 1.9.0: `merge_state`, which adds the state of another metric, e.g. of another worker, does not forget the value
# that `compute` has kept: where both are called in turn, the merged numbers are missing until the next update.  And a state
# with `dist_reduce_fx="mean"` is weighted by the updates of the own metric, not of both: after one update, the other's state
# counts nothing.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0, metrics of 1 and 3: the sum is 4 and the mean 2, and both are 1 if
# `compute` was called before; the state with "mean" is 1 instead of 2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import torch
from torchmetrics import MeanMetric, Metric, SumMetric


class Mean(Metric):
    """A metric whose state is the mean over metrics."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, value):
        self.value = self.value + value

    def compute(self):
        return self.value


def merged(kind, first, second, asked):
    """Merge two metrics of one update each, the value of the first asked for before or not."""
    one, other = kind(), kind()
    one.update(first)
    other.update(second)
    if asked:
        one.compute()
    one.merge_state(other)
    return one.compute().item()


kinds = SumMetric, MeanMetric, Mean
seen = {(kind.__name__, asked): merged(kind, 1.0, 3.0, asked) for kind in kinds for asked in (False, True)}
print("of 1 and 3, by a call of compute before:", seen)
assert seen == {
    ("SumMetric", False): 4, ("SumMetric", True): 1,
    ("MeanMetric", False): 2, ("MeanMetric", True): 1,
    ("Mean", False): 1, ("Mean", True): 1,
}
EOF
echo "as described"
