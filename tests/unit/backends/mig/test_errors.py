"""Classes of Compute's errors, with codes and texts from Google's API and from field reports."""

from __future__ import annotations

from typing import Any

import google.auth.exceptions as auth_errors
import pytest
import requests.exceptions as request_errors
import urllib3.exceptions as connection_errors

from provisioner.backends.call_budget import TooManyCalls
from provisioner.backends.mig.errors import (
    CALL_ERRORS,
    TEXT_LIMIT,
    AlreadyExists,
    ComputeError,
    attempt_error,
    classify,
    failed_call_error,
    http_error,
    operation_error,
    raised,
)
from provisioner.model import ErrorClass, Failure

E = ErrorClass
SUBSTITUTE = (
    "CreateInstances cannot be used when UpdatePolicy type is set to PROACTIVE and replacementMethod to SUBSTITUTE."
    " Set replacementMethod to RECREATE or disable rolling update by setting type to OPPORTUNISTIC."
)

TOO_FREQUENT = "Operation rate exceeded for resource 'projects/p/global/x'. Too frequent operations from it."


@pytest.mark.parametrize(
    ("status", "code", "text", "expected"),
    [
        (403, "rateLimitExceeded", "Rate Limit Exceeded", E.THROTTLED),
        (
            403,
            "rateLimitExceeded",
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'",
            E.THROTTLED,
        ),
        (403, "", "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of 'x'", E.THROTTLED),
        (429, "", "Too many requests", E.THROTTLED),
        (403, "resourceOperationRateExceeded", TOO_FREQUENT, E.THROTTLED),
        (0, "RESOURCE_OPERATION_RATE_EXCEEDED", TOO_FREQUENT, E.THROTTLED),
        (403, "", TOO_FREQUENT, E.THROTTLED),
        (400, "operationRateExceeded", "", E.THROTTLED),
        (403, "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "Rate Limit Exceeded", E.THROTTLED),
        (0, "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "", E.THROTTLED),
        (403, "", "Quota exceeded for quota group 'ReadGroup' and limit 'Read requests per 100 seconds'", E.THROTTLED),
        (0, "SERVICE_ACCOUNT_ACCESS_DENIED", "The user does not have access to service account 'a'", E.DENIED),
        (0, "VM_EXTERNAL_IP_ACCESS_POLICY_CONSTRAINT", "", E.DENIED),
        (0, "CONDITION_NOT_MET", "Constraint constraints/compute.vmExternalIpAccess violated for project p", E.DENIED),
        (412, "conditionNotMet", "Constraint constraints/gcp.resourceLocations violated", E.DENIED),
        (0, "POLICY_VIOLATION", "", E.DENIED),
        (0, "BILLING_NOT_ENABLED", "", E.DENIED),
        (403, "accountDisabled", "The account for the specified project has been disabled.", E.DENIED),
        (0, "", "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x", E.DENIED),
        (0, "CUSTOMER_MANAGED_ENCRYPTION_KEY_PERMISSION_DENIED", "", E.DENIED),
        (0, "ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources", E.STOCKOUT),
        (0, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "", E.STOCKOUT),
        (0, "INSUFFICIENT_CAPACITY", "", E.STOCKOUT),
        (503, "insufficientCapacity", "", E.STOCKOUT),
        (0, "VM_MIN_COUNT_NOT_REACHED", "", E.STOCKOUT),
        (429, "RESOURCE_AVAILABILITY", "The zone does not have enough resources available.", E.STOCKOUT),
        (429, "", "The zone 'projects/p/zones/z' does not have enough resources available", E.STOCKOUT),
        (503, "", "Region does not currently have sufficient capacity for the requested resources.", E.STOCKOUT),
        (412, "conditionNotMet", "Reservation r does not have sufficient capacity for the requested", E.STOCKOUT),
        (0, "CONDITION_NOT_MET", "Reservation r does not have sufficient capacity for the requested", E.STOCKOUT),
        (0, "CONDITION_NOT_MET", "Zone does not currently have sufficient capacity for the requested", E.STOCKOUT),
        (
            0,
            "CONDITION_NOT_MET",
            "Specified reservation 'r' does not have available resources for the request.",
            E.STOCKOUT,
        ),
        (0, "CONDITION_NOT_MET", "No available resources in specified reservations 'r'", E.STOCKOUT),
        (
            0,
            "QUOTA_EXCEEDED",
            "Instance 'x' creation failed: Quota 'N2D_CPUS' exceeded. Limit: 500.0 in region europe-west1.",
            E.QUOTA,
        ),
        (403, "quotaExceeded", "Quota 'INSTANCES' exceeded.", E.QUOTA),
        (0, "IP_SPACE_EXHAUSTED", "IP space of 'default' is exhausted.", E.QUOTA),
        (0, "IP_SPACE_EXHAUSTED_WITH_DETAILS", "", E.QUOTA),
        (0, "LIMIT_EXCEEDED", "Exceeded limit 'MAX_INSTANCES_IN_INSTANCE_GROUP' on resource 'g'.", E.QUOTA),
        (403, "limitExceeded", "Exceeded limit 'MAX_INSTANCES_IN_INSTANCE_GROUP' on resource 'g'.", E.QUOTA),
        (0, "PERMISSIONS_ERROR", "Required 'compute.instances.create' permission", E.DENIED),
        (403, "forbidden", "Required permission for the project", E.DENIED),
        (401, "authError", "Invalid Credentials", E.DENIED),
        (412, "CONDITION_NOT_MET", SUBSTITUTE, E.INVALID),
        (412, "conditionNotMet", "", E.INVALID),
        (0, "CONDITION_NOT_MET", "Specified reservation 'r' does not exist.", E.INVALID),
        (0, "UNSUPPORTED_OPERATION", "The machine type does not support this disk type.", E.INVALID),
        (400, "resourceNotReady", "The resource 'projects/p/global/networks/n' is not ready", E.UNAVAILABLE),
        (0, "RESOURCE_NOT_READY", "", E.UNAVAILABLE),
        (412, "CONDITION_NOT_MET", "it requires reservation to be in READY state", E.UNAVAILABLE),
        (400, "invalid", "Invalid value for field 'size'", E.INVALID),
        (400, "required", "Required field 'resource.instances' not specified", E.INVALID),
        (404, "notFound", "The resource was not found", E.NOT_FOUND),
        (0, "RESOURCE_NOT_FOUND", "", E.NOT_FOUND),
        (0, "INTERNAL_ERROR", "Instance failed to start due to preemption.", E.OTHER),
        (0, "PREEMPTED", "", E.OTHER),
        (0, "INTERNAL_ERROR", "Instance was preempted.", E.OTHER),
        (403, "forbidden", "POST https://host/projects/p/zones/z/instanceGroupManagers/preempted: no", E.DENIED),
        (0, "INTERNAL_ERROR", "Internal error. Please try again.", E.OTHER),
        (0, "RESOURCE_ALREADY_EXISTS", "The resource already exists", E.OTHER),
        (409, "alreadyExists", "", E.UNAVAILABLE),
        (500, "backendError", "", E.UNAVAILABLE),
        (503, "", "", E.UNAVAILABLE),
        (408, "", "", E.TIMEOUT),
        (0, "", "", E.OTHER),
        (418, "", "", E.OTHER),
    ],
)
def test_class_of_an_error(status: int, code: str, text: str, expected: ErrorClass) -> None:
    assert classify(ComputeError(status, code, text)) is expected


def test_a_server_that_fails_leaves_open_what_it_did() -> None:
    """A create may have taken effect before a 5xx or a broken connection. So the loop must repeat the create with the
    same name."""
    for status in (500, 502, 503, 504):
        assert classify(ComputeError(status, "", "")).is_ambiguous
    assert classify(ComputeError(503, "insufficientCapacity", "")).stops_batch


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ComputeError(0, "CODE", "Words."), "CODE: Words."),
        (ComputeError(0, "CODE", ""), "CODE"),
        (ComputeError(0, "", "Words."), "Words."),
        (ComputeError(0, "QUOTA_EXCEEDED", "QUOTA_EXCEEDED happened"), "QUOTA_EXCEEDED happened"),
        (ComputeError(500, "", ""), "HTTP 500"),
    ],
)
def test_an_error_keeps_googles_words(error: ComputeError, text: str) -> None:
    assert error.failure().text == text


def test_of_long_words_the_beginning_is_kept() -> None:
    """A long text must be cut after its beginning, because the text of an error is stored with each slot."""
    assert ComputeError(0, "CODE", "w" * 10_000).failure().text == "CODE: " + "w" * (TEXT_LIMIT - 6)
    assert len(http_error(502, None, "<p>" * 10_000).text) <= TEXT_LIMIT + len("HTTP 502: ")


@pytest.mark.parametrize(
    ("error", "taken"),
    [
        (ComputeError(409, "", ""), True),
        (ComputeError(0, "RESOURCE_ALREADY_EXISTS", ""), True),
        (ComputeError(400, "memberAlreadyExists", ""), True),
        (ComputeError(400, "invalid", ""), False),
        (ComputeError(503, "", ""), False),
    ],
)
def test_a_name_that_exists_asks_for_another_list(error: ComputeError, taken: bool) -> None:
    assert isinstance(raised(error), AlreadyExists) is taken


@pytest.mark.parametrize(
    ("error", "used_up"),
    [
        (ComputeError(403, "rateLimitExceeded", "Rate Limit Exceeded"), True),
        (ComputeError(429, "", ""), True),
        (ComputeError(403, "resourceOperationRateExceeded", TOO_FREQUENT), False),
        (ComputeError(403, "", TOO_FREQUENT), False),
        (ComputeError(400, "operationRateExceeded", ""), False),
        (ComputeError(403, "quotaExceeded", ""), False),
    ],
)
def test_only_a_rate_of_calls_keeps_the_project_quiet(error: ComputeError, used_up: bool) -> None:
    assert isinstance(raised(error), TooManyCalls) is used_up


def body(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "errors": [{"reason": reason, "message": message}]}}


INFO = "type.googleapis.com/google.rpc.ErrorInfo"


@pytest.mark.parametrize(
    ("status", "content", "text", "expected"),
    [
        (403, body(403, "rateLimitExceeded", "slow down"), "", ComputeError(403, "rateLimitExceeded", "slow down")),
        (404, {"error": {"code": 404, "message": "gone"}}, "", ComputeError(404, "", "gone")),
        (
            429,
            {"error": {"code": 429, "message": "m", "details": [{"@type": "Help"}, {"@type": INFO, "reason": "WHY"}]}},
            "",
            ComputeError(429, "WHY", "m"),
        ),
        (
            429,
            {"error": {"code": 429, "message": "m", "errors": ["odd"], "details": 3}},
            "",
            ComputeError(429, "", "m"),
        ),
        (502, None, "<html>Bad Gateway</html>\n", ComputeError(502, "", "HTTP 502: <html>Bad Gateway</html>")),
        (500, ["odd"], "odd", ComputeError(500, "", "HTTP 500: odd")),
        (500, {"error": "odd"}, "odd", ComputeError(500, "", "HTTP 500: odd")),
    ],
)
def test_error_of_an_http_response(status: int, content: object, text: str, expected: ComputeError) -> None:
    assert http_error(status, content, text) == expected


FAILED = {
    "status": "DONE",
    "httpErrorStatusCode": 412,
    "httpErrorMessage": "PRECONDITION FAILED",
    "error": {"errors": [{"code": "CONDITION_NOT_MET", "message": SUBSTITUTE}]},
}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        pytest.param({"status": "DONE"}, None, id="done"),
        pytest.param(FAILED, Failure(E.INVALID, f"CONDITION_NOT_MET: {SUBSTITUTE}"), id="refused by the policy"),
        pytest.param(
            {"status": "DONE", "httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"},
            Failure(E.UNAVAILABLE, "SERVICE UNAVAILABLE"),
            id="only a status",
        ),
        pytest.param({"status": "DONE", "error": {"errors": []}}, None, id="an empty list of errors"),
    ],
)
def test_error_of_an_operation(operation: dict[str, Any], expected: Failure | None) -> None:
    error = operation_error(operation)
    assert (error.failure() if error else None) == expected


def test_a_specific_error_is_not_hidden_by_a_general_one() -> None:
    errors = [{"code": "INTERNAL_ERROR", "message": "?"}, {"code": "QUOTA_EXCEEDED", "message": "CPUS"}]
    error = attempt_error({"lastAttempt": {"errors": {"errors": errors}}})
    assert error is not None
    assert error.code == "QUOTA_EXCEEDED"
    first = attempt_error({"lastAttempt": {"errors": {"errors": errors[:1]}}})
    assert first is not None
    assert first.code == "INTERNAL_ERROR"


@pytest.mark.parametrize("entry", [{}, {"lastAttempt": {}}, {"lastAttempt": {"errors": {}}}])
def test_no_error_of_the_last_attempt(entry: dict[str, Any]) -> None:
    assert attempt_error(entry) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (request_errors.ReadTimeout("slow"), E.TIMEOUT),
        (connection_errors.TimeoutError("slow"), E.TIMEOUT),
        (connection_errors.ProtocolError("cut off"), E.UNAVAILABLE),
        (request_errors.ConnectTimeout("slow"), E.TIMEOUT),
        (request_errors.ConnectionError("reset"), E.UNAVAILABLE),
        (request_errors.ChunkedEncodingError("cut"), E.UNAVAILABLE),
        (auth_errors.TransportError("no network"), E.UNAVAILABLE),
        (auth_errors.TransportError("Tunnel connection failed: 407 Proxy Authentication Required"), E.DENIED),
        (request_errors.ProxyError("Tunnel connection failed: 407 authenticationrequired"), E.DENIED),
        (request_errors.ProxyError("Tunnel connection failed: 503 Service Unavailable"), E.UNAVAILABLE),
        (auth_errors.RefreshError("revoked"), E.DENIED),
        (auth_errors.DefaultCredentialsError("none"), E.DENIED),
    ],
)
def test_both_families_of_exceptions_have_a_class(error: Exception, expected: ErrorClass) -> None:
    assert isinstance(error, CALL_ERRORS)
    assert failed_call_error(error).failure.error is expected


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (503, {"message": "later"}, E.UNAVAILABLE),
        (504, {"message": "later"}, E.UNAVAILABLE),
        (500, {"message": "oh"}, E.UNAVAILABLE),
        (400, {"message": "bad"}, E.INVALID),
        (403, {"message": "no"}, E.DENIED),
        (403, {"message": "slow", "errors": [{"reason": "rateLimitExceeded"}]}, E.THROTTLED),
        (429, {"message": "no", "details": [{"@type": INFO, "reason": "RESOURCE_AVAILABILITY"}]}, E.STOCKOUT),
        (404, {"message": "no"}, E.NOT_FOUND),
        (412, {"message": "no"}, E.INVALID),
        (429, {"message": "slow"}, E.THROTTLED),
    ],
)
def test_a_refusal_has_a_class_by_its_reason_or_its_status(
    status: int, error: dict[str, Any], expected: ErrorClass
) -> None:
    assert raised(http_error(status, {"error": error}, "")).failure.error is expected


def test_a_conflict_asks_for_another_list() -> None:
    assert isinstance(raised(http_error(409, {"error": {"message": "taken"}}, "")), AlreadyExists)
