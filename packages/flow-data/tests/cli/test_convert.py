"""Conversion of data sets, and the ``flow data`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from flow_core.base.errors import DataError
from flow_data.cli.commands import data
from flow_data.cli.convert import convert, open_samples
from flow_data.cli.report import svg_report, text_report, verdict
from flow_data.codec import encode_jpeg
from flow_data.loading.stats import LoaderStats
from flow_data.records.ofrecord import read_ofrecords


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for i, kind in enumerate(("cat", "dog")):
        (folder / kind).mkdir(parents=True)
        for k in range(3):
            pixels = np.full((4, 5, 3), 10 * i + k, np.uint8)
            (folder / kind / f"{k}.jpg").write_bytes(encode_jpeg(pixels))
    return folder


def labels(paths: list[str], name: str = "class/label") -> list[Any]:
    return [next(iter(r[name][1])) for path in paths for r in read_ofrecords(path)]


def test_images(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "records"
    done = CliRunner().invoke(data, ["convert", str(images), str(target), "--parts", "2"])
    assert done.exit_code == 0, done.output
    assert "6 records in 2 files" in done.output
    assert "data_part_num=2, part_name_suffix_length=5)" in done.output
    names = sorted(p.name for p in target.iterdir())
    assert names == ["classes.txt", "part-00000", "part-00001"]
    paths = [str(target / name) for name in names[1:]]
    assert labels(paths) == [0, 0, 1, 0, 1, 1]
    assert (target / "classes.txt").read_text() == "cat\ndog\n"


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,x,name\n1,0.5,a\n2,3,b\n")
    (out,) = convert(open_samples(str(path)), str(tmp_path / "out"), 1)
    rows = [{k: list(v[1]) for k, v in r.items()} for r in read_ofrecords(out)]
    assert rows == [{"n": [1], "x": [0.5], "name": [b"a"]}, {"n": [2], "x": [3], "name": [b"b"]}]
    path.write_text("n,x\n1\n")
    with pytest.raises(DataError, match="line 2"):
        open_samples(str(path))


def test_npz(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, x=np.arange(6, dtype=np.float32).reshape(3, 2), y=np.arange(3))
    paths = convert(open_samples(path), str(tmp_path / "out"), 2, seed=1)
    assert sorted(labels(paths, "y")) == [0, 1, 2]
    np.savez(path, x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(DataError, match="one length"):
        open_samples(path)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("content", [b"", b"\x80\x81", b"a\0,b\n1,2", b'a\n"', b"PK\3\4 \0"])
def test_non_tabular_input_is_rejected(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"table.{suffix}"
    path.write_bytes(content)
    try:
        assert len(open_samples(str(path))) == 1
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - some are one-row tables


def test_integers_beyond_64_bits_become_floats(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a\n1\n99999999999999999999\n")
    assert open_samples(str(path)).fields(1)["a"] == np.float32(1e20)


class Failing:
    """Yield samples, one of which cannot be read."""

    def __len__(self) -> int:
        return 5

    def fields(self, number: int) -> dict[str, Any]:
        if number == 3:
            raise OSError("gone")
        return {"x": number}


def test_failed_conversion_leaves_no_output(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sample 3"):
        convert(Failing(), str(tmp_path / "out"), 2)
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("")
    with pytest.raises(DataError, match="it exists"):
        convert(Failing(), str(tmp_path / "there"), 1)
    with pytest.raises(DataError, match="9 parts for 5 samples"):
        convert(Failing(), str(tmp_path / "out"), 9)
    with pytest.raises(DataError, match="no such file"):
        open_samples(str(tmp_path / "no.csv"))


def test_report_names_the_slowest_stage() -> None:
    stats = LoaderStats("reader", 3, 40, 2.0, 0.1, 0.4, {"read": 1.0, "decode": 9.0}, {0: 39, 2: 1})
    assert verdict(stats) == "steps wait: no batch was ready 39 times; most work (90%) is in decode"
    text = text_report([stats])
    assert "225.00 ms/batch  90.0%" in text
    assert "0 batches ready:     39 times" in text
    assert "<svg" in svg_report([stats])
    assert "no loader ran" in text_report([])


@pytest.mark.usefixtures("restored_program")
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('full')", 1, "full\n"),
        ("raise KeyboardInterrupt", 130, 'Traceback (most recent call last):\n  File "'),
        ("raise EOFError", 1, 'Traceback (most recent call last):\n  File "'),
    ],
)
def test_statistics_of_a_program(tmp_path: Path, end: str, status: int, said: str) -> None:
    """They are printed after any exit of the program, whose error Python prints as usual."""
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nprint(sys.argv[1:], __name__)\n{end}\n")
    picture = tmp_path / "a.svg"
    done = CliRunner().invoke(data, ["stats", "--picture", str(picture), str(program), "--x", "1"])
    assert done.exit_code == status, done.output
    assert "['--x', '1'] __main__" in done.output
    assert done.stderr.startswith(said)
    assert "commands.py" not in done.stderr
    assert picture.read_text().startswith("<svg")
