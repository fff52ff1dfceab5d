"""How values are written in TOML. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable


def quoted(text: str) -> str:
    """Return *text* as a TOML string."""
    # JSON escapes what TOML wants escaped, but for one control character; half of a surrogate pair has no spelling.
    whole = text.encode("utf-8", "replace").decode()

    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(texts: Iterable[str]) -> str:
    """Return *texts* as a TOML array in one line."""
    return f"[{', '.join(quoted(text) for text in texts)}]"
