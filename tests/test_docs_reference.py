"""The generated reference: a page for each public name, with what its docstring and ops say."""

from __future__ import annotations

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flow_zoo
import oneflow as flow
import oneflow.typing as tp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
pytestmark = pytest.mark.arithmetic

from reference_pages import docstrings, ops, public  # noqa: E402 - a program in docs/
from reference_pages.__main__ import linked  # noqa: E402
from reference_pages.compact import compact  # noqa: E402
from reference_pages.names import entries  # noqa: E402
from reference_pages.signatures import signature  # noqa: E402
from reference_pages.tasks import by_task  # noqa: E402


def text_of(name: str) -> str:
    (entry,) = (e for e in entries() if name == e.name)
    pages = dict(public.pages([entry]))
    return pages[public.page_of(name)]


def test_every_public_function_has_a_name_of_its_own() -> None:
    found = entries()
    names = [name for entry in found for name in (entry.name, *entry.others)]
    assert len(names) == len(set(names)) > 450
    functions = [n for n, f in vars(flow.nn).items() if inspect.isfunction(f)]
    assert {f"flow.nn.{n}" for n in functions if not n.startswith("_")} <= set(names)


def test_a_page_has_the_parts_of_the_docstring() -> None:
    text = text_of("flow.nn.conv2d")
    assert text.startswith("# flow.nn.conv2d\n")
    headings = re.findall("^## (.*)$", text, re.M)
    assert headings[:3] == ["Arguments", "Returns", "Errors"]
    arguments = text[text.index("## Arguments") : text.index("## Returns")]
    assert re.findall(r"^\| `(\w+)` ", arguments, re.M) == list(
        inspect.signature(flow.nn.conv2d).parameters
    )


def test_classes_show_their_methods() -> None:
    assert "### minimize\n" in text_of("flow.optimizer.Adam")


def test_other_names_of_an_object_refer_to_its_page() -> None:
    (entry,) = (e for e in entries() if e.object is flow.xavier_normal_initializer)
    pages = dict(public.pages([entry]))
    assert f"]({entry.name}.md)" in pages[public.page_of(entry.others[0])]


def documented() -> None:
    """Add.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     return documented.call(x)
    >>> job(np.array([-1, 2], np.float32))
    array([0., 2.], dtype=float32)
    """


def call(x: object) -> object:
    return flow.nn.relu(flow.identity(x))  # type: ignore[arg-type]


def test_ops_are_found_by_running_the_example() -> None:
    documented.call = call  # type: ignore[attr-defined]
    with ops.recorded(call.__code__) as found:
        ops.run(documented)
    assert found == ["identity", "relu"]
    text = "\n".join(ops.facts(found))
    assert "- `(S(0)) -> S(0)`" in text
    assert re.search(r"\| `cpu` \| .*`float32`", text)


def test_an_example_that_fails_stops_the_build() -> None:
    def wrong() -> None:
        """>>> 1 + 1
        3
        """

    with pytest.raises(RuntimeError, match=r"(?s)the example of .*wrong fails.*Got:\s+2"):
        ops.run(wrong)


def test_sections_and_doctests_of_docstrings() -> None:
    doc = docstrings.parse(
        """Return the sum.

        Args:
            x, y: numbers | blobs,
                of one type.

        Example:
            >>> 1 + 1
            2
        """
    )
    assert doc.text == "Return the sum."
    assert doc.items("Args") == [("x, y", "numbers | blobs,\nof one type.")]
    lines = "\n".join(docstrings.sections(doc, 2))
    assert r"| `x, y` | numbers \| blobs, of one type. |" in lines
    assert "```pycon\n>>> 1 + 1\n2\n```" in lines


def test_long_signatures_have_a_line_per_parameter() -> None:
    text = signature("flow.nn.conv2d", flow.nn.conv2d)
    assert text.splitlines()[1].startswith("    input:")


def test_long_defaults_are_shown_by_the_name_of_their_constant() -> None:
    text = signature("flow_zoo.gpt2", flow_zoo.gpt2)
    assert "config: GPT2Config = GPT2" in text
    assert "model_distribute: Distribution = BROADCAST" in text_of("flow.layers.dense")


def test_the_index_groups_all_names_by_task() -> None:
    tasks = by_task(entries())
    assert sum(map(len, tasks.values())) == len(entries())
    assert all(tasks.values())
    index = dict(public.pages([e for e in entries() if e.name == "flow.nn.conv2d"]))[
        "reference/index.md"
    ]
    assert "## Convolution and pooling\n\n[`nn.conv2d`](flow.nn.conv2d.md)\n" in index


def test_pages_of_functions_have_a_side_menu() -> None:
    names = json.loads(public.menu(entries()).split(";\n", 1)[0].removeprefix("const NAMES = "))
    assert "conv2d" in names["flow.nn"]
    assert {f"{space}.{name}" for space in names for name in names[space]} == {
        name for entry in entries() for name in (entry.name, *entry.others)
    }


def test_the_search_finds_functions_and_not_their_ops() -> None:
    """Each heading is a page of its own for the search."""
    headings = re.findall("^#+ .*conv2d.*$", text_of("flow.nn.conv2d"), re.M)
    assert headings == ["# flow.nn.conv2d"]


def test_names_in_text_become_links() -> None:
    targets = {"flow.nn.relu": "reference/flow.nn.relu.md"}
    text = "`flow.nn.relu` [`flow.nn.relu`](x)\n\n```\n`flow.nn.relu`\n```\n"
    expected = text.replace("`", "[`", 1).replace("` ", "`](../reference/flow.nn.relu.md) ", 1)
    assert linked(text, "howto/page.md", targets) == expected


def test_compact_pages_keep_code() -> None:
    text = '<p>\n\n  a</p><pre>\n\n  b\n</pre>\n\n<script>"\n\n"</script>'
    assert compact(text) == '<p>\na</p><pre>\n\n  b\n</pre>\n<script>"\n\n"</script>'
    picture = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    assert compact(picture) == '<svg viewBox="0 0 1 1"></svg>'


def test_facts_are_about_public_names() -> None:
    facts = tomllib.loads((ROOT / "docs/reference_pages/facts.toml").read_text())
    assert set(facts) <= {entry.name for entry in entries()}
    assert {key for fact in facts.values() for key in fact} <= {"formula", "oneflow", "torch"}


@pytest.mark.parametrize(
    "layer",
    [
        lambda x, **given: flow.layers.dense(x, 4, **given),
        lambda x, **given: flow.layers.conv1d(x, 4, 3, **given),
        lambda x, **given: flow.layers.conv2d(flow.reshape(x, (2, 3, 3, 3)), 4, 3, **given),
        lambda x, **given: flow.layers.conv3d(flow.reshape(x, (2, 1, 3, 3, 3)), 4, 3, **given),
    ],
    ids=["dense", "conv1d", "conv2d", "conv3d"],
)
def test_layers_start_as_their_pages_say(layer: Callable[..., Any], request: Any) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 9))) -> tp.Numpy:
        return layer(x, name="layer")

    job(np.ones((2, 3, 9), np.float32))
    weight = flow.get_all_variables()["layer-weight"].numpy()
    text = text_of(f"flow.layers.{request.node.callspec.id}")
    assert weight.any() != ("start at zero" in text)
    flow.clear_default_session()


def test_every_page_is_in_the_navigation() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")]
    missing = [page for page in pages if f" {page}\n" not in site]
    assert not missing, f"mkdocs.yml: add a line to nav, such as '- Title: {missing[0]}'; {missing}"
