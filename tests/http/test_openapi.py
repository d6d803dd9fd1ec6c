"""The generated OpenAPI: complete, well-formed, and about nothing but its own listener."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tools.openapi import build_openapi

from tracelake.errors import CATALOGUE
from tracelake.wire.contract import HEADERS, Listener, Principal
from tracelake.wire.routes import ROUTES, routes_of
from tracelake.wire.webhooks import DELIVERY_HEADER

EVERY = pytest.mark.parametrize("listener", list(Listener))


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(item)


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


@EVERY
def test_it_holds_the_routes_of_its_listener_and_no_other(listener: Listener) -> None:
    document = build_openapi(listener, ROUTES)
    mine = {(route.method, route.path) for route in routes_of(listener)}
    assert set(operations(document)) == mine
    assert document["openapi"] == "3.1.0"
    ids = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(ids)) == len(ids)
    assert json.loads(json.dumps(document)) == document


@EVERY
def test_every_reference_leads_somewhere_and_everything_is_used(listener: Listener) -> None:
    document = build_openapi(listener, ROUTES)
    used = set()
    for node in walk(document):
        reference = node.get("$ref")
        if isinstance(reference, str):
            target: Any = document
            for part in reference.removeprefix("#/").split("/"):
                target = target[part]
            used.add(reference)
    for kind in ("schemas", "responses"):
        assert {f"#/components/{kind}/{name}" for name in document["components"][kind]} == {
            reference for reference in used if f"/{kind}/" in reference
        }


@EVERY
def test_credentials_are_those_of_the_table(listener: Listener) -> None:
    document = build_openapi(listener, ROUTES)
    found = operations(document)
    schemes = document["components"]["securitySchemes"]
    for route in routes_of(listener):
        security = found[(route.method, route.path)]["security"]
        if route.principal not in HEADERS:
            assert security == []
            continue
        ((name, scopes),) = security[0].items()
        assert scopes == []
        if route.principal is Principal.USER:
            assert schemes[name]["scheme"] == "bearer"
        else:
            assert (schemes[name]["in"], schemes[name]["name"]) == ("header", HEADERS[route.principal])
        assert "401" in found[(route.method, route.path)]["responses"]
    assert len(schemes) == len({route.principal for route in routes_of(listener)} & set(HEADERS))


@EVERY
def test_bodies_are_strict_and_parameters_are_there(listener: Listener) -> None:
    document = build_openapi(listener, ROUTES)
    found = operations(document)
    schemas = document["components"]["schemas"]
    for route in routes_of(listener):
        operation = found[(route.method, route.path)]
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        signed = {DELIVERY_HEADER} if route.principal is Principal.WEBHOOK else set()
        assert names == {item.name for item in (*route.path_parameters, *route.query)} | signed
        assert ("requestBody" in operation) == route.reads_body
        if route.decoder is not None:
            assert schemas[route.body.__name__]["additionalProperties"] is False
            assert {"400", "413", "422"} <= set(operation["responses"])


WITHOUT_NAMES = ("/v1/dlq-replay", "/v1/dlq-drop", "/v1/triggers")
"""They name a thing in their body, or by a text that the caller chose."""


def test_routes_of_people_say_their_role_and_what_they_refuse() -> None:
    document = build_openapi(Listener.PUBLIC, ROUTES)
    found = operations(document)
    for route in routes_of(Listener.PUBLIC):
        operation = found[(route.method, route.path)]
        assert {"401", "422", "429", "500", "503"} <= set(operation["responses"])
        assert ("403" in operation["responses"]) == (route.role is not None)
        named = route.path_parameters or {item.name for item in route.query} & {"dag", "job", "dataset"}
        assert ("404" in operation["responses"]) == bool(named or route.path in WITHOUT_NAMES)
        if route.role is not None:
            assert f"role {route.role}" in operation["description"]
    assert "Retry-After" in document["components"]["responses"]["Error429"]["headers"]


def test_a_document_is_a_string_of_yaml_and_its_problems_are_described() -> None:
    document = build_openapi(Listener.PUBLIC, ROUTES)
    deploy = document["paths"]["/v1/dags/{dag}/versions"]["post"]
    assert deploy["requestBody"]["content"] == {"application/yaml": {"schema": {"type": "string"}}}
    assert "#/components/schemas/InvalidDag" in json.dumps(deploy["responses"]["422"])
    source = document["paths"]["/v1/dags/{dag}/versions/{number}"]["get"]
    assert list(source["responses"]["200"]["content"]) == ["application/yaml"]


def test_path_parameters_have_their_own_kinds() -> None:
    found = operations(build_openapi(Listener.PUBLIC, ROUTES))
    kinds = {
        parameter["name"]: parameter["schema"]
        for operation in found.values()
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "path"
    }
    assert kinds["task_id"]["format"] == "uuid"
    assert kinds["number"]["type"] == "integer"
    assert {kinds[name]["pattern"] for name in ("dag", "job", "name")} == {"^[a-z][a-z0-9_]{0,127}$"}


def test_errors_are_the_catalogue_by_status() -> None:
    documents = [build_openapi(listener, ROUTES) for listener in Listener]
    for document in documents:
        for name, response in document["components"]["responses"].items():
            schema = response["content"]["application/json"]["schema"]
            codes = schema["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"]
            assert {CATALOGUE[code].status for code in codes} == {int(name.removeprefix("Error"))}


def test_batches_say_what_their_items_are() -> None:
    task = build_openapi(Listener.TASK, ROUTES)["components"]["schemas"]
    assert task["BatchRequest"]["properties"]["calls"]["items"] == {"$ref": "#/components/schemas/BatchCall"}
    bodies = {item["$ref"].rpartition("/")[2] for item in task["BatchCall"]["properties"]["body"]["anyOf"]}
    assert bodies == {"HeartbeatRequest", "CompleteRequest", "EventsRequest", "BufferPublishRequest"}
    internal = build_openapi(Listener.INTERNAL, ROUTES)["components"]["schemas"]
    claims = internal["ClaimBatchRequest"]["properties"]["claims"]
    assert (claims["items"], claims["maxItems"]) == ({"$ref": "#/components/schemas/ClaimRequest"}, 256)


@EVERY
def test_patterns_mean_the_same_everywhere(listener: Listener) -> None:
    r"""`\Z` is Python's alone; in JSON Schema `$` is the very end."""
    for node in walk(build_openapi(listener, ROUTES)):
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            assert pattern.startswith("^")
            assert pattern.endswith("$")
            assert "\\" not in pattern
