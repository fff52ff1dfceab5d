"""
The files of the sample repository, and its issue.

Text only. `{agent}` is the program that plays the coding agent, `{python}` the interpreter that runs the tests.
"""

from __future__ import annotations

ISSUE_TITLE = "Greet with an exclamation mark"
ISSUE_BODY = "greet() should say `Hello, Ada!`. Without a name it should say `Hello, you!`."
AUTHOR = "Ada <ada@example.invalid>"

GREET = """\
def greet(name):
    return "Hello, " + name
"""

TEST_GREET = """\
from greet import greet

assert greet("Ada") == "Hello, Ada!", greet("Ada")
assert greet("") == "Hello, you!", greet("")
print("2 tests passed")
"""

IGNORED = "state/\ntrees/\n.ports.env\n__pycache__/\n"

ADW_TOML = """\
# Issues and pull requests are files below state/local.forge/, with a bare git repository beside them: no account is
# needed.
[forge]
kind = "local"

# A program that speaks like Claude Code and does what a script says. Take this table out to work with a real agent.
[agent]
name = "claude"
programs = {agent}

# Agents and commands run in a sandbox. The script keeps its notes here, so it may write here.
[sandbox]
write = [{folder}]

# The gate of build is its test. What the agent builds at first does not pass: it is retried after a wait. The test is
# red before anything is built, because it asks for what the issue asks for: so it is not run on the base.
[phases.build]
gates = [{{ command = [{python}, "test_greet.py"], base = "ignore" }}]
retry = {{ strategy = "exponential", base_seconds = 1, max_seconds = 10 }}

# Phases need no agent where a command does.
[phases.lint]
command = [{python}, "-m", "py_compile", "greet.py"]

[phases.test]
command = [{python}, "test_greet.py"]

# The sample is small: it may be tried where a real repository would have too little room.
[quota]
min_free_disk = "64 MiB"
min_free_memory = "64 MiB"
"""

#: Started in place of Claude Code. `{arguments}` are the interpreter, agent.py, its folder and its pace.
AGENT_STARTER = '#!/bin/sh\nexec {arguments} "$@"\n'
