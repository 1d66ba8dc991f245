"""The page of REST: what its OpenAPI description says."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI

from documentation.tables import table
from nearcast.web.live import Live
from nearcast.web.login import add_login
from nearcast.web.metrics import WebMetrics
from nearcast.web.operations import Operations
from nearcast.web.rest import add_rest

__all__ = ["rest_reference"]


def rest_reference() -> str:
    """The page as text."""
    app = FastAPI(title="Nearcast")
    operations = Operations(cast(Any, None))  # nothing is asked: only the description is made
    live = Live(operations)
    add_login(app, cast(Any, None))
    add_rest(app, operations, live, WebMetrics(live))
    described = app.openapi()
    rows = [
        (f"`{method.upper()} {path}`", operation.get("description") or operation["summary"], _parameters(operation))
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    bodies = [
        f"### {name}\n\n{schema.get('description', '')}\n\n{_properties(schema)}"
        for name, schema in sorted(described["components"]["schemas"].items())
        if schema.get("additionalProperties") is False
    ]
    answers = described["paths"]["/api/v1/sites"]["get"]["responses"]
    errors = [(code, answer["description"]) for code, answer in sorted(answers.items()) if code != "200"]
    return f"""# REST

Served by `nearcast web` ([console](../console.md)); the machine-readable description is `/api/v1/openapi.json`.

{table(("request", "what", "parameters and body"), rows)}

## Answers that are no success

{table(("status", "what"), errors)}

## Bodies

{chr(10).join(body + chr(10) for body in bodies)}"""


def _parameters(operation: dict[str, Any]) -> str:
    names = [f"`{one['name']}`" for one in operation.get("parameters", ())]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in body:
        name = body["$ref"].rpartition("/")[2]
        names.append(f"[{name}](#{name.lower()})")
    return ", ".join(names)


def _properties(schema: dict[str, Any]) -> str:
    rows = []
    for name, found in schema["properties"].items():
        kinds = [part for part in found.get("anyOf", [found]) if part.get("type") != "null"]
        kind = " or ".join(
            f"{part.get('type')} of {part['items'].get('type')}" if "items" in part else str(part.get("type"))
            for part in kinds
        )
        default = "required" if name in schema.get("required", ()) else f"`{found.get('default')}`"
        rows.append((f"`{name}`", kind, default))
    return table(("key", "type", "default"), rows)
