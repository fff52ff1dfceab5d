"""
Opening a page in the person's browser: the only home of webbrowser.

A browser that would take the terminal over is not started.
"""

from __future__ import annotations

import webbrowser

#: Browsers that show pages in the terminal they were started from.
_IN_TERMINAL = frozenset({"elinks", "links", "lynx", "w3m", "www-browser"})


def open_page(url: str) -> bool:
    """Show *url*; say whether there was a browser for it."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    if getattr(found, "name", "") in _IN_TERMINAL:
        return False

    return found.open(url)
