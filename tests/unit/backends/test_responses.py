"""Accepted and refused parts of responses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner.backends import BackendError
from provisioner.backends.responses import MOST_CHARACTERS, json_object, seconds, text, translated_errors
from provisioner.model import ErrorClass


def test_an_object_is_taken_as_it_is() -> None:
    assert json_object(b'{"a": [1, 2.5, null, "\xc3\xa4"]}') == {"a": [1, 2.5, None, "ä"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b"[1]", "not a JSON object but a list"),
        (b'{"a": NaN}', "is not a JSON number"),
        (b'{"a": 1e999}', "is not a JSON number"),
        (b'{"a": "\xff"}', "decode"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_no_object_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        json_object(content)


@pytest.mark.parametrize("value", [None, 7, ["x"], "x" * (MOST_CHARACTERS + 1)])
def test_what_identifies_nothing_is_no_text(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        text(value)


@pytest.mark.parametrize("value", ["inf", "nan", "soon", 1e308, 10**400, None])
def test_what_no_machine_lives_through_is_no_duration(value: object) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        seconds(value)
    assert seconds("30") == 30.0


@pytest.mark.parametrize(
    "odd", [lambda: {}["a"], lambda: [].pop(), lambda: int("x"), lambda: 1 / 0, lambda: object().__getattribute__("a")]
)
def test_a_response_of_another_shape_is_a_failure_of_the_class_that_the_caller_names(odd: Callable[[], object]) -> None:
    with (
        pytest.raises(BackendError, match="answer not understood") as caught,
        translated_errors(ErrorClass.UNAVAILABLE),
    ):
        odd()
    assert caught.value.failure.error is ErrorClass.UNAVAILABLE
