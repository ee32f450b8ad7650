#!/usr/bin/env bash
# tfrecord 1.14.6: `tfrecord_loader` reads the checksums of lengths and records, which its writer computes, but compares
# them with nothing: a record with a changed byte is returned, where TensorFlow reports corrupted data.
#
# Seen on 2026-11-30, x86-64, Python 3.11: b"abc" written, the "b" of the file replaced by "z", b"azc" read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tfrecord==1.14.6 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/data.tfrecord" << 'EOF'
import sys
from pathlib import Path

from tfrecord.reader import tfrecord_loader
from tfrecord.writer import TFRecordWriter

file = Path(sys.argv[1])
writer = TFRecordWriter(str(file))
writer.write({"text": (b"abc", "byte")})
writer.close()
content = file.read_bytes()
assert content.count(b"abc") == 1
file.write_bytes(content.replace(b"abc", b"azc"))
(found,) = tfrecord_loader(str(file), None, {"text": "byte"})
print(found)
assert bytes(found["text"]) == b"azc"
print("as described")
EOF
