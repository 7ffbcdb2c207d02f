"""YAML texts: any text gives a document or a YAMLError. The loader's test covers the messages."""

from __future__ import annotations

from contextlib import suppress

import yaml
from hypothesis import given, settings

from provisioner.files.yaml_text import parse
from tests.support.hostfactory.wrong_texts import RANDOM


@settings(max_examples=100)
@given(content=RANDOM)
def test_random_yaml_is_a_document_or_a_yaml_error(content: bytes) -> None:
    with suppress(yaml.YAMLError):
        parse(content.decode())
