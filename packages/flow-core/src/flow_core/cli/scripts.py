"""Running a user's script, and getting a job out of one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from flow_core.errors import JobError, nearest

if TYPE_CHECKING:  # the compiler is loaded when a plan is asked for
    from flow_core.observe.document import PlanDocument


def run_script(script: str, args: Sequence[str], emulate_gpus: int | None) -> NoReturn:
    """Runs a script in place of this process, with the environment that the options ask for.

    A new interpreter gives the script its own ``__main__``, ``sys.argv``, ``sys.path``, exit
    status and signals; nothing that this command imported is in its way.
    """
    environment = dict(os.environ)
    if emulate_gpus is not None:
        environment["ONEFLOW_EMULATE_GPUS"] = str(emulate_gpus)
    command = [sys.executable, script, *args]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    sys.exit(subprocess.call(command, env=environment))  # Windows cannot replace a process


def job_of(target: str, args: Sequence[str] = ()) -> Any:
    """The job that ``script.py:job`` names; the script is imported for it.

    Args:
        target: script and job.
        args: what the script finds in ``sys.argv`` behind its own name.

    Raises:
        JobError: there is no such script or job.
    """
    path, separator, name = target.rpartition(":")
    if not (separator and name.isidentifier() and Path(path).is_file()):
        raise JobError(
            f"looking for job {target!r}",
            found="no such file" if separator else "no name of a job",
            allowed="script.py:job, a file and the name of a job function in it",
        )
    module = _import_file(Path(path), args)
    if not hasattr(module, name):
        jobs = [n for n, v in vars(module).items() if _is_job(v)]
        raise JobError(
            f"looking for job {name!r} in {path}",
            found="nothing of that name",
            allowed=", ".join(jobs) or "the script defines no job at its top level",
            hint=nearest(name, jobs) or None,
        )
    return getattr(module, name)


def document_of(target: str, hints: int = 0, args: Sequence[str] = ()) -> PlanDocument:
    """The plan of ``script.py:job``, or one that ``flow plan --json`` has written.

    Raises:
        JobError: there is no such script or job.
        PlanError: the file is no saved plan.
    """
    from flow_core.frontend.session import ResourceConfig, clear_default_session, default_session
    from flow_core.observe.document import PlanDocument, document

    if target.endswith(".json") and Path(target).is_file():
        return PlanDocument.from_json(Path(target).read_text(encoding="utf-8"))
    found = document(job_of(target, args), hints)
    clear_default_session()  # the next script may have jobs and variables of the same names
    default_session().resources = ResourceConfig()
    return found


def write_page(target: str, file: str, hints: int, args: Sequence[str] = ()) -> None:
    """Writes the page of ``script.py:job``, with a step measured now, or of a saved plan."""
    from flow_core.observe.document import PlanDocument, document
    from flow_core.observe.measure import measure
    from flow_core.observe.page import page

    if target.endswith(".json") and Path(target).is_file():
        text = page(PlanDocument.from_json(Path(target).read_text(encoding="utf-8")))
    else:
        job = job_of(target, args)
        text = page(document(job, hints), measure(job))
    Path(file).write_text(text, encoding="utf-8")


def _is_job(value: object) -> bool:
    return type(value).__module__.startswith("flow_core.frontend")


def _import_file(path: Path, args: Sequence[str]) -> ModuleType:
    """Imports a script with the ``sys.argv`` and ``sys.path`` that it would have as a program."""
    name = f"flow_plan_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobError(f"importing {path}", found="not a Python file", allowed="script.py:job")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module
