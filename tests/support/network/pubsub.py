"""A subscription of Pub/Sub over real gRPC, with the methods that our own client calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
from google.iam.v1 import iam_policy_pb2
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1.types import PubsubMessage, ReceivedMessage, StreamingPullResponse, Subscription

from provisioner.backends.pubsub_subscription import CONSUME
from tests.support.network.authority import Authority

SUBSCRIPTION = Subscription(name="projects/p/subscriptions/s", topic="projects/p/topics/t")


@contextmanager
def subscription_server(
    authority: Authority | None = None, *, known: Collection[str] = (), data: bytes | None = None
) -> Iterator[SimpleNamespace]:
    """Run the server, and yield its ``address`` and records of its clients.

    ``calls`` has the called methods. ``streamed`` has the authorizations of clients that got messages.
    """
    seen = SimpleNamespace(calls=set[str](), streamed=set[str](), address=("127.0.0.1", 0))
    received = [] if data is None else [ReceivedMessage(ack_id="1", message=PubsubMessage(data=data))]
    responses = {
        "StreamingPull": StreamingPullResponse.serialize(StreamingPullResponse(received_messages=received)),
        "GetSubscription": Subscription.serialize(SUBSCRIPTION),
        "TestIamPermissions": iam_policy_pb2.TestIamPermissionsResponse(permissions=[CONSUME]).SerializeToString(),
    }

    def service(details: Any) -> grpc.RpcMethodHandler | None:
        authorization = dict(details.invocation_metadata).get("authorization", "")
        if known and authorization not in known:
            return None
        seen.calls.add(details.method)
        response = responses.get(details.method.rpartition("/")[2], Empty().SerializeToString())

        def stream(asked: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
            seen.streamed.add(authorization)
            if received:
                yield response
            for _ in asked:
                pass

        if details.method.endswith("/StreamingPull"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(lambda *_: response)

    with ThreadPoolExecutor(4) as workers:
        server = grpc.server(workers)
        server.add_generic_rpc_handlers([SimpleNamespace(service=service)])
        if authority is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            credentials = grpc.ssl_server_credentials([authority.signed("pubsub.googleapis.com")])
            port = server.add_secure_port("127.0.0.1:0", credentials)
        seen.address = ("127.0.0.1", port)
        server.start()
        try:
            yield seen
        finally:
            server.stop(0).wait()
