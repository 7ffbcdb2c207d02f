"""The form of a response that the embedded Kubernetes API writes: whole objects, tables or metadata."""

from __future__ import annotations

import pytest

from provisioner.simulator.kubernetes.errors import ApiError
from provisioner.simulator.kubernetes.form import Form, Shape, negotiate


@pytest.mark.parametrize(
    ("accept", "shape"),
    [
        ("", Shape.FULL),
        ("*/*", Shape.FULL),
        ("application/vnd.kubernetes.protobuf,application/json", Shape.FULL),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Shape.TABLE),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Shape.PARTIAL),
        ("application/json;as=Unknown,application/json", Shape.FULL),
    ],
)
def test_the_first_form_that_can_be_written_is_taken(accept: str, shape: Shape) -> None:
    assert negotiate(accept, "") == Form(shape)


def test_a_form_that_cannot_be_written_is_not_acceptable() -> None:
    with pytest.raises(ApiError) as caught:
        negotiate("application/vnd.kubernetes.protobuf", "")
    assert caught.value.code == 406
