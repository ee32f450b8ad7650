"""The page of a plan: what is in it, and that a browser shows it without any network."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.observe.document import document
from flow_core.observe.layout import MOST_CHILDREN, WIDEST, layout
from flow_core.observe.measure import arranged, measure
from flow_core.observe.page import embedded, page, page_data

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=3000", "--window-size=1400,900",
    "--proxy-server=127.0.0.1:9",  # nothing listens here: no network
)  # fmt: skip

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium")


def small() -> Any:
    """A train job on four devices, with a name that is a trap."""

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            begin = flow.random_normal_initializer()
            name = "</script><b>hidden"
            x = flow.layers.dense(x, 8, flow.nn.relu, kernel_initializer=begin, name=name)
            x = flow.layers.dense(x, 4, name="output")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x, name="loss")
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return job


def deep(layers: int) -> Any:
    """A job with three ops per layer and no scopes."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            for i in range(layers):
                x = flow.math.tanh(flow.matmul(x, flow.get_variable(f"w{i}", (4, 4))))
        return x

    return job


def browse(file: Path, *options: str, at: str = "") -> tuple[str, str]:
    """What Chromium makes of a page: the document, and what it says."""
    profile = file.parent / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *options, f"file://{file}{at}"]
    done = processes.run(command, check=True)
    return done.stdout, done.stderr


# ---------------------------------------------------------------------------------- the layout


def test_layers_go_down_and_rows_are_not_too_wide() -> None:
    names = [f"a/x{i}" for i in range(30)] + ["b"]
    edges = [(i, 30) for i in range(30)] + [(0, 1)]
    nodes = layout(names, edges)
    by_op = {node.op: node for node in nodes if node.op >= 0}
    assert by_op[0].layer < by_op[1].layer
    for scope in nodes:
        places = [(nodes[child].layer, nodes[child].order) for child in scope.children]
        assert len(set(places)) == len(places)
        assert max((order for _, order in places), default=0) < WIDEST


def test_scopes_have_not_too_many_children_and_lose_no_op() -> None:
    count = 5000
    nodes = layout([f"op{i}" for i in range(count)], [(i, i + 1) for i in range(count - 1)])
    assert sorted(node.op for node in nodes if node.op >= 0) == list(range(count))
    assert max(len(node.children) for node in nodes) <= MOST_CHILDREN
    for number, node in enumerate(nodes):
        assert all(nodes[child].parent == number for child in node.children)


def test_states_of_optimizers_are_with_the_updates() -> None:
    names = ["w", "w-momentum", "w_optimizer", "fc/grad/matmul"]
    nodes = layout(names, [(0, 2), (1, 2), (3, 2)])
    phases = {}
    for node in nodes:
        above = node
        while above.parent > 0:
            above = nodes[above.parent]
        phases[node.op] = above.label
    assert [phases[i] for i in range(4)] == ["update", "update", "update", "backward"]


# ------------------------------------------------------------------------------------ the data


def test_edges_say_what_is_boxed() -> None:
    job = small()
    doc = document(job)
    data = page_data(doc)
    names = [op.name for op in doc.ops]
    moved = [edge[4] for edge in data["edges"] if edge[4] >= 0]  # for each reader anew
    used = sum(e.nbytes for e in doc.plan.ledger if "returns it" not in e.why)
    assert 0 < max(moved) <= used <= sum(moved)
    boxed = [edge for edge in data["edges"] if edge[4] >= 0]
    (bias,) = [e for e in boxed if names[e[0]] == "output-bias_add/grad/reduce_sum"]
    assert bias[2:] == ("P", "B", 2 * 3 * 4 * 4)
    assert not [e for e in boxed if names[e[0]].startswith("Input_")]  # fed where it is wanted


def test_memory_is_within_the_arena_and_nothing_overlaps() -> None:
    plan_data = page_data(document(small()))
    for _, total, __, blocks in plan_data["arenas"]:
        assert blocks
        for i, (offset, size, first, last, *_) in enumerate(blocks):
            assert offset >= 0
            assert offset + size <= total
            assert first <= last < len(plan_data["tasks"])
            for other in blocks[:i]:
                apart = other[0] + other[1] <= offset or offset + size <= other[0]
                assert apart or other[3] < first or last < other[2]


def test_numbered_scopes_are_folded() -> None:
    names = [f"block{i}/{op}" for i in range(12) for op in ("matmul", "relu")] + ["loss"]
    nodes = layout(names, [(i, i + 1) for i in range(len(names) - 1)])
    forward = next(node for node in nodes if node.label == "forward")
    assert [nodes[child].label for child in forward.children] == ["block0 … block11", "loss"]
    assert sorted(node.op for node in nodes if node.op >= 0) == list(range(len(names)))
    few = layout([f"block{i}/{op}" for i in range(3) for op in "ab"] + ["loss"], [])
    assert not [node for node in few if "…" in node.label]


def test_series_that_alternate_are_one_scope() -> None:
    """As two scopes, each would depend on the other."""
    names = [f"{kind}{i}/{op}" for i in range(6) for kind in ("conv", "norm") for op in "ab"]
    names += ["short1/a", "short1/b", "loss"]
    nodes = layout(names, [(i, i + 1) for i in range(len(names) - 1)])
    (forward,) = (node for node in nodes if node.label == "forward")
    labels = [nodes[child].label for child in forward.children]
    assert labels == ["conv0 … norm5", "short1", "loss"]
    assert [nodes[child].layer for child in forward.children] == [0, 1, 2]


def test_the_ledger_is_sorted_by_cost() -> None:
    data = page_data(document(deep(6)))
    moving = [row for row in data["ledger"] if row[4]]
    assert data["ledger"][: len(moving)] == moving
    assert [row[5] for row in moving] == sorted((row[5] for row in moving), reverse=True)


def test_times_of_ops_add_up_to_those_of_classes() -> None:
    job = small()
    for data in (page_data(document(job)), page_data(document(job), measure(job))):
        assert len(data["times"]) == len(data["tasks"])
        assert sum(row[1] for row in data["classes"]) == len(data["tasks"])
        total = sum(row[2] for row in data["classes"])
        assert total == pytest.approx(sum(data["times"]), rel=0.05)
        assert sum(row[3] for row in data["classes"]) == pytest.approx(1, abs=0.01)


def test_spans_keep_the_order_of_streams_and_waits() -> None:
    plan = small().plan()
    for workers in (1, 4):
        spans = {
            s.task: s
            for s in arranged(
                replace(plan, workers=workers), dict.fromkeys(range(len(plan.tasks)), 1.0)
            )
        }
        for i, task in enumerate(plan.tasks):
            assert spans[i].seconds == pytest.approx(1)
            assert all(spans[other].stop <= spans[i].start for other in task.waits)
        last = max(span.stop for span in spans.values())
        assert last <= len(plan.tasks) if workers == 4 else last == pytest.approx(len(plan.tasks))


def test_every_task_is_measured_once_and_variables_stay() -> None:
    job = small()
    spans = measure(job).spans
    assert sorted(span.task for span in spans) == list(range(len(job.plan().tasks)))
    assert all(span.start <= span.stop for span in spans)
    assert flow.get_all_variables()["System-Train-TrainStep-job"].numpy() == 0


def test_data_cannot_end_their_script() -> None:
    text = embedded({"name": "</script><!-- & \u2028 é"})
    assert not re.search("[<&\u2028]", text)
    assert json.loads(text) == {"name": "</script><!-- & \u2028 é"}


def test_the_page_asks_for_nothing() -> None:
    text = page(document(small()))
    assert "default-src 'none'" in text
    assert not re.search(r"(https?:)?//[a-z]+\.", text.split('id="data"')[0])
    assert not re.findall(r"<(?:script|img|iframe)[^>]+src|@import|url\(", text)


# ---------------------------------------------------------------------------------- the browser


RESOURCES = """
<script>
const asked = performance.getEntriesByType("resource").map((entry) => entry.name);
document.body.dataset.asked = JSON.stringify(asked.filter((name) => !name.startsWith("data:")));
</script>
</body>"""


@needs_chromium
def test_a_browser_shows_it_and_asks_for_nothing(tmp_path: Path) -> None:
    job = small()
    file = tmp_path / "page.html"
    text = page(document(job), measure(job)).replace("</body>", RESOURCES)
    file.write_text(text, encoding="utf-8")
    dom, said = browse(file, "--dump-dom")
    assert 'data-ready="yes"' in dom
    assert "CONSOLE" not in said
    for op in document(job).ops:
        assert op.name.replace("<", "&lt;").replace(">", "&gt;") in dom
    assert re.search(r'<canvas[^>]* data-nodes="[1-9]', dom)
    for entry in document(job).plan.ledger:
        assert re.search(rf"<td[^>]*>{entry.steps[0]}</td>", dom)
    for name in document(job).plan.streams:
        assert f"<td>{name}</td>" in dom or f'<td class="">{name}</td>' in dom
    assert 'data-asked="[]"' in dom


PROBE = """
<script>
addEventListener("error", (e) => { document.body.dataset.error = e.message; });
for (const name of ["ops", "ledger", "streams", "memory", "time", "graph"]) {
  document.querySelectorAll("nav button").forEach((b) => b.textContent.toLowerCase() === name
    && b.click());
}
for (const name of ["open all", "fit"])
  [...document.querySelectorAll("button")].find((b) => b.textContent === name).click();
requestAnimationFrame(() => requestAnimationFrame(() => {
  const search = document.querySelector("input[type=search]");
  document.body.dataset.all = document.querySelector("canvas").dataset.nodes;
  search.value = "tanh_70";
  search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  document.body.dataset.detail = document.querySelector("aside h2").textContent;
}));
</script>
</body>"""


FIRST_VIEW = """
<script>
addEventListener("error", (e) => { document.body.dataset.error = e.message; });
setTimeout(() => {
  const canvas = document.querySelector("canvas");
  document.body.dataset.marks = canvas.dataset.marks;
  document.body.dataset.side = document.querySelectorAll("aside .badge").length;
  canvas.focus();
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  press("ArrowDown");
  document.body.dataset.first = document.querySelector("aside h2").textContent;
  press("ArrowDown");
  document.body.dataset.second = document.querySelector("aside h2").textContent;
  const head = [...document.querySelectorAll("#section-ledger th")].find(
    (th) => th.textContent === "bytes");
  head.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
  document.body.dataset.sorted = head.getAttribute("aria-sort");
  document.body.dataset.focusable = [...document.querySelectorAll("tr.link, th, nav button")]
    .every((e) => e.tabIndex >= 0 || e.getAttribute("role") === "tab");
  document.body.dataset.back = getComputedStyle(document.body).backgroundColor;
  const fits = [...document.querySelectorAll("table")].every(
    (t) => t.scrollWidth <= Math.max(t.parentElement.clientWidth, 1280));
  document.body.dataset.fits = fits;
}, 100);
</script>
</body>"""


@needs_chromium
@pytest.mark.parametrize(
    ("options", "color"),
    [
        (("--window-size=1280,800",), "rgb(246, 248, 250)"),
        (("--window-size=1280,800", "--blink-settings=preferredColorScheme=0"), "rgb(16, 22, 29)"),
    ],
)
def test_the_first_view_marks_transfers_and_works_by_keyboard(
    tmp_path: Path, options: tuple[str, ...], color: str
) -> None:
    file = tmp_path / "page.html"
    doc = document(small())
    file.write_text(page(doc).replace("</body>", FIRST_VIEW), encoding="utf-8")
    dom, said = browse(file, "--dump-dom", *options)
    (body,) = re.findall("<body[^>]*>", dom)
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', body))
    assert "error" not in found, found
    assert "CONSOLE" not in said, said
    moving = sum(bool(e.nbytes) for e in doc.plan.ledger)
    assert int(found["side"]) == min(moving, 5) > 0
    assert int(found["marks"]) > 0
    assert found["first"] != found["second"]
    assert found["sorted"] == "descending"
    assert found["focusable"] == found["fits"] == "true"
    assert found["back"] == color


def nested(layers: int) -> Any:
    """A train job of a network within a scope, of layers that are scopes."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        with flow.scope.namespace("network"):
            for i in range(layers):
                begin = flow.random_normal_initializer()
                name = f"{'abcdefghijklmnopqrstuvwxyz'[i]}_layer"
                x = flow.layers.dense(x, 4, flow.math.tanh, kernel_initializer=begin, name=name)
        loss = flow.math.reduce_mean(x, name="loss")
        flow.optimizer.Adam(0.1).minimize(loss)
        return loss

    return job


OPEN = """
<script>
const keep = () => {
  const {open, scale} = document.querySelector("canvas").dataset;
  Object.assign(document.body.dataset, {open, scale});
};
setTimeout(keep, 100);
</script>
</body>"""


@needs_chromium
@pytest.mark.parametrize(
    ("layers", "window", "scopes"),
    [(5, "1280,800", 2), (12, "1280,800", 2), (12, "390,844", 1)],
    ids=["small", "large", "phone"],
)
def test_the_first_view_opens_what_the_user_wrote(
    tmp_path: Path, layers: int, window: str, scopes: int
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(document(nested(layers))).replace("</body>", OPEN), encoding="utf-8")
    dom, _ = browse(file, "--dump-dom", f"--window-size={window}")
    (body,) = re.findall("<body[^>]*>", dom)
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', body))
    opened = found["open"].split()
    assert opened.count("forward") == scopes  # the forward ops, and the scope of the network
    assert float(found["scale"]) >= 0.6  # labels are legible


@needs_chromium
def test_a_large_graph_can_be_opened_and_searched(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    doc = document(deep(400))
    assert len(doc.ops) == 1201
    text = page(doc).replace("</body>", PROBE)
    file.write_text(text, encoding="utf-8")
    dom, said = browse(file, "--dump-dom")
    (body,) = re.findall("<body[^>]*>", dom)
    assert "data-error" not in body
    assert "CONSOLE" not in said
    assert 'data-all="1201"' in body
    assert 'data-detail="tanh_70"' in body
