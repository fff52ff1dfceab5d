"""Running something in a forked child of the test."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def start(work: Callable[[], None]) -> int:
    """Run *work* in a child and return its pid; the child never comes back into the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
        child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # noqa: BLE001 - told to the parent by the exit code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def is_well(child: int) -> bool:
    """Wait for the child and say whether its work was done."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
