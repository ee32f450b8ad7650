"""Values of blobs while a job function runs, for eager mode."""

from __future__ import annotations

import numpy as np

from flow_core.frontend.job.compile import Compilation
from flow_core.frontend.job.differentiate import STEP_VARIABLE
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.results import Fetched, LocalBlob
from flow_core.runtime.executable import Executable


def evaluate_blob(blob: BlobDef) -> LocalBlob:
    """Return the value of a blob in the call that defines its job.

    The ops on which the blob depends are compiled and run separately, on the arrays of that call
    and with the values that variables had before the call.  The function is traced again at its
    next call.
    """
    build: JobBuild = blob.job
    results = [*blob.parts, *(() if blob.rows is None else blob.rows.count.parts)]
    session = build.session
    compiled = Compilation(Source(build, results, build.inputs), effects=False).compiled()
    executable = Executable(
        compiled.plan,
        session.registry,
        session.driver,
        session.variable,
        comm=session.registry.comm,
        step=np.array(_step(build), np.int64),
        writes=session.writes,
    )
    found = executable.run(build.fed or ())
    return LocalBlob(Fetched(slice(0, len(blob.parts)), blob).of(found))


def _step(build: JobBuild) -> int:
    """Return the number of the step; a redefined train job continues the earlier job's count."""
    try:
        return int(build.session.value(STEP_VARIABLE.format(job=build.name))[0])
    except KeyError:
        return int(build.step)
