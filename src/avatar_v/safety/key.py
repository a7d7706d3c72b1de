"""The key that marks are drawn and read with: one's own, else a public one. No torch here."""

import hashlib
import os
from collections.abc import Mapping

from avatar_v.base.outside import regular_file

PUBLIC_KEY = b"avatar_v"
"""For whoever has no key: anyone can read the mark, and anyone can draw or remove it."""
KEY, KEY_FILE = "AVATAR_V_WATERMARK_KEY", "AVATAR_V_WATERMARK_KEY_FILE"
"""Variables of the environment: the secret itself, or the file that holds it."""
LEAST_BYTES, MOST_BYTES = 16, 4096


def own_key(environment: Mapping[str, str] = os.environ) -> bytes:
    """The secret of the environment, without blanks around it, or the public key. ValueError for
    both variables, a file that cannot be read, or a secret that is too short or too long."""
    secret, file = environment.get(KEY), environment.get(KEY_FILE)
    if secret is not None and file is not None:
        raise ValueError(f"{KEY} and {KEY_FILE} are both set; keep one")
    if secret is None and file is None:
        return PUBLIC_KEY
    if file is not None:
        try:
            with open(regular_file(file, expected="expected a file of the key"), "rb") as opened:
                key = opened.read(MOST_BYTES + 3)  # a line's end may follow
        except (OSError, ValueError) as error:
            raise ValueError(f"{KEY_FILE}: cannot read {error}") from error
    else:
        assert secret is not None
        key = os.fsencode(secret)
    key = key.strip()
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise ValueError(
            f"the key of the watermark ({KEY if file is None else KEY_FILE}) has {LEAST_BYTES} to "
            f"{MOST_BYTES} bytes, got {len(key) if len(key) <= MOST_BYTES else 'more'}"
        )
    return key


def digest_of_key(key: bytes) -> str:
    """8 hexadecimal digits that tell keys apart and do not give them away."""
    return hashlib.sha256(b"digest of a watermark key" + key).hexdigest()[:8]
