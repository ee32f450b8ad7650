"""The form of a job that a search has found, kept on disk beside the plan of the form.

A file has the changes of the form and the report on the search.  A second start makes the request
of the form from the changes, and finds its plan as that of any request.  The form of a search is
also the cheapest one on devices with less memory, if it fits; devices with more may run a cheaper
one, which is then searched for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from flow_core.base.decoding import Decoder, Mismatch, parsed
from flow_core.base.errors import GraphError
from flow_core.compiler.digest import digest
from flow_core.compiler.kept_plans import Entry
from flow_core.compiler.limits import needed_bytes
from flow_core.compiler.request import Compiled, CompileRequest, Limits
from flow_core.compiler.searched import Searched
from flow_core.frontend.config.function_config import MEMORY_SEARCH
from flow_core.frontend.job.forms.source import Source
from flow_core.sharding.topology import Device

FORMAT = "flow kept form 2"
"""The name and version of the format, which are part of the keys."""


@dataclass(frozen=True, slots=True)
class KeptForm:
    """What is kept of a search."""

    price: float  # the factor on the price of memory with which the layouts were chosen
    memory: Mapping[str, int | None]  # of each device for the plan; None for no limit
    searched: Searched

    def applies(self, limits: Limits) -> bool:
        """Return whether no device has more memory than when the form was searched for."""
        pairs = [(limits.memory(Device.parse(name)), most) for name, most in self.memory.items()]
        return all(most is None or (now is not None and now <= most) for now, most in pairs)


def keep_form(entry: Entry, source: Source, compiled: Compiled) -> None:
    """Keep the form that a search has found, and its plan."""
    of_form = Entry.of(replace(compiled.request, hosted={}), entry.plans.limit)
    if of_form is None or compiled.searched is None:
        return
    limits, devices = entry.request.limits, needed_bytes(compiled.plan)
    memory = {str(device): limits.memory(device) for device in devices}
    form = KeptForm(compiled.request.memory_price, memory, compiled.searched)
    of_form.keep(compiled)
    entry.plans.write(_key(entry, source), json.dumps(asdict(form)).encode())


def kept_form(
    entry: Entry, source: Source, request: Callable[[Searched], CompileRequest | None]
) -> Compiled | None:
    """Return the form that is kept for a job, with its plan; None if none applies.

    Args:
        entry: the place of the plan of the job as it is.
        request: returns the request of a form from the report on its search; None if the changes
            of the form cannot be made to the job.
    """
    form = entry.plans.decoded(_key(entry, source), decoded)
    wanted = None if form is None else request(form.searched)
    if form is None or wanted is None:
        return None
    of_form = Entry.of(replace(wanted, memory_price=form.price), entry.plans.limit)
    found = None if of_form is None else of_form.find()  # None if a device is missing
    if found is None or not form.applies(entry.request.limits):
        return None
    return replace(found, searched=form.searched)


def decoded(content: bytes) -> KeptForm:
    """Return what the content of a file represents; raises `Mismatch`."""
    form: KeptForm = Decoder().decode(KeptForm, parsed(content))
    for name in form.memory:
        try:
            Device.parse(name)
        except GraphError:
            raise Mismatch(f"{name!a:.60}", "a device") from None
    return form


def _key(entry: Entry, source: Source) -> tuple[str, ...]:
    """Return the key of a job's form: the key of its plan, and the other inputs of the search."""
    allowed, held = source.build.config.get(MEMORY_SEARCH), entry.request.limits.held
    return (FORMAT, *entry.key, str(allowed), digest(held))
