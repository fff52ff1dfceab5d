"""The files around the package say what is true: pins, dependencies, links, commands, fragments."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "state/README.md", ROOT / "trees/README.md"]


def _normal(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def _pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {_normal(name): version for name, version in (line.split("==") for line in lines)}


def test_a_constraint_is_a_plain_name_and_version():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.+!]*", line)]

    assert odd == []
    assert lines == sorted(lines, key=str.lower)


def _asked_for() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *extras["postgres"], *extras["dev"], "hatchling", "editables"]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "adw"]


def _pulled_in_by(requirement: Requirement) -> list[Requirement]:
    """Return what an installed package needs here, with the extras that were asked for."""
    try:
        needs = [Requirement(text) for text in metadata.requires(requirement.name) or []]
    except metadata.PackageNotFoundError:
        return []  # the demo's environment has fewer
    extras = ["", *requirement.extras]

    return [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": e}) for e in extras)]


def test_everything_that_is_installed_is_pinned():
    wanted, seen = _asked_for(), set()
    while wanted:
        requirement = wanted.pop()
        name = _normal(requirement.name), *sorted(requirement.extras)
        if name not in seen:
            seen.add(name)
            wanted += _pulled_in_by(requirement)

    assert {name for name, *_ in seen} - set(_pins()) == set()


def test_a_pin_lies_within_what_the_project_asks_for():
    pins = _pins()
    wrong = [str(r) for r in _asked_for() if not r.specifier.contains(pins[_normal(r.name)])]

    assert wrong == []


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("At run time", PROJECT["project"]["dependencies"]),
        ("With `adw[postgres]`", PROJECT["project"]["optional-dependencies"]["postgres"]),
        ("For development", PROJECT["project"]["optional-dependencies"]["dev"]),
    ],
    ids=["runtime", "postgres", "dev"],
)
def test_every_dependency_is_explained(section, names):
    page = (ROOT / "docs" / "architecture.md").read_text()
    text = page.split(f"### {section}\n")[1].split("\n##")[0]
    explained = re.findall(r"^- `([a-z0-9-]+)` \(", text, flags=re.MULTILINE)

    assert sorted(explained) == sorted({_normal(name) for name in names} - {"adw"})


def test_every_link_between_pages_leads_somewhere():
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]

    assert broken == []


def test_the_readme_names_every_page():
    readme = (ROOT / "README.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme]

    assert missing == []


def test_a_fragment_has_a_topic_and_a_kind():
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    shape = re.compile(r"[a-z0-9-]+\.(added|changed|fixed|removed|security)\.md")

    assert [name for name in names if not shape.fullmatch(name)] == []


def test_the_package_says_that_it_has_types():
    assert (ROOT / "adws" / "py.typed").exists()


SCRIPTS = ("scripts/test", "scripts/demo", "scripts/check", "scripts/soak/all", "scripts/soak/workflows")


@pytest.mark.parametrize("script", [*SCRIPTS, pytest.param(".ci/run", marks=pytest.mark.bash)])
def test_a_script_can_be_run_and_is_sound_shell(script):
    path = ROOT / script
    shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"

    assert os.access(path, os.X_OK)
    assert subprocess.run([shell, "-n", path], check=False).returncode == 0


def test_the_build_machine_runs_the_test_command_of_the_readme():
    assert re.search(r"^scripts/test\b", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    assert "scripts/test" in (ROOT / "README.md").read_text()


def test_run_time_directories_are_ignored_but_for_their_readme():
    ignored = (ROOT / ".gitignore").read_text().splitlines()

    assert {"/state/*", "!/state/README.md", "/trees/*", "!/trees/README.md"} <= set(ignored)
