"""
Whether a delivery was signed with a secret of ours.

Pure. The signature is over the bytes as they came, so it is checked before anything reads them. Every secret is tried
and every comparison takes the same time, whatever is wrong.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence

#: What the signature stands in; that of older senders, made with SHA-1, is not enough.
HEADER = "x-hub-signature-256"
_OLD_HEADER = "x-hub-signature"
_SHAPE = re.compile(r"sha256=([0-9a-f]{64})")


def sign(secret: str, body: bytes) -> str:
    """Return the value of the header for *body*, as GitHub makes it."""
    return f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"


def why_not_signed(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> str:
    """Return why *body* cannot be trusted, "" when one of *secrets* signed it; names of *headers* are lower case."""
    if not secrets:
        return "no webhook secret is set here: set ADW_WEBHOOK_SECRET, and the same secret at the hook"
    given = headers.get(HEADER, "")
    if not given and _OLD_HEADER in headers:
        return "the delivery is signed with SHA-1 alone, which is not enough: X-Hub-Signature-256 is missing"
    if not given:
        return "the delivery is not signed: set a secret at the hook"
    match = _SHAPE.fullmatch(given)
    if match is None:
        return "X-Hub-Signature-256 is not of the form sha256= and 64 lower-case hexadecimal digits"
    wanted = bytes.fromhex(match[1])
    # No early end: how many secrets there are and which one fits is nobody's business.
    matches = [hmac.compare_digest(hmac.digest(secret.encode(), body, "sha256"), wanted) for secret in secrets]

    return "" if any(matches) else "the signature does not fit: the secret at the hook is another one than here"
