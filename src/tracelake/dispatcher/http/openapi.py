"""OpenAPI 3.1 from the route table: one document per listener, nothing written twice.

Schemas are msgspec's own, so what is documented is what is decoded. What no decoder type can say is added here: what
the raw items of batches hold, which error codes a status may carry, which role opens a route, and when a limited user
may come again.
"""

import inspect
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import msgspec

from tracelake import __version__
from tracelake.dispatcher.http.credentials import HEADERS
from tracelake.dispatcher.http.handlers import Handlers
from tracelake.dispatcher.http.parameters import DELIVERY_ID, Parameter
from tracelake.dispatcher.http.routing import Listener, Principal, Route
from tracelake.dispatcher.http.table import ANYTHING, build_routes, routes_of
from tracelake.dispatcher.http.user_handlers import YAML, UserHandlers
from tracelake.errors import CATALOGUE
from tracelake.wire.base import Answer, ErrorBody
from tracelake.wire.claims import MAX_BATCH, ClaimRequest
from tracelake.wire.dags import InvalidDag
from tracelake.wire.platform import Health
from tracelake.wire.task_calls import (
    BatchCall,
    BufferPublishRequest,
    CompleteRequest,
    EventsRequest,
    HeartbeatRequest,
)
from tracelake.wire.webhooks import DELIVERY_HEADER

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_TITLES = {
    Listener.PUBLIC: "Trace: public listener (people and their tools)",
    Listener.TASK: "Trace: task listener (runners, wrappers, untrusted code)",
    Listener.INTERNAL: "Trace: internal listener (worker wrappers, platform services, probes)",
}
_SCHEMES: dict[Principal, tuple[str, dict[str, str]]] = {
    Principal.USER: ("userToken", {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}),
    Principal.TASK: ("taskCapability", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.TASK]}),
    Principal.WORKER: ("workerToken", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.WORKER]}),
    Principal.SERVICE: ("serviceToken", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.SERVICE]}),
    Principal.WEBHOOK: ("webhookSignature", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.WEBHOOK]}),
}
_TASK_BODIES = (HeartbeatRequest, CompleteRequest, EventsRequest, BufferPublishRequest)
_FILTERS_BY_NAME = frozenset({"dag", "job", "dataset"})
_FENCED_PATHS = ("/internal/task-token",)
_NAMES_A_TASK = ("/internal/task-fetch", "/internal/task-token", "/internal/task-introspect", "/internal/tasks")
_NAMES_A_SOURCE = "/internal/sources/"
_NAMES_A_BATCH = ("/internal/buffer-committed", "/internal/buffer-rejected", "/v1/dlq-")
_UNREADY = {"/readyz": "Not ready", "/healthz": "Not alive: restart it"}
_DELIVERY = "The sender's id of the delivery: the same one again is the same delivery."


def declared_routes() -> list[Route]:
    """The table without a Dispatcher behind it: for documents, never for calls."""
    nothing = cast(Any, None)
    return build_routes(
        Handlers(*[nothing] * 11),
        UserHandlers(*[nothing] * 8),
    )


def build_openapi(listener: Listener, routes: Iterable[Route]) -> dict[str, Any]:
    mine = routes_of(list(routes), listener)
    types: list[Any] = [ErrorBody]
    for route in mine:
        types += [kind for kind in (route.body, route.reply) if kind is not None]
        if route.raw_body == YAML:
            types.append(InvalidDag)
        if route.per_item:
            types += [ClaimRequest] if listener is Listener.INTERNAL else [BatchCall, *_TASK_BODIES]
    unique = list(dict.fromkeys(types))
    _, schemas = msgspec.json.schema_components(unique, ref_template=_REF)
    statuses: set[int] = set()
    paths: dict[str, Any] = {}
    for route in mine:
        wanted = _error_statuses(route)
        statuses.update(wanted)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, wanted)
    principals = [principal for principal in _SCHEMES if any(route.principal is principal for route in mine)]
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLES[listener], "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _portable(_with_items(schemas)),
            "responses": {f"Error{status}": _error_response(status) for status in sorted(statuses)},
            "securitySchemes": {_SCHEMES[principal][0]: _SCHEMES[principal][1] for principal in principals},
        },
    }


def _operation(route: Route, statuses: list[int]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "security": [{_SCHEMES[route.principal][0]: []}] if route.principal in _SCHEMES else [],
    }
    if route.principal is Principal.ITEMS:
        operation["description"] = (
            "Each item carries its own capability token and is answered by itself. A body above 64 KiB needs the token "
            f"of one of them in the header {HEADERS[Principal.TASK]} too, unless one was accepted on the connection."
        )
    if route.principal is Principal.METRICS:
        operation["description"] = "On another address than loopback: with the metrics token as bearer token."
    if route.role is not None:
        operation["description"] = f"For users with the role {route.role} or one above it."
    parameters = [_parameter(item, "path") for item in route.parameters]
    parameters += [_parameter(item, "query") for item in route.query]
    if route.principal is Principal.WEBHOOK:
        parameters.append(_parameter(replace(DELIVERY_ID, name=DELIVERY_HEADER, description=_DELIVERY), "header"))
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": _ref(route.body)}}}
    if route.raw_body is not None:
        operation["requestBody"] = {"required": True, "content": {route.raw_body: {"schema": {"type": "string"}}}}
    responses: dict[str, Any] = {"200": _success(route)}
    responses |= {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}
    if route.path in _UNREADY:
        responses["503"] = {"description": _UNREADY[route.path], "content": {_JSON: {"schema": _ref(Health)}}}
    if route.raw_body == YAML:
        responses["422"] = _invalid_document()
    operation["responses"] = responses
    return operation


def _parameter(item: Parameter, where: str) -> dict[str, Any]:
    return {
        "name": item.name,
        "in": where,
        "required": item.required or where in ("path", "header"),
        "description": item.description,
        "schema": _inline(item.kind) | ({} if item.default is None else {"default": item.default}),
    }


def _invalid_document() -> dict[str, Any]:
    """422 of a route that takes a DAG: every problem is in the details."""
    general = _error_response(422)
    details = {"properties": {"error": {"properties": {"code": {"const": "dag_invalid"}, "details": _ref(InvalidDag)}}}}
    schema = general["content"][_JSON]["schema"]
    others = [code for code in schema["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"]
              if code != "dag_invalid"]  # fmt: skip
    other = {"properties": {"error": {"properties": {"code": {"enum": others}}}}}
    return {
        "description": general["description"],
        "content": {_JSON: {"schema": {"allOf": [_ref(ErrorBody), {"anyOf": [details, other]}]}}},
    }


def _success(route: Route) -> dict[str, Any]:
    if route.raw_reply is not None:
        # No type: some tools read the document itself, others its text.
        kind = "*/*" if route.raw_reply == ANYTHING else route.raw_reply
        return {"description": "Done", "content": {kind: {"schema": {}}}}
    if route.reply is None:
        return {"description": "Done", "content": {_TEXT: {"schema": {"type": "string"}}}}
    return {"description": "Done", "content": {_JSON: {"schema": _ref(route.reply)}}}


def _error_statuses(route: Route) -> list[int]:
    """Which errors a call of this route can meet."""
    statuses = {500}
    if route.principal in _SCHEMES:
        statuses.add(401)
    if route.body is not None:
        statuses.add(400)
    if route.reads_body:
        statuses.add(413)
    if route.reads_body or route.parameters or route.query:
        statuses |= {422, 503}
    if route.principal is Principal.TASK:
        statuses |= {403, 404, 409}
    if route.path.startswith(_NAMES_A_TASK) or route.path.endswith(("/requeue", "/drop")):
        statuses.add(404)
    if route.path.startswith((_NAMES_A_SOURCE, *_NAMES_A_BATCH)):
        statuses.add(404)
    if route.path in _FENCED_PATHS:
        statuses.add(409)
    if route.principal is Principal.WEBHOOK:
        statuses |= {404, 429}
    if route.principal is Principal.USER:
        statuses |= {422, 429, 503}
        if route.role is not None:
            statuses.add(403)
        if route.parameters or any(parameter.name in _FILTERS_BY_NAME for parameter in route.query):
            statuses.add(404)
    return sorted(statuses)


def _error_response(status: int) -> dict[str, Any]:
    codes = [kind.code for kind in CATALOGUE.values() if kind.status == status and kind.answered]
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    schema = {"allOf": [_ref(ErrorBody), narrowed]}
    response = {"description": "Refused: " + ", ".join(codes), "content": {_JSON: {"schema": schema}}}
    if status == 429:
        seconds = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": seconds}}
    return response


def _with_items(schemas: dict[str, Any]) -> dict[str, Any]:
    """What the decoder leaves raw, because each item is decoded by itself."""
    sizes = {"minItems": 1, "maxItems": MAX_BATCH}
    if "ClaimBatchRequest" in schemas:
        schemas["ClaimBatchRequest"]["properties"]["claims"] = {"type": "array", "items": _ref(ClaimRequest), **sizes}
    if "BatchRequest" in schemas:
        schemas["BatchRequest"]["properties"]["calls"] = {"type": "array", "items": _ref(BatchCall), **sizes}
        schemas["BatchCall"]["properties"]["body"] = {"anyOf": [_ref(body) for body in _TASK_BODIES]}
    if Answer.__name__ in schemas:
        schemas[Answer.__name__]["properties"]["body"] = {
            "type": "object",
            "description": "What the single call would have answered with this status.",
        }
    return schemas


def _ref(kind: type[Any]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _inline(kind: Any) -> dict[str, Any]:
    schema: dict[str, Any] = _portable(msgspec.json.schema(kind))
    return schema


def _portable(schema: Any) -> Any:
    """Patterns as every reader of JSON Schema has them: there `$` is the very end, and `\\Z` is nothing. Descriptions
    without the indentation of the source, which Python keeps before 3.13 and drops from then on."""
    if isinstance(schema, dict):
        return {key: _portable_value(key, value) for key, value in schema.items()}
    return [_portable(item) for item in schema] if isinstance(schema, list | tuple) else schema


def _portable_value(key: str, value: Any) -> Any:
    if key == "pattern" and isinstance(value, str):
        return value.replace("\\Z", "$")
    if key == "description" and isinstance(value, str):
        return inspect.cleandoc(value)
    return _portable(value)
