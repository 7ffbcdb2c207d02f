"""Clients of the state for the namespace of a test."""

from __future__ import annotations

from collections.abc import Callable

from provisioner.state.kube.api_login import Access
from provisioner.state.kube.connection import ApiServer
from tests.kube.space import Space


def client_of(space: Space) -> Callable[[], ApiServer]:
    """Return a function that makes a client of the API server for this namespace. The client's account is the
    administrator's."""
    admin = space.admin
    token = admin.headers.get("Authorization", "").removeprefix("Bearer ")
    return lambda: ApiServer(lambda: Access(admin.server, space.name, authority=admin.ca or "", token=token))
