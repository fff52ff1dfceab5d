"""
Other engines doing the work of steps.py: a workflow of nine steps that do nothing.

Runs in an environment of its own, which steps.py makes: `python yardsticks.py NAME DIRECTORY`. It prints one line when
it is ready; then each line `N` on standard input runs N workflows and is answered with the seconds they took.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import TypedDict

STEPS = 9


def langgraph(directory: str) -> tuple[str, Callable[[int], None]]:
    """A graph of nine nodes with the SQLite checkpointer, durability sync."""
    from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - each engine is only there for itself
    from langgraph.graph import END, START, StateGraph  # noqa: PLC0415 - each engine is only there for itself

    class State(TypedDict):
        count: int

    graph = StateGraph(State)
    before = START
    for number in range(STEPS):
        graph.add_node(f"step{number}", lambda state: {"count": state["count"] + 1})
        graph.add_edge(before, f"step{number}")
        before = f"step{number}"
    graph.add_edge(before, END)
    connection = sqlite3.connect(f"{directory}/langgraph.db", check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    compiled = graph.compile(checkpointer=saver)
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    level = connection.execute("PRAGMA synchronous").fetchone()[0]

    def run(number: int) -> None:
        compiled.invoke({"count": 0}, {"configurable": {"thread_id": str(number)}}, durability="sync")

    return f"each step committed to SQLite ({mode}, synchronous={level}); no queue, no lock", run


def dbos(directory: str) -> tuple[str, Callable[[int], None]]:
    """A DBOS workflow of nine steps on SQLite, called directly: its queue only adds polling."""
    from dbos import DBOS  # noqa: PLC0415 - each engine is only there for itself

    url = f"sqlite:///{directory}/dbos.sqlite"
    DBOS(config={"name": "adw-bench", "system_database_url": url, "run_admin_server": False})

    @DBOS.step()
    def step(number: int) -> int:
        return number

    @DBOS.workflow()
    def nine_steps() -> None:
        for number in range(STEPS):
            step(number)

    DBOS.launch()

    def run(number: int) -> None:
        del number
        nine_steps()

    mode = sqlite3.connect(f"{directory}/dbos.sqlite").execute("PRAGMA journal_mode").fetchone()[0]

    return f"each step committed to SQLite ({mode}, its default); called directly, no queue", run


ENGINES = {"langgraph": langgraph, "dbos": dbos}


def main() -> None:
    """Answer on standard output until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints is not an answer
    logging.disable(logging.CRITICAL)
    durability, run = ENGINES[sys.argv[1]](sys.argv[2])
    print(durability, file=answers, flush=True)
    done = 0
    for line in sys.stdin:
        count = int(line)
        start = time.perf_counter()
        for number in range(done, done + count):
            run(number)
        print(time.perf_counter() - start, file=answers, flush=True)
        done += count


if __name__ == "__main__":
    main()
