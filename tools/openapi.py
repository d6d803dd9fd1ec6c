"""OpenAPI 3.1 documents of the route table, one per listener.

Schemas are msgspec's own, so what is documented is what is decoded. What no decoder type can say is added here: what
the raw items of batches hold, which error codes a status may carry, which role opens a route, and when a limited user
may come again.
"""

import inspect
import re
from collections.abc import Iterable
from dataclasses import replace
from types import NoneType
from typing import Any

import msgspec

from tracelake import __version__
from tracelake.errors import CATALOGUE
from tracelake.wire.base import Answer, ErrorBody
from tracelake.wire.claims import MAX_BATCH, ClaimRequest
from tracelake.wire.contract import BYTES, HEADERS, JSON, Listener, Principal, Route
from tracelake.wire.dags import InvalidDag
from tracelake.wire.parameters import DELIVERY_ID, Parameter
from tracelake.wire.platform import Health
from tracelake.wire.routes import BATCHED_CALLS
from tracelake.wire.task_calls import BatchCall
from tracelake.wire.webhooks import DELIVERY_HEADER

_REF = "#/components/schemas/{name}"
_TITLES = {
    Listener.PUBLIC: "Trace: public listener (people and their tools)",
    Listener.TASK: "Trace: task listener (runners, wrappers, untrusted code)",
    Listener.INTERNAL: "Trace: internal listener (worker wrappers, platform services, probes)",
    Listener.QUERY: "Trace: Query Service (people and their tools)",
    Listener.QUERY_TASK: "Trace: Query Service, task listener (untrusted code)",
    Listener.RUNNER: "Trace: runner of users' functions (Dispatchers, probes)",
}
_SCHEMES: dict[Principal, tuple[str, dict[str, str]]] = {
    Principal.USER: ("userToken", {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}),
    Principal.TASK: ("taskCapability", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.TASK]}),
    Principal.WORKER: ("workerToken", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.WORKER]}),
    Principal.SERVICE: ("serviceToken", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.SERVICE]}),
    Principal.WEBHOOK: ("webhookSignature", {"type": "apiKey", "in": "header", "name": HEADERS[Principal.WEBHOOK]}),
}
_UNREADY = {"/readyz": "Not ready", "/healthz": "Not alive: restart it"}
_DELIVERY = "The sender's id of the delivery: the same one again is the same delivery."


def build_openapi(listener: Listener, routes: Iterable[Route[Any, Any]]) -> dict[str, Any]:
    mine = [route for route in routes if listener in route.listeners]
    types: list[Any] = [ErrorBody]
    for route in mine:
        types += [kind for kind in (route.body, route.reply) if kind not in (NoneType, bytes)]
        if "dag_invalid" in route.errors:
            types.append(InvalidDag)
        types += route.items
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


def _operation(route: Route[Any, Any], statuses: list[int]) -> dict[str, Any]:
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
    parameters = [_parameter(item, "path") for item in route.path_parameters]
    parameters += [_parameter(item, "query") for item in route.query]
    if route.principal is Principal.WEBHOOK:
        parameters.append(_parameter(replace(DELIVERY_ID, name=DELIVERY_HEADER, description=_DELIVERY), "header"))
    if parameters:
        operation["parameters"] = parameters
    if route.reads_body:
        schema = {"type": "string"} if route.body is bytes else _ref(route.body)
        operation["requestBody"] = {"required": True, "content": {route.body_media: {"schema": schema}}}
    responses: dict[str, Any] = {"200": _success(route)}
    responses |= {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}
    if route.path in _UNREADY:
        responses["503"] = {"description": _UNREADY[route.path], "content": {JSON: {"schema": _ref(Health)}}}
    if "dag_invalid" in route.errors:
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
    schema = general["content"][JSON]["schema"]
    others = [code for code in schema["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"]
              if code != "dag_invalid"]  # fmt: skip
    other = {"properties": {"error": {"properties": {"code": {"enum": others}}}}}
    return {
        "description": general["description"],
        "content": {JSON: {"schema": {"allOf": [_ref(ErrorBody), {"anyOf": [details, other]}]}}},
    }


def _success(route: Route[Any, Any]) -> dict[str, Any]:
    if route.reply is not bytes:
        return {"description": "Done", "content": {JSON: {"schema": _ref(route.reply)}}}
    if route.principal is Principal.METRICS:
        return {"description": "Done", "content": {route.reply_media: {"schema": {"type": "string"}}}}
    # No type: some tools read the document itself, others its text.
    kind = "*/*" if route.reply_media == BYTES else route.reply_media
    return {"description": "Done", "content": {kind: {"schema": {}}}}


def _error_statuses(route: Route[Any, Any]) -> list[int]:
    """The statuses of errors: those that credential, body and parameters imply, and those of the route's own codes."""
    parameters = (*route.path_parameters, *route.query)
    statuses = {500} | {CATALOGUE[code].status for code in route.errors}
    statuses |= {CATALOGUE[parameter.missing].status for parameter in parameters if parameter.missing is not None}
    if route.principal in _SCHEMES:
        statuses.add(401)
    if route.decoder is not None:
        statuses.add(400)
    if route.reads_body:
        statuses.add(413)
    if route.reads_body or parameters:
        statuses |= {422, 503}
    if route.principal is Principal.TASK:
        statuses |= {403, 404, 409}
    if route.principal is Principal.USER:
        statuses |= {422, 429, 503}
    if route.role is not None:
        statuses.add(403)
    return sorted(statuses)


def _error_response(status: int) -> dict[str, Any]:
    codes = [kind.code for kind in CATALOGUE.values() if kind.status == status and kind.answered]
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    schema = {"allOf": [_ref(ErrorBody), narrowed]}
    response = {"description": "Refused: " + ", ".join(codes), "content": {JSON: {"schema": schema}}}
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
        schemas["BatchCall"]["properties"]["body"] = {"anyOf": [_ref(route.body) for route in BATCHED_CALLS.values()]}
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
