"""The error tree: complete, with one code and one status for each error."""

import importlib
import inspect
import pkgutil

import apexbridge
from apexbridge.agent.request import BadRequestError
from apexbridge.errors import STATUS_OF_CODE, ApexBridgeError, InvalidInputError, InvalidSchemaError, RequestError
from apexbridge.llm.upstream_errors import UpstreamError

PROGRAMS = ("apexbridge.sandbox.launcher.", "apexbridge.sandbox.loaders.", "apexbridge.sandbox.canaries.")
"""Separate programs: no module imports them."""


def exceptions() -> set[type[BaseException]]:
    found = set()
    for module in pkgutil.walk_packages(apexbridge.__path__, "apexbridge."):
        if module.name.startswith(PROGRAMS):
            continue
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(value, BaseException) and value.__module__.startswith("apexbridge."):
                found.add(value)
    return found


def test_errors_that_callers_see_are_in_the_tree() -> None:
    assert issubclass(BadRequestError, RequestError)
    assert issubclass(UpstreamError, ApexBridgeError)
    assert issubclass(InvalidSchemaError, InvalidInputError)


def test_the_docstring_shows_the_whole_tree() -> None:
    from apexbridge import errors

    docstring = errors.__doc__ or ""
    in_tree = {error for error in exceptions() if issubclass(error, ApexBridgeError)}
    expected = {error for error in in_tree if not error.__module__.startswith("apexbridge.surfaces.cli")}
    assert [error.__name__ for error in expected if error.__name__ not in docstring] == []


def test_every_code_has_a_status() -> None:
    in_tree = [error for error in exceptions() if issubclass(error, ApexBridgeError)]
    assert {error.default_code for error in in_tree} <= set(STATUS_OF_CODE)


def test_an_error_in_openais_format_also_has_a_code_of_ours() -> None:
    error = BadRequestError("no", param="model", openai_code="model_not_found", code="NOT_FOUND", status=404)
    assert (error.status, error.code, error.openai_code) == (404, "NOT_FOUND", "model_not_found")
    assert error.to_json()["details"] == {"param": "model"}


def test_a_model_servers_error_keeps_its_status() -> None:
    error = UpstreamError(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "3"})
    assert (error.status, error.code, error.error["message"]) == (429, "UPSTREAM_ERROR", "slow down")
