"""Compare the forms that the search finds with forms written by hand, in the simulator.

    python search_forms.py gpt:16 gpt_short:16 bert:16 resnet50:16     # network:devices
    python search_forms.py --limit 24 --layers 4 gpt:16

All forms are compiled for one device of each class, and simulated with the links and devices of
cluster.toml.  A row has the time of a step and the bytes per device without a limit of memory, and
within the limit.  There, a form by hand is tried as it is and with the activations of each layer
computed again, and the faster of those that fit counts; the search starts from the job without
hints and combines stages, grids, layouts, states in parts, recomputation, and micro-batches.  The
compiler searches only for jobs that do not fit as they are; without a limit, the script calls the
search itself.  The last column is the time divided by that of the search, the least of both cases.
"""

import argparse
import os
import time
from dataclasses import replace
from math import inf
from pathlib import Path

os.environ.setdefault("FLOW_TOPOLOGY", str(Path(__file__).parent / "cluster.toml"))
os.environ.setdefault("FLOW_PLAN_CACHE", "0")

from search_jobs import EACH, NETWORKS, NO_HINTS, Transformer, forms

import oneflow as flow
from flow_core.base.errors import FlowError
from flow_core.compiler.digest import request_digest
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.forms.search import Search, Steps
from flow_core.frontend.job.forms.table import KINDS
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.sharding.topology import Device


def searches(make, form, devices, limits, kinds=(), seconds=0.0):
    """Return a search for forms of a job for each limit; without kinds, of the job as it is.

    What one of them has compiled, the next ones do not compile again.
    """
    flow.clear_default_session()
    flow.config.machine_num(max(1, devices // EACH))
    job = make(form, devices)
    variant, known, found = job.traced_with(job.config), {}, []

    def traced(parts, stages):
        return variant.in_form(parts, stages).source

    def compiled(request):
        # the order of a pipeline depends on the limit
        key = request_digest(request), request.limits.memory(Device("null", 0, 0))
        if key not in known:
            known[key] = compile_with_fallback(request)
        return replace(known[key], request=request)

    for limit in limits:

        def request(source, limit=limit):
            found = compile_request(source.build, source.values, source.inputs, devices=())
            most = replace(found.limits, memory=lambda d: limit if d.type == "null" else None)
            return replace(found, limits=most, share_replicas=False)

        search = Search(variant.source, Steps(traced, request, compiled))
        search.run(kinds, seconds)
        found.append(search)
    return found


def by_hand(make, form, devices, limit):
    """Return a form as it is, and the faster form of those that fit; None if none does."""
    plain = searches(make, form, devices, [None])[0].tried[0]
    if plain.nbytes <= limit or not isinstance(make, Transformer):
        return plain, plain if plain.nbytes <= limit else None
    again = searches(make, replace(form, again=True), devices, [None])[0].tried[0]
    return plain, again if again.nbytes <= limit else None


def cells(form):
    if form is None:
        return "does not fit | "
    return f"{form.seconds * 1e3:,.1f} ms | {form.nbytes / 2**30:.1f} GiB"


def compare(name, devices, make, limit, seconds):
    """Print the table of a network, and return the least ratio of a form by hand."""
    started = time.process_time()
    found = searches(make, NO_HINTS, devices, (None, limit), KINDS, seconds)
    used = time.process_time() - started
    best = [next(iter(search.fitting), None) for search in found]
    print(f"\n{name} on {devices} devices, limit {limit / 2**30:g} GiB\n")
    print("| form | step | memory | step within the limit | memory | by the search's |")
    print("|---|---|---|---|---|---|")
    print(f"| search | {cells(best[0])} | {cells(best[1])} | 1.00 |", flush=True)
    least = inf
    for title, form in forms(devices, isinstance(make, Transformer)).items():
        try:
            hand = by_hand(make, form, devices, limit)
        except FlowError as error:
            print(f"| {title} | {str(error).splitlines()[0]} | | | | |", flush=True)
            continue
        pairs = [(a, b) for a, b in zip(hand, best, strict=True) if a is not None]
        ratio = min(a.seconds / b.seconds if b else 0.0 for a, b in pairs)
        least = min(least, ratio)
        print(f"| {title} | {cells(hand[0])} | {cells(hand[1])} | {ratio:.3f} |", flush=True)
    for what, form, search in zip(("no", "the"), best, found, strict=True):
        chosen = "none fits" if form is None else form.name
        left = f", {search.left} left" if search.left else ""
        print(f"\nsearch with {what} limit: {chosen}; {len(search.tried)} forms{left}")
    print(f"\n{used:.0f} s of CPU time for both searches", flush=True)
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases",
        nargs="*",
        default=["gpt:16", "gpt_short:16", "gpt:64", "bert:16", "resnet50:16", "wide_deep:16"],
    )
    parser.add_argument("--layers", type=int, help="layers of transformers")
    parser.add_argument("--limit", type=float, default=16.0, help="GiB of each device")
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of a search")
    options = parser.parse_args()
    least = {}
    for case in options.cases:
        name, devices = case.split(":")
        make = NETWORKS[name]
        if options.layers and isinstance(make, Transformer):
            make = replace(make, layers=options.layers)
        limit = round(options.limit * 2**30)
        least[case] = compare(name, int(devices), make, limit, options.seconds)
    beaten = [case for case, ratio in least.items() if ratio < 1]
    print(f"\na form by hand is faster than the search's: {', '.join(beaten) or 'never'}")


if __name__ == "__main__":
    main()
