"""Which hosts and files a box opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.sandbox import policy
from adws.adw_modules.sandbox.policy import GitPlaces, Surroundings


@pytest.mark.parametrize(
    ("egress", "host", "port", "is_allowed"),
    [
        (("api.example.com",), "api.example.com", 443, True),
        (("api.example.com",), "API.example.com.", 443, True),
        (("api.example.com",), "api.example.com", 22, False),
        (("api.example.com:22",), "api.example.com", 22, True),
        (("api.example.com:22",), "api.example.com", 443, False),
        (("*.example.com",), "a.b.example.com", 443, True),
        (("*.example.com",), "example.com", 443, False),
        (("*.example.com",), "example.com.attacker.net", 443, False),
        (("[::1]:80",), "::1", 80, True),
        ((), "example.com", 443, False),
    ],
)
def test_only_listed_hosts_and_ports_are_allowed(egress, host, port, is_allowed):
    assert bool(policy.match(egress, host, port)) is is_allowed


@pytest.mark.parametrize(
    ("entry", "address", "is_refused"),
    [
        ("example.com", "93.184.216.34", False),
        ("example.com", "127.0.0.1", True),
        ("example.com", "::1", True),
        ("example.com", "::ffff:127.0.0.1", True),
        ("example.com", "169.254.169.254", True),
        ("169.254.169.254", "169.254.169.254", False),
        ("example.com", "fe80::1%eth0", True),
        ("example.com", "0.0.0.0", True),
        ("git.internal", "10.1.2.3", False),
        ("*.internal", "10.1.2.3", True),
        ("*", "100.100.100.200", True),
        ("*", "fd00:ec2::254", True),
        ("metadata.internal", "fd00:ec2::254", True),
        ("*", "168.63.129.16", True),
        ("168.63.129.16", "168.63.129.16", False),
        ("example.com", "64:ff9b::a9fe:a9fe", True),
        ("example.com", "64:ff9b::5db8:d822", False),
        ("example.com", "2002:7f00:1::", True),
        ("localhost:8080", "127.0.0.1", False),
        ("localhost:8080", "::1", False),
    ],
)
def test_inner_addresses_are_refused_unless_they_are_listed(entry, address, is_refused):
    assert bool(policy.refusal(entry, address)) is is_refused


def make(place: Path, **options) -> policy.Policy:
    for name in (
        "work",
        "scratch/home",
        "scratch/tmp",
        "scratch/out",
        "person/.claude",
        "person/.ssh",
        "git/objects/info",
        "git/refs/heads",
        "git/own",
    ):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "git" / "config").touch()
    env = {"PATH": "/usr/bin", "ANTHROPIC_BASE_URL": "http://127.0.0.1:4000/v1"}
    return policy.build(
        Surroundings(home=place / "person", env=env, read=("~/.ssh",)),
        cwd=place / "work",
        scratch=place / "scratch",
        git=GitPlaces(common=place / "git", own=place / "git" / "own", branch="topic"),
        **options,
    )


def test_an_agent_gets_its_own_files_and_the_hosts_of_its_provider(tmp_path):
    made = make(tmp_path, agent="claude", egress=["packages.example.com"], ports=[9100])

    assert tmp_path / "person" / ".claude" in made.write
    assert tmp_path / "person" / ".ssh" in made.read
    assert tmp_path / "person" not in (*made.read, *made.write)
    assert {"*.anthropic.com", "packages.example.com", "127.0.0.1:4000"} <= {*made.egress}
    assert made.local_ports == (4000, 9100)
    assert made.bind_ports == (9100,)
    assert Path("/etc/shadow") not in made.read


def test_a_variable_leads_an_agent_to_files_of_its_own_and_away_from_those_of_the_person(tmp_path):
    env = {"CODEX_HOME": "/srv/codex", "CLAUDE_CONFIG_DIR": ""}

    assert policy.agent_files("codex", home=tmp_path, env=env) == [Path("/srv/codex")]
    assert policy.agent_files("claude", home=tmp_path, env=env) == [tmp_path / ".claude", tmp_path / ".claude.json"]
    assert policy.agent_files("", home=tmp_path, env=env) == []


def test_an_agent_in_a_virtual_environment_has_all_of_it_and_its_interpreter(tmp_path):
    venv, interpreter = tmp_path / "person" / "tools" / "aider", tmp_path / "person" / "pythons" / "3.12"
    for folder in (venv / "bin", interpreter / "bin", tmp_path / "person" / "bin"):
        folder.mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    for path in (venv / "bin" / "aider", interpreter / "bin" / "python3.12"):
        path.touch()
    (venv / "bin" / "python").symlink_to(interpreter / "bin" / "python3.12")
    (tmp_path / "person" / "bin" / "aider").symlink_to(venv / "bin" / "aider")

    assert {venv, interpreter} <= {*make(tmp_path, program=str(tmp_path / "person" / "bin" / "aider")).read}


def test_git_may_commit_and_not_change_what_is_shared(tmp_path):
    made = make(tmp_path)

    assert {tmp_path / "git" / name for name in ("own", "objects", "refs/heads")} <= {*made.write}
    assert tmp_path / "git" not in made.write
    assert {tmp_path / "git" / name for name in ("config", "objects/info")} <= {*made.protected}


def test_what_may_only_read_writes_nothing_but_its_scratch(tmp_path):
    scratch = tmp_path / "scratch"

    # Not the directory around them: a link in the place of one would lead adw elsewhere the next time.
    assert make(tmp_path, may_write=False).write == (scratch / "home", scratch / "tmp", scratch / "out")
