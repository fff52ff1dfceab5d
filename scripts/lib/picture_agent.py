"""
Plays the coding agent in the home that the pictures of the dashboard show: speaks like Claude Code, asks no model.

`script.json` of its folder says what it does for an issue: phase -> a list of turns, one for each attempt, the
last one again and again. A turn is `ok`, `wait` (works until it is ended), or the words with which it fails. The
standard library alone: it is started a hundred times.

Use: picture_agent.py FOLDER ARGUMENTS...
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

MODEL = "scripted"
#: Seconds after which it ends although nobody ended it.
PATIENCE_SECONDS = 900.0
#: US dollars that a turn costs, by phase; the number of the issue changes them a little.
COSTS = {"plan": 0.31, "build": 1.24, "review": 0.42, "document": 0.18}
#: What it says while it works.
SAID = {
    "plan": "I read the issue and the files it is about. The plan has three steps and names the tests.",
    "build": "The change is made, with a test that fails without it.",
    "review": 'Small, tested, as planned.\n\n```json\n{"success": true, "summary": "small, tested, as planned"}\n```\n',
    "document": "The README says what is new.",
}


PLAN = """\
# {title}

1. Read how the shop does it now.
2. Change `shop/{name}.py`, with a test that fails without the change.
3. Say in the README what is new.
"""
CODE = """\
\"\"\"{title}.\"\"\"

from shop import CURRENCY, PRICES


def {name}(order):
    \"\"\"Return the amount of an order, with its currency.\"\"\"
    total = sum(PRICES[item] for item in order.items)

    return round(total, 2), CURRENCY
"""
TEST = """\
from shop.{name} import {name}
from tests.orders import order_of


def test_an_order_without_items_costs_nothing():
    assert {name}(order_of()) == (0, "EUR")
"""
#: Tools that it calls in a phase: name, input, result.
CALLS = {
    "plan": (("Read", {"file_path": "shop.py"}, "PRICES = {}"), ("Grep", {"pattern": "PRICES"}, "Found 2 files")),
    "build": (
        ("Read", {"file_path": "shop.py"}, "PRICES = {}"),
        ("Edit", {"file_path": "shop.py"}, "The file shop.py has been updated."),
        ("Bash", {"command": "pytest -q"}, "...........................................\n43 passed in 1.21s"),
    ),
    "review": (("Bash", {"command": "git diff main --stat"}, " shop.py | 2 ++\n 3 files changed, 19 insertions(+)"),),
}


def main(arguments: list[str]) -> int:
    folder, *rest = arguments
    if rest == ["--version"]:
        print("1.0 (scripted)")
        return 0
    if rest[:1] == ["auth"]:
        return 0
    prompt = sys.stdin.read()
    phase = os.environ["ADW_PHASE"]
    issue = json.loads(Path(os.environ["ADW_ISSUE_FILE"]).read_text(encoding="utf-8"))
    session = next((item.partition("=")[2] for item in rest if re.match(r"--(session-id|resume)=", item)), "")
    say({"type": "system", "subtype": "init", "session_id": session, "model": MODEL, "apiKeySource": "none"})
    turn = turn_of(Path(folder), int(issue["number"]), phase)
    if turn == "wait":
        work_on(session)
    if turn != "ok":
        end(session, turn, cost=0.0, is_error=True)
        return 1
    for number, (name, given, result) in enumerate(CALLS.get(phase, ())):
        call(session, f"call_{number}", name, given, result)
    do_work(phase, prompt, str(issue["title"]))
    tell(session, SAID.get(phase, "Done."))
    end(session, SAID.get(phase, "Done."), cost=COSTS.get(phase, 0.2) * (0.6 + int(issue["number"]) % 7 / 8))

    return 0


def turn_of(folder: Path, number: int, phase: str) -> str:
    """Return what is planned for this attempt."""
    script = json.loads((folder / "script.json").read_text(encoding="utf-8"))
    turns: list[str] = script.get(str(number), {}).get(phase, ["ok"])

    return turns[min(int(os.environ["ADW_ATTEMPT"]), len(turns)) - 1]


def work_on(session: str) -> None:
    """Say now and then what is being done, until somebody ends it."""
    lines = (
        "I read checkout/invoice.py and the tests beside it.",
        "The address of the invoice comes from the order, not from the basket. I move it there.",
        "42 tests pass, 1 fails: test_invoice_has_tax_number.",
        "The number is missing for customers from abroad. I add it.",
    )
    for line in lines:
        tell(session, line)
        time.sleep(0.3)
    time.sleep(PATIENCE_SECONDS)


def do_work(phase: str, prompt: str, title: str) -> None:
    """Leave a small file, as an agent would."""
    match = re.search(r"`(specs/[^`\s]+\.md)`", prompt)
    name = re.sub(r"\W+", "_", title.lower()).strip("_")[:40]
    path = {"plan": Path(match[1] if match else f"specs/{name}.md"), "document": Path("docs") / f"{name}.md"}.get(
        phase, Path("shop") / f"{name}.py"
    )
    if phase == "review":
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = PLAN if phase == "plan" else CODE if phase == "build" else "# {title}\n"
    path.write_text(text.format(title=title, name=name), encoding="utf-8")
    if phase == "build":
        test = Path("tests") / f"test_{name}.py"
        test.parent.mkdir(exist_ok=True)
        test.write_text(TEST.format(title=title, name=name), encoding="utf-8")
        Path("shop.py").write_text('PRICES = {}\n#: Of all amounts.\nCURRENCY = "EUR"\n', encoding="utf-8")


def tell(session: str, text: str) -> None:
    message = {"id": "msg_1", "model": MODEL, "content": [{"type": "text", "text": text}]}
    say({"type": "assistant", "session_id": session, "parent_tool_use_id": None, "message": message})


def call(session: str, call_id: str, name: str, given: dict[str, str], result: str) -> None:
    use = {"type": "tool_use", "id": call_id, "name": name, "input": given}
    message = {"id": f"msg_{call_id}", "model": MODEL, "content": [use]}
    say({"type": "assistant", "session_id": session, "parent_tool_use_id": None, "message": message})
    answer = {"type": "tool_result", "tool_use_id": call_id, "content": result}
    say({"type": "user", "session_id": session, "parent_tool_use_id": None, "message": {"content": [answer]}})


def end(session: str, text: str, *, cost: float, is_error: bool = False) -> None:
    facts = {"session_id": session, "num_turns": 1, "total_cost_usd": round(cost, 4), "permission_denials": []}
    usage = {"input_tokens": int(cost * 90_000), "output_tokens": int(cost * 6_000)}
    say({"type": "result", "subtype": "success", "is_error": is_error, "result": text, "usage": usage, **facts})


def say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
