"""Texts that each reader of a YAML file must refuse quickly, and random changes of documents."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from provisioner.files.yaml_text import DEEPEST, LARGEST, MOST_VALUES

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000))

BYTES = {
    "nested beyond Python's stack, in brackets": b"[" * 20_000,
    "nested beyond Python's stack, in braces": b"{a: " * 5_000 + b"}" * 5_000,
    "nested beyond Python's stack, in dashes": b"- " * 5_000,
    "nested beyond Python's stack, in keys": b"? " * 5_000,
    "nested a little deeper than it may be": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
    "aliases that stand for a billion values": BOMB.encode(),
    "merges that stand for a billion keys": MERGES.encode(),
    "aliases nested three thousand deep": CHAIN.encode(),
    "an alias that holds itself": b"a: &a [*a]",
    "a merge of itself": b"&a {<<: *a}",
    "a NUL": b"id: a\0b",
    "a NUL in a name of a file": b'pools: {p: {kind: gke, pod_spec: "a\\0b", kubeconfig: "c\\0d"}}',
    "the home of an unknown user": b"pools: {p: {kind: gke, pod_spec: ~no-such-user/x, kubeconfig: ~no-such-user/y}}",
    "a whole number of ten thousand digits": b"orphan_cap_per_hour: " + b"1" * 10_000,
    "a whole number of ten thousand hexadecimal digits": b"orphan_cap_per_hour: 0x" + b"f" * 10_000,
    "a key that is such a number": b"0x" + b"f" * 10_000 + b": 1",
    "a number without digits": b"id: 0b_",
    "no number, by its tag": b"id: !!int x",
    "nothing at all, by its tag a number": b"id: !!int ''",
    "no date, by its form": b"id: 2024-99-99",
    "no date, by its tag": b"id: !!timestamp x",
    "no truth, by its tag": b"id: !!bool x",
    "a date": b"id: 2024-01-01",
    "a tab": b"loop:\n\tinterval_seconds: 5",
    "no UTF-8": b"\xff\xfe\x00",
    "half a character": b'id: "\\ud800"',
    "a character beyond the last": b'id: "\\UFFFFFFFF"',
    "a version beyond numbers": b"%YAML 1." + b"1" * 10_000 + b"\n---\nid: a",
    "a key that is a list": b"? [a, b]\n: 1",
    "a key that is a mapping": b"? {a: b}\n: 1",
    "a kind that is a list": b"pools: {p: {kind: [gke]}}",
    "a kind that is a mapping": b"pools: {p: {kind: {a: b}}}",
    "a tag of Python's": b"!!python/object/apply:os.system [true]",
    "two documents": b"id: a\n---\nid: b",
    "a key given twice": b"id: a\nid: b",
    "an alias of nothing": b"id: *a",
    "more than it may hold": b"#" * (LARGEST + 1),
    "more values than it may hold": b"[" + b"1," * (MOST_VALUES + 1) + b"]",
}

WORDS = (
    "[ ] { } : - ? , &a *a <<: !!int !!set | ' !!omap !!binary !!timestamp !!float !!merge \" # --- ... ~ "
    "id pools kind gke mig pod_spec zone loop \\ud800 é = 0x 0b 1 1:30 .nan .inf 1e999 _ 2024-13-01 12:00:00 null yes"
)
PIECES = st.sampled_from([*WORDS.split(), " ", "\n", "  ", "\t", "%YAML 1.1\n", "\ufeff", "\0", "\x85", "9" * 30])
RANDOM = st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode("utf-8"))
"""Random texts that consist of pieces of YAML's syntax."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield, for every value within a document, the dict or list that contains it and its key there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def changed(document: Any, chance: int, what: object) -> Any:
    """Return the document with one random value removed, doubled, or replaced by ``what``."""
    document = copy.deepcopy(document)
    leaves = list(places(document))
    if not leaves:
        return what
    container, key = leaves[chance % len(leaves)]
    if chance % 3 == 0:
        del container[key]
    elif chance % 3 == 1 and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = what
    return document
