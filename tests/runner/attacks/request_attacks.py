"""Forged calls of the Runtime API, and requests that must not leave the sandbox."""

# ruff: noqa: E501 - a table has one row per line

from tests.runner.attacks.catalogue import Attack, Place
from tests.runner.attacks.messages import OTHER, OWN, RUNTIME, TASK, call, get, make_token, post

REFUSED: dict[str, tuple[bytes, str]] = {
    "another host": (get("/v1/task/heartbeat", host="example.com"), "host"),
    "a host and its port": (get("/scratch/t/x", host="127.0.0.1:5432"), "host"),
    "a host with a user": (get("/scratch/t/x", host=f"{OWN}@example.com"), "host"),
    "no host": (b"GET /scratch/t/x HTTP/1.1\r\n\r\n", "host"),
    "two hosts": (get("/scratch/t/x", more="host: example.com\r\n"), "host"),
    "the own host twice": (get("/scratch/t/x", more=f"host: {OWN}\r\n"), "host"),
    "another host in both places": (get("http://example.com/scratch/t/x", host="example.com"), "host"),
    "a user in the target": (get(f"http://user@{OWN}/scratch/t/x"), "host"),
    "a climb below a call": (call("/v1/task/heartbeat/../../internal/jobs"), "path"),
    "an empty host": (get("/scratch/t/x", host=""), "host"),
    "the metadata of a cloud": (get("http://169.254.169.254/latest/meta-data/", host="169.254.169.254"), "host"),
    "a whole address elsewhere": (get("http://example.com/scratch/t/x"), "host"),
    "a whole address with a user": (get(f"http://{OWN}@example.com/scratch/t/x"), "host"),
    "a whole address of a broken kind": (get(f"http://[/{OWN}"), "host"),
    "an encrypted address": (get(f"https://{OWN}/scratch/t/x"), "path"),
    "an internal route": (call("/internal/task-claim"), "path"),
    "the internal list of jobs": (get("/internal/jobs"), "path"),
    "a public route": (call("/v1/dags"), "path"),
    "a batch of calls": (call("/v1/task/batch"), "path"),
    "a climb to internal routes": (call("/v1/task/../../internal/task-claim"), "path"),
    "an escaped route": (call("/v1/task/%68eartbeat"), "path"),
    "a route with parameters": (call("/v1/task/heartbeat?x=1"), "path"),
    "a route with a fragment": (call("/v1/task/heartbeat#x"), "path"),
    "two slashes": (get("//example.com/scratch/t/x"), "path"),
    "all of the server": (get("*", method="OPTIONS"), "path"),
    "another task's token": (call(token=make_token(OTHER)), "token"),
    "another attempt's token": (call(token=make_token(attempt=2)), "token"),
    "no token": (call(token=""), "token"),
    "nonsense as a token": (call(token="x.y.z"), "token"),
    "two tokens": (call(more=f"x-trace-task-capability: {make_token()}\r\n"), "token"),
    "another task's call": (call(body={"task_id": str(OTHER), "attempt": 1}), "task"),
    "another attempt's call": (call(body={"task_id": str(TASK), "attempt": 2}), "task"),
    "a call that is no JSON": (call(body="x"), "body"),
    "deep JSON": (call(body=[[[[[[[[]]]]]]]]), "body"),
    "another method": (get("/v1/task/heartbeat"), "method"),
    "another prefix": (get("/data/datasets/b/1/x"), "prefix"),
    "a sibling with the same beginning": (get("/data/datasets/a/12/x"), "prefix"),
    "another task's scratch": (get("/scratch/u/x"), "prefix"),
    "another bucket": (get("/bundles/datasets/a/1/x"), "prefix"),
    "a climb": (get("/data/datasets/a/1/../../b/x"), "path"),
    "an escaped climb": (get("/data/datasets/a/1/%2e%2e/x"), "path"),
    "an escaped slash climb": (get("/data/datasets/a/1/..%2f..%2fb"), "path"),
    "a doubly escaped climb": (get("/data/datasets/a/1/%252e%252e/x"), "path"),
    "a climb of overlong characters": (get("/data/datasets/a/1/%c0%ae%c0%ae/x"), "path"),
    "a backslash": (get("/data/datasets/a/1/..\\x"), "path"),
    "an empty segment": (get("/data/datasets/a/1//x"), "path"),
    "a NUL": (get("/data/datasets/a/1/%00"), "path"),
    "an escaped line feed": (get("/data/datasets/a/1/x%0d%0ax-amz-copy-source:%20/b"), "path"),
    "a broken escape": (get("/data/datasets/a/1/%zz"), "path"),
    "all buckets": (get("/"), "path"),
    "a whole bucket": (get("/data?list-type=2"), "parameter"),
    "a listing above": (get("/data?list-type=2&prefix=datasets/"), "prefix"),
    "a listing of a sibling": (get("/data?list-type=2&prefix=datasets/a/1"), "prefix"),
    "an escaped listing of all": (get("/data?list-type=2&prefix=%2f"), "path"),
    "two prefixes": (get("/data?prefix=datasets/a/1/&prefix=datasets/"), "parameter"),
    "a policy": (get("/data?policy"), "parameter"),
    "an access list": (get("/data/datasets/a/1/x?acl"), "parameter"),
    "versions of objects": (get("/data?versions&prefix=datasets/a/1/"), "parameter"),
    "tags": (get("/data/datasets/a/1/x?tagging"), "parameter"),
    "a presigned address of others": (get("/data/datasets/b/1/x?X-Amz-Signature=0&X-Amz-Expires=600"), "prefix"),
    "writing an input": (get("/data/datasets/a/1/x", method="PUT"), "prefix"),
    "a new bucket": (get("/other", method="PUT"), "method"),
    "deleting": (get("/scratch/t/x", method="DELETE"), "method"),
    "deleting many": (get("/scratch?delete", method="POST"), "method"),
    "patching": (get("/scratch/t/x", method="PATCH"), "method"),
    "tracing": (get("/scratch/t/x", method="TRACE"), "method"),
    "a copy": (get("/scratch/t/x", method="PUT", more="x-amz-copy-source: /data/datasets/b/1/x\r\n"), "copy"),
    "a copy of a part": (
        get("/scratch/t/x?partNumber=1&uploadId=u", method="PUT", more="x-amz-copy-source-range: bytes=0-1\r\n"),
        "copy",
    ),
}
"""What the proxy refuses, and its reason."""

SMUGGLED = get("/internal/jobs")
SMUGGLING: dict[str, bytes] = {
    "length and chunks": call(more="transfer-encoding: chunked\r\n") + b"0\r\n\r\n" + SMUGGLED,
    "chunks and length": get("/scratch/t/x", method="PUT", more="transfer-encoding: chunked\r\ncontent-length: 5\r\n")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "two lengths": call(more="content-length: 0\r\n") + SMUGGLED,
    "two lengths in one": get("/scratch/t/x", method="PUT", more="content-length: 0, 5\r\n") + SMUGGLED,
    "a signed length": get("/scratch/t/x", method="PUT", more="content-length: +5\r\n") + SMUGGLED,
    "a huge length": get("/scratch/t/x", method="PUT", more=f"content-length: {1 << 65}\r\n") + SMUGGLED,
    "a length in hexadecimal": get("/scratch/t/x", method="PUT", more="content-length: 0x5\r\n") + SMUGGLED,
    "a folded header": get("/scratch/t/x", more="x-amz-meta: a\r\n b\r\n"),
    "a space before the colon": get("/scratch/t/x", more="content-length : 5\r\n"),
    "a bare line feed": b"GET /scratch/t/x HTTP/1.1\nhost: " + OWN.encode() + b"\n\n",
    "a bare carriage return": get("/scratch/t/x", more="x-amz-meta: a\rcontent-length: 5\r\n") + SMUGGLED,
    "a NUL in a header": get("/scratch/t/x", more="x-amz-meta: a\0b\r\n"),
    "unknown encoding": call(more="transfer-encoding: chunked, x\r\n") + SMUGGLED,
    "chunks by another name": get("/scratch/t/x", method="PUT", more="transfer-encoding: xchunked\r\n") + SMUGGLED,
    "chunks twice": get(
        "/scratch/t/x", method="PUT", more="transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n"
    )
    + b"0\r\n\r\n"
    + SMUGGLED,
    "chunks after a tab": get("/scratch/t/x", method="PUT", more="transfer-encoding:\x0bchunked\r\n") + SMUGGLED,
    "a chunk with a bad size": get("/scratch/t/x", method="PUT", more="transfer-encoding: chunked\r\n")
    + b"5;x\nabcde\r\n0\r\n\r\n"
    + SMUGGLED,
    "a chunk that is too large": get("/scratch/t/x", method="PUT", more="transfer-encoding: chunked\r\n")
    + b"fffffffffffffffff\r\n"
    + SMUGGLED,
    "a header after the body": get("/scratch/t/x", method="PUT", more="transfer-encoding: chunked\r\n")
    + b"0\r\nx-amz-copy-source: /data/datasets/b/1/x\r\n\r\n"
    + SMUGGLED,
    "a tunnel": get("example.com:443", method="CONNECT", host="example.com:443"),
    "a tunnel to itself": get(OWN, method="CONNECT"),
    "upgrade": get("/scratch/t/x", more="connection: upgrade\r\nupgrade: h2c\r\n"),
    "a web socket": get(
        "/scratch/t/x", more="connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\n"
    ),
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an old protocol": b"GET /internal/jobs\r\n\r\n",
    "a future protocol": b"GET /scratch/t/x HTTP/9.9\r\nhost: " + OWN.encode() + b"\r\n\r\n" + SMUGGLED,
    "pipelined": get("/scratch/t/x") + SMUGGLED,
    "pipelined often": get("/scratch/t/x") * 100 + SMUGGLED,
    "too large": call(body={"task_id": str(TASK), "attempt": 1, "x": "x" * 2000}),
    "an endless head": get("/scratch/t/x", more="x: " + "x" * 200_000 + "\r\n"),
    "many headers": get("/scratch/t/x", more="x: y\r\n" * 50_000),
    "a long target": get("/scratch/t/" + "x" * 200_000),
    "a target that is not ASCII": b"GET /scratch/t/\xff HTTP/1.1\r\nhost: " + OWN.encode() + b"\r\n\r\n",
    "a header that is not ASCII": get("/scratch/t/x", more="x-amz-\xe9: y\r\n"),
    "a line feed in the target": b"GET /scratch/t/x\nHTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    "nothing": b"",
    "half of a request": get("/scratch/t/x")[:-2],
    "half of a body": call()[:-5],
}
"""Requests that two programs may read differently, and what is no request."""

FORGED: dict[str, tuple[bytes, frozenset[str]]] = {
    "another request's answer": (post("/invocation/request-2/response"), frozenset({"400"})),
    "another request's error": (post("/invocation/request-2/error", b"{}"), frozenset({"400"})),
    "an answer through a climb": (post("/invocation/../invocation/request-1/response"), frozenset({"404"})),
    "an answer by an escaped id": (post("/invocation/request%2d1/response"), frozenset({"404"})),
    "an answer to nobody": (post("/invocation//response"), frozenset({"404"})),
    "an answer by a long id": (post(f"/invocation/{'x' * 5000}/response"), frozenset({"404"})),
    "an answer by another method": (post("/invocation/request-1/response").replace(b"POST", b"PUT"), frozenset({"404"})),
    "an answer with parameters": (post("/invocation/request-1/response?x"), frozenset({"404"})),
    "another version of the API": (get("/2099-01-01/runtime/invocation/next"), frozenset({"404"})),
    "a restored runtime": (post("/restore/error"), frozenset({"404"})),
    "a route of the platform": (call("/v1/task/complete"), frozenset({"404"})),
    "a file of the runner": (get("/etc/passwd"), frozenset({"404"})),
    "nonsense": (b"\x16\x03\x01 nonsense\r\n\r\n", frozenset({"400", "closed"})),
    "an endless head": (post("/restore/error", more="x: " + "x" * 200_000 + "\r\n"), frozenset({"431", "closed"})),
    "length and chunks": (post("/restore/error", more="transfer-encoding: chunked\r\n"), frozenset({"400", "closed"})),
    "an upgrade": (get(f"{RUNTIME}/invocation/next", more="connection: upgrade\r\nupgrade: h2c\r\n"), frozenset({"400", "closed"})),
    "half of a call": (post("/invocation/request-1/response")[:-3], frozenset({"closed"})),
}  # fmt: skip


def _message(place: Place, name: str, message: bytes, contained: frozenset[str], tries: str) -> Attack:
    port = "9001" if place is Place.RUNTIME else "9002"
    return Attack(
        name=f"{place.value}: {name}",
        tries=tries,
        place=place,
        verb="send",
        arguments=(port, message),
        contained=contained,
    )


_AT_MOST_ONE = frozenset({"200", "400", "403", "413", "431", "closed"})
ATTACKS = (
    *(
        _message(Place.RUNTIME, name, message, contained, "a forged call")
        for name, (message, contained) in FORGED.items()
    ),
    *(
        _message(Place.PROXY, name, message, frozenset({"403"}), f"refused for its {reason}")
        for name, (message, reason) in REFUSED.items()
    ),
    *(
        _message(Place.PROXY, name, message, _AT_MOST_ONE, "one request at most, as both sides read it")
        for name, message in SMUGGLING.items()
    ),
)
