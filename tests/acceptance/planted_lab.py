"""
A home in which every part tells secrets: commands, agents, functions, steps, sinks, servers, issues and people.

What tells them stands beside the home, in files that are not searched.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import WorkLab, make_work_lab
from tests.planted import WRITINGS, Plants

#: In documents whole values are looked for, in these ways to write them.
WHOLE = tuple(sorted(set(WRITINGS) - {"first characters cut", "last characters cut", "ansi", "wrapped"}))

#: Secrets that people tell besides, in requests and deliveries.
OF_PEOPLE = 110
#: Tells what its file says: bytes to write, piece by piece, a result, and how to end; one entry for each attempt.
TELLER = """
import json, os, sys
turns = json.loads(open(sys.argv[1]).read())
turn = turns[min(int(os.environ["ADW_ATTEMPT"]), len(turns)) - 1]
for fd, pieces in ((1, turn.get("out", ())), (2, turn.get("err", ()))):
    for piece in pieces:
        os.write(fd, bytes.fromhex(piece))
for name in turn.get("variables", ()):
    print(os.environ[name], flush=True)
if "result" in turn:
    open(os.environ["ADW_RESULT_FILE"], "w").write(json.dumps(turn["result"]))
sys.exit(turn.get("exit", 0))
"""
#: Functions that run in the process of the worker.
FUNCTIONS = """
import json
PLANTS = json.loads(open({plants!r}).read())

def phase(context):
    if context.attempt_number == 1:
        try:
            raise ValueError(PLANTS["cause"])
        except ValueError as exc:
            raise ConnectionError(PLANTS["raised"], {{"detail": PLANTS["raised_detail"]}}) from exc
    return PLANTS["returned"]

def step(number):
    if number % 2:
        raise RuntimeError("connection reset by peer: " + PLANTS["step_raised"])
    return PLANTS["step_returned"]

def sink(rows, key):
    raise OSError("cannot save: " + PLANTS["sink_raised"])
"""
#: Keeps what people are told.
NOTIFY = """
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith("ADW_NOTIFY")}
open(sys.argv[1], "a").write(json.dumps(told) + "\\n")
"""
#: The phase `wait` says through the pipe `up` that it has begun, and goes on when `go` is read.
WORKFLOWS = """
[forge]
kind = "local"
[workflow]
default = "leaky"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[notify]
command = "{python} {notify} {told}"
comment = true
[agent]
name = "claude"
[steps]
http_allow = "127.0.0.1"

[[workflows.leaky.phases]]
name = "wait"
state = "planning"
shell = "echo up > {home}/up; cat {home}/go"

[[workflows.leaky.phases]]
name = "plan"
command = ["{python}", "{teller}", "{plan}"]
env = [{variables}]
max_attempts = 3
retry = {{ base_seconds = 0.01, strategy = "fixed" }}

[[workflows.leaky.phases]]
name = "build"
runner = "agent"
prompt = "say.md"
max_attempts = 3
retry = {{ base_seconds = 0.01, strategy = "fixed" }}

[[workflows.leaky.phases]]
name = "lint"
call = "plant_functions:phase"
max_attempts = 2
retry = {{ base_seconds = 0.01, strategy = "fixed" }}

[[workflows.leaky.phases]]
name = "test"
max_attempts = 1
required = false

[[workflows.leaky.phases.steps]]
name = "say"
tool = "command"
command = ["{python}", "{teller}", "{said}"]
env = [{variables}]
output = "json"

[[workflows.leaky.phases.steps]]
name = "ask"
tool = "http"
url = "{url}/body"
headers_env = {{ Authorization = "{header}" }}

[[workflows.leaky.phases.steps]]
name = "each"
tool = "python"
call = "plant_functions:step"
args = {{ number = "{{{{ number }}}}" }}
loop = {{ collection = [1, 2, 3], element = "number", on_failure = "continue" }}
retry = {{ on_error = {{ max_attempts = 2, base_seconds = 0.01 }} }}

[[workflows.leaky.phases.steps]]
name = "fail"
tool = "http"
url = "{url}/error"
loop = {{ collection = [1], on_failure = "continue" }}

[[workflows.leaky.phases.steps]]
name = "hop"
tool = "http"
url = "{url}/hop"
loop = {{ collection = [1], on_failure = "continue" }}

[[workflows.leaky.phases.steps]]
name = "save"
tool = "command"
command = ["echo", "{{{{ steps.say|tojson }}}}"]
sink = {{ tool = "python", call = "plant_functions:sink" }}

[[workflows.leaky.phases]]
name = "review"
command = ["{python}", "{teller}", "{review}"]
gate = "human"
max_attempts = 2

[[workflows.leaky.phases]]
name = "ship"
runner = "ship"

[[workflows.leaky.phases]]
name = "clean"
runner = "clean"
required = false

[[workflows.broken.phases]]
name = "plan"
command = ["{python}", "{teller}", "{broken}"]
env = [{variables}]
max_attempts = 1
"""


class PlantedHome:
    """The home, and all that tells secrets in it."""

    def __init__(self, place: Path, plants: Plants, url: str) -> None:
        self.lab: WorkLab = make_work_lab(place)
        self.home = self.lab.home
        self.aside = place.resolve() / "aside"
        self.aside.mkdir()
        self.told = place.resolve() / "told.jsonl"
        self.plants = plants
        self.agent = FakeAgent(self.aside / "agents")
        for pipe in ("up", "go"):
            os.mkfifo(self.home / pipe)
        self._url = url
        self._write()

    def share(self, percent: float) -> int:
        """Return how many secrets that is."""
        return max(1, round(len(self.plants.secrets) * percent / 100))

    def _write(self) -> None:
        plants, share = self.plants, self.share
        shown = plants.take("variable of a phase", share(4))
        header = [plants.take_plain("header of a request")]
        self._file("teller.py", TELLER)
        self._file("notify.py", NOTIFY)
        self._functions()
        self._agent()
        said = json.dumps(plants.nested("output of a step", share(4)))
        review = {"result": {"summary": plants.line("summary to approve"), "notes": plants.nested("notes", 5)}}
        broken = plants.text("last failure", share(3)) + self._last_words("end")
        plan = [
            {
                "err": plants.cut(plants.text("failure of a command", share(3)) + self._last_words("command")),
                "result": plants.nested("result of a failure", share(1)),
                "exit": 75,
            },
            {"out": plants.cut(plants.text("output of a failure", share(3)) + self._last_words("output")), "exit": 1},
            {
                "err": plants.cut(plants.text("errors of a command", share(4))),
                "variables": plants.names(shown),
                "result": {"summary": plants.line("summary"), **plants.nested("result of a command", share(4))},
                # All that nobody else will tell.
                "out": plants.cut(plants.text("output of a command", plants.left - OF_PEOPLE - 2 * share(4))),
            },
        ]
        files = {
            "plan": plan,
            "said": [{"out": plants.cut(said + "\n")}],
            "review": [review],
            "broken": [{"err": plants.cut(broken), "exit": 3}],
        }
        paths = {name: str(self._file(f"{name}.json", json.dumps(turns))) for name, turns in files.items()}
        variables = ", ".join(f'"{name}"' for name in plants.names([*shown, *header]))
        (self.home / "say.md").write_text("Say it: {{ issue.title }}\n")
        (self.home / "adw.toml").write_text(
            WORKFLOWS.format(
                home=self.home,
                python=sys.executable,
                teller=self.aside / "teller.py",
                notify=self.aside / "notify.py",
                told=self.told,
                url=self._url,
                variables=variables,
                header=plants.names(header)[0],
                **paths,
            )
        )

    def _last_words(self, of: str) -> str:
        """Return what a process says at its end: that is what people are told of a failure."""
        return f"connection reset by peer: {self.plants.line(f'last words: {of}', WHOLE)}\n"

    def _file(self, name: str, text: str) -> Path:
        path = self.aside / name
        path.write_text(text)
        return path

    def _functions(self) -> None:
        plants, share = self.plants, self.share
        told = {
            "cause": plants.text("cause of an exception", share(1), WHOLE),
            "raised": plants.text("exception", share(1), WHOLE),
            "raised_detail": plants.nested("detail of an exception", share(1)),
            "returned": {"summary": plants.line("summary of a function", WHOLE), **plants.nested("returned", share(3))},
            "step_raised": plants.text("exception of a step", share(1), WHOLE),
            "step_returned": plants.nested("result of a step", share(3)),
            "sink_raised": plants.text("exception of a sink", share(1), WHOLE),
        }
        path = self._file("functions.json", json.dumps(told))
        (self.home / "plant_functions.py").write_text(FUNCTIONS.format(plants=str(path)))

    def _agent(self) -> None:
        plants, share = self.plants, self.share
        tool = {"type": "tool_result", "content": plants.text("output of a tool of an agent", share(3))}
        events = [
            {"type": "user", "message": {"content": [tool]}},
            {"type": "assistant", "message": {"content": [{"type": "text", "text": plants.text("agent", share(3))}]}},
        ]
        answer = plants.text("answer of an agent", share(2))
        result = json.dumps(plants.nested("JSON of an agent", share(3)))
        failure = {
            "subtype": "error_during_execution",
            "is_error": True,
            "result": plants.text("agent fails", share(2)),
        }
        model = {plants.take("name of a model")[0]: {"inputTokens": 5, "outputTokens": 1, "costUSD": 0.1}}
        self.agent.plays(
            {
                "stderr": plants.text("errors of an agent", share(2)),
                "result_file": plants.nested("result of an agent that fails", share(1)),
                "result": failure,
                "exit": 1,
            },
            {
                "events": events,
                "say": plants.text("words of an agent", share(2)),
                "do": ["echo done >> made.txt"],
                "result_file": plants.nested("result of an agent", share(2)),
                "answer": f"{answer}\n```json\n{result}\n```",
                "result": {"modelUsage": model},
            },
        )


@contextmanager
def telling_server(plants: Plants, count: int):
    """A server of the network that tells secrets in what it answers; give its address."""
    body = json.dumps(plants.nested("answer of a server", count)).encode()
    error = plants.text("page of an error", max(1, count // 4)).encode()
    place = f"/?q={quote(plants.take('address of a redirection')[0], safe='')}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/body":
                heard = json.dumps({"heard": dict(self.headers), "body": json.loads(body)}).encode()
                self._answer(200, heard, {"Content-Type": "application/json"})
            elif self.path == "/hop":
                self._answer(302, b"", {"Location": f"http://10.255.255.1{place}"})
            else:
                self._answer(418, error, {"Content-Type": "text/plain"})

        def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
