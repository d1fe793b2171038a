"""What `pip install "headgate[server]"` brings, in an environment that knows nothing of this clone.

What both wheels name as needed is linked in from the environment of the tests, and nothing else: nothing is
downloaded, and what they use without naming it is missed.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OURS = {"headgate", "headgate-server"}

JOBS = """
from headgate import App

app = App("media")


@app.job
def double(number: int) -> int:
    return 2 * number
"""

# Names that are the services', too: those of the user are the user's.
SERVICES = "CANARY = True\n"

TEST = """
import services
from jobs import double


def test_a_job(headgate_stack):
    with headgate_stack.worker("jobs:app"):
        assert double.enqueue(21).result(timeout_s=60) == 42
    assert services.CANARY
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheels")
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", place)
    run(sys.executable, "-m", "pip", *build, ROOT, ROOT / "server")
    return place


@pytest.fixture(scope="module")
def binaries(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment into which `headgate[server]` was installed from wheels."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    for there in {there for name in needed(wheels) for there in places(distribution(name))}:
        (packages / there.name).symlink_to(there)
    python = place / "bin" / "python"
    offline = ("--quiet", "--no-index", "--find-links", wheels, "headgate[server]")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline)
    return python.parent


def needed(wheels: Path) -> set[str]:
    """The distributions that `headgate[server]` asks for, with what they need, and pytest's."""
    ours = {wheel.name.partition("-")[0].replace("_", "-"): metadata_of(wheel) for wheel in wheels.iterdir()}
    asked = [Requirement("headgate[server]"), Requirement("pytest")]
    seen: set[str] = set()
    while asked:
        requirement = asked.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found = ours.get(requirement.name) or distribution(requirement.name)
        extras = requirement.extras or {""}
        for text in found.requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
                asked.append(wanted)
    return {Requirement(text).name for text in seen} - OURS


def metadata_of(wheel: Path) -> Distribution:
    (place,) = (place for place in zipfile.Path(wheel).iterdir() if place.name.endswith(".dist-info"))
    return PathDistribution(place)


def places(found: Distribution) -> set[Path]:
    """The files and directories of a distribution that lie beside those of others."""
    names = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    return {Path(str(found.locate_file(name))) for name in names}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command to its end; what it wrote, which is shown where it fails."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HEADGATE_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=cwd, env=inherited, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_fresh_environment_has_a_stack_a_worker_and_its_results(binaries: Path, tmp_path: Path) -> None:
    for name, text in (("jobs.py", JOBS), ("services.py", SERVICES), ("test_jobs.py", TEST)):
        (tmp_path / name).write_text(text)

    said = run(binaries / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)

    assert "1 passed" in said


def test_nothing_of_a_common_name_lies_beside_other_packages(wheels: Path) -> None:
    beside = {
        Path(name).parts[0]
        for wheel in wheels.iterdir()
        for name in zipfile.ZipFile(wheel).namelist()
        if ".dist-info" not in name
    }

    assert beside == {"headgate", "headgate_server"}


def test_the_launcher_and_the_tools_say_what_they_take(binaries: Path, tmp_path: Path) -> None:
    assert "HEADGATE_DATA_DIR" in run(binaries / "headgate", "up", "--help", cwd=tmp_path)
    assert "shards" in run(binaries / "headgate-server", "migrations", "--help", cwd=tmp_path)


def test_without_the_services_up_says_what_to_install(wheels: Path, tmp_path: Path) -> None:
    """The SDK alone, straight out of its wheel."""
    (sdk,) = wheels.glob("headgate-*.whl")
    paths = f"sys.path[:] = [{str(sdk)!r}, *sys.path, {sysconfig.get_path('purelib')!r}]"
    program = f"import sys; {paths}; from headgate._cli.program import main; main(['up', '--fresh'])"

    said = run(sys.executable, "-S", "-c", program, cwd=tmp_path)

    assert 'pip install "headgate[server]"' in said
