#!/usr/bin/env bash
# faiss-cpu 1.15.1: `IndexFlatL2.search` finds other neighbors for one query alone than for the same query beside another, if
# there are 20,000 vectors and more than one thread.  The distances of the single query have lost their digits for vectors that
# are far from the origin beside their distances from each other, so that an exhaustive search misses the nearest vector.  With
# one thread, among 1000 vectors or for two queries at a time, all are right.
#
# Seen on 2026-12-01, x86-64, Python 3.11, numpy 2.4.6, 20,000 vectors of 16 numbers about 1000 with the deviation 1, 40
# queries: one at a time with two threads, 10 find their nearest vector, and the first distances are 6, 2, 2, 4 instead of 7.7,
# 4.5, 6.1, 3.6; all 40 find it with one thread, and in pairs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q faiss-cpu==1.15.1 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import faiss
import numpy as np

random = np.random.default_rng(0)
vectors, queries = (random.normal(1000, 1, (size, 16)).astype(np.float32) for size in (20_000, 40))
distances = np.array([np.square(vectors.astype(np.float64) - query).sum(1) for query in queries])


def search(size, threads, count):
    """Search among `count` vectors, `size` queries at a time; return how many are right, and the distances."""
    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatL2(16)
    index.add(vectors[:count])
    parts = [index.search(queries[i : i + size], 1) for i in range(0, 40, size)]
    found = np.concatenate([part[1] for part in parts])[:, 0]
    right = distances[:, :count].argmin(1)
    return int((found == right).sum()), np.concatenate([part[0] for part in parts])[:, 0]


seen = {case: search(*case) for case in ((1, 2, 20_000), (1, 1, 20_000), (2, 2, 20_000), (1, 2, 1000))}
for (size, threads, count), (right, _) in seen.items():
    print(f"{size} at a time, {threads} threads, {count} vectors: {right} of 40 right")
wrong = seen[1, 2, 20_000]
print("distances alone", wrong[1][:8], "in float64", distances.min(1)[:8])
assert wrong[0] < 20 and np.abs(wrong[1] - distances.min(1)).max() > 1
assert [right for right, _ in seen.values()][1:] == [40, 40, 40]
EOF
echo "as described"
