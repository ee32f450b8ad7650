"""Files of rules are read strictly: each mistake is named with its place."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

import flow_rules
from flow_rules.errors import RulesError
from flow_rules.files import parse_rules, read_rules

DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "flow_core": "0.1.0",
    "ops": [
        {
            "type": "scale",
            "doc": "other keys are kept out",
            "cases": [
                {
                    "attributes": {"by": 2.0, "axes": [0, [1]], "most": {"float": "-inf"}},
                    "inputs": [{"shape": [4, 3], "dtype": "float64", "range": [-1, 2.5]}],
                    "outputs": [{"shape": [4, 3], "dtype": "float64"}],
                    "overwrites": [],
                    "rules": [{"inputs": ["S(0)"], "outputs": ["S(0)"]}],
                }
            ],
        }
    ],
}
CASE = ("ops", 0, "cases", 0)


def changed(*path: Any, to: Any) -> bytes:
    document = copy.deepcopy(DOCUMENT)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(document).encode()


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(DOCUMENT))
    found = read_rules(path)
    assert (found.schema, found.versions) == (1, {"flow_core": "0.1.0"})
    ((op,),) = (found.ops,)
    (case,) = op.cases
    assert case.attributes == {"by": 2.0, "axes": (0, (1,)), "most": -float("inf")}
    assert case.inputs[0].range == (-1, 2.5)
    assert [*map(str, case.rules)] == ["(S(0)) -> S(0)"]


@pytest.mark.parametrize(
    ("path", "to", "where"),
    [
        (("schema",), 2, "schema: found 2, expected 1"),
        (("schema",), True, "schema: found True"),
        (("ops",), {}, "ops: found {}, expected a list"),
        (("ops", 0), 3, r"ops\[0\]: found 3, expected an object"),
        (("ops", 0, "type"), "", r"ops\[0\].type: found ''"),
        (("ops", 0, "type"), "a\nb", r"ops\[0\].type"),
        ((*CASE, "rules", 0, "inputs"), [], r"rules\[0\].inputs: found \[\], expected 1 layouts"),
        ((*CASE, "rules", 0, "inputs", 0), "S(2)", r"found 'S\(2\)', expected an axis of float64"),
        ((*CASE, "rules", 0, "inputs", 0), "S(-1)", "expected a layout"),
        ((*CASE, "rules", 0, "inputs", 0), None, "a layout as text"),
        ((*CASE, "inputs", 0, "shape", 0), -1, r"inputs\[0\].shape\[0\]: found -1"),
        ((*CASE, "inputs", 0, "shape"), [1] * 40, "at most 32 entries"),
        ((*CASE, "inputs", 0, "dtype"), "object", "dtype: found 'object'"),
        ((*CASE, "inputs", 0, "dtype"), [], r"dtype: found \[\]"),
        ((*CASE, "inputs", 0, "range"), [2, 1], "the least and the greatest number"),
        ((*CASE, "inputs", 0, "range"), [1e308, 1e308], "a number"),
        ((*CASE, "overwrites"), [1], r"overwrites\[0\]: found 1"),
        ((*CASE, "attributes", "by"), {"a": 1}, "attributes.by: found"),
        ((*CASE, "attributes", "by"), 2**70, "an integer of 64 bits"),
        ((*CASE, "attributes", "by"), {"float": "1"}, "attributes.by: found"),
        ((*CASE, "rules"), DOCUMENT["ops"][0]["cases"][0]["rules"] * 2, "each rule once"),
        (("ops",), DOCUMENT["ops"] * 2, "in order of their types, each once"),
    ],
)
def test_a_mistake_is_named_with_its_place(path: tuple[Any, ...], to: Any, where: str) -> None:
    with pytest.raises(RulesError, match=where):
        parse_rules(changed(*path, to=to))


@pytest.mark.parametrize("key", ["attributes", "inputs", "outputs", "overwrites", "rules"])
def test_no_key_of_a_case_may_be_missing(key: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    del document["ops"][0]["cases"][0][key]
    with pytest.raises(RulesError, match=f"expected the key '{key}'"):
        parse_rules(json.dumps(document).encode())


@pytest.mark.parametrize("depth", [17, 100_000])
def test_nested_lists_are_limited(depth: int) -> None:
    data = changed(*CASE, "attributes", "by", to="x").replace(b'"x"', b"[" * depth + b"]" * depth)
    with pytest.raises(RulesError, match=r"levels of lists|no JSON"):
        parse_rules(data)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"schema": NaN}', b"{"])
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(RulesError):
        parse_rules(data)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, found in (
        (pipe, "no regular file"),
        (tmp_path, "no regular"),
        (tmp_path / "x", "No"),
    ):
        with pytest.raises(RulesError, match=f"reading rules of .*{found}"):
            read_rules(path)


def test_the_published_schema_accepts_what_is_read() -> None:
    """The schema in the package and the reader agree on a valid file and on mistakes."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(flow_rules.__file__).parent / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(DOCUMENT)
    wrong = (
        changed("schema", to=2),
        changed(*CASE, "inputs", 0, "dtype", to="object"),
        changed(*CASE, "inputs", 0, "shape", 0, to=-1),
        changed(*CASE, "rules", 0, "inputs", 0, to="S"),
        changed(*CASE, "attributes", "by", to={"a": 1}),
        changed("ops", 0, "cases", to=None),
    )
    for data in wrong:
        assert not validator.is_valid(json.loads(data))
        with pytest.raises(RulesError):
            parse_rules(data)
