"""How a real file is damaged: bytes changed, cut out and repeated; in JSON, values replaced by other kinds of them."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, 1, 7, 8, 16, 64, 255, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "0", "²", "٣", "9" * 5000, "../" * 9 + "etc/passwd", "/", "\x1b]0;evil\x07", "\u202e", "a\0b", "\n", "$(id)"),
    *("x" * 5000, "\ud800", "{}", [], {}, [[]], {"": {}}, [None], [0] * 100, "name", "pid", "1", "/dev/zero", "~", ";"),
)
NESTED = b"[" * 100_000, b'{"a":' * 100_000, b"{" * 100, b"9" * 10_000, b'{"ts":' + b"9" * 5000 + b"}"

Change = tuple[int, int, int]
CHANGES: st.SearchStrategy[list[Change]] = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 16) - 1)), min_size=1, max_size=6
)


def damaged(data: bytes, changes: Sequence[Change]) -> bytes:
    """Return bytes with some changes: what kind, where, and by what."""
    found = bytearray(data)
    for kind, place, value in changes:
        at = place % (len(found) + 1)
        number = NUMBERS[value % len(NUMBERS)]
        if kind == 0:
            found[at : at + 1] = bytes([value & 0xFF])
        elif kind == 1 and found:
            found[at % len(found)] ^= 1 << value % 8
        elif kind == 2:
            at = at // 8 * 8
            found[at : at + 8] = number.to_bytes(8, "little")[: len(found) - at]
        elif kind == 3:
            at = at // 4 * 4
            found[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, "little")[: len(found) - at]
        elif kind == 4:
            del found[at : at + value % 4096 if value % 8 else len(found)]
        elif kind == 5:
            size = value % 4096
            found[at : at + size] = bytes(len(found[at : at + size]))
        else:
            found[at:at] = found[at : at + value % 256] * (value % 3)
    return bytes(found)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a tree, as what holds it and the key there."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from places(node[key])


def other(data: bytes, changes: Sequence[Change]) -> bytes:
    """Return JSON with some values replaced, left out or moved; what is no JSON with its bytes changed."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(data, changes)
    for kind, place, value in changes:
        found = list(places(tree))
        if not found:
            return NESTED[value % len(NESTED)]
        holds, key = found[place % len(found)]
        if kind < 4:
            holds[key] = copy.deepcopy(LEAVES[value % len(LEAVES)])
        elif kind == 4:
            del holds[key]
        elif kind == 5:
            over, there = found[value % len(found)]
            holds[key] = json.loads(json.dumps(over[there])) if there in over or isinstance(over, list) else None
        elif isinstance(holds, dict):
            holds[str(LEAVES[value % len(LEAVES)])] = holds[key]
        else:
            return json.dumps(tree).encode().replace(b"[", NESTED[value % len(NESTED)], 1)
    return json.dumps(tree).encode(errors="surrogatepass")
