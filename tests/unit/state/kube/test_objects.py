"""Names and packed texts of the custom resources."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.hostfactory.provider_config import TEMPLATE_ID
from provisioner.state.errors import StateUnreadable
from provisioner.state.kube import objects
from tests.support.kube_state_server import NAME

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.from_regex(TEMPLATE_ID, fullmatch=True), st.from_regex(TEMPLATE_ID, fullmatch=True))
def test_each_provisioner_has_a_name_of_its_own_that_the_server_accepts(one: str, other: str) -> None:
    names = objects.object_name(one), objects.object_name(other)
    assert all(re.fullmatch(NAME, name) and len(name) <= 253 for name in names)
    assert (names[0] == names[1]) == (one == other)


@given(JSON)
def test_a_packed_value_returns(value: object) -> None:
    assert objects.unpack(objects.pack(value)) == value


@pytest.mark.parametrize("damaged", ["", "?", "AAAA", objects.pack({"a": 1})[:-4], objects.pack([1])[:8]])
def test_a_damaged_text_is_an_error(damaged: str) -> None:
    with pytest.raises(StateUnreadable, match="damaged"):
        objects.unpack(damaged)


def test_paths_name_the_collection_the_object_and_its_subresource() -> None:
    collection = objects.collection("hf", objects.REQUESTS, fieldSelector=objects.own("demo"))
    assert collection == (
        "/apis/provisioner.hostfactory.dev/v1alpha1/namespaces/hf/machinerequests?fieldSelector=spec.provisioner%3Ddemo"
    )
    status = objects.item("hf", objects.REQUESTS, "abc", "status")
    assert status.endswith("/hf/machinerequests/abc/status")
    assert objects.body(objects.NOTES, "demo", {"listed": 1}, annotations={"a": "b"}) == {
        "apiVersion": "provisioner.hostfactory.dev/v1alpha1",
        "kind": "HostFactoryNote",
        "metadata": {"name": "demo", "annotations": {"a": "b"}},
        "spec": {"listed": 1},
    }
