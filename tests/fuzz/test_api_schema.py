"""The JSON API answers any request as its own OpenAPI document says, by schemathesis."""

import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from support.aggregator.reports import story
from support.aggregator.serve_process import push, serving

from goodput.aggregator.api.app import create_app

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
positive_data_acceptance = pytest.importorskip("schemathesis.specs.openapi.checks").positive_data_acceptance

RUN = "r1"


@pytest.fixture(scope="module")
def openapi(tmp_path_factory):
    ledger = tmp_path_factory.mktemp("api") / "ledger.db"
    with serving(create_app(f"sqlite:///{ledger}")) as client:
        for ranks in story(start=time.time() - 60):
            push(client, *ranks)
        yield schemathesis.openapi.from_url(f"{client.base_url}/api/v1/openapi.json")


# `make fuzz` draws others in every run.
EXAMPLES = 3 if settings.default.derandomize else settings.default.max_examples


@pytest.mark.hypothesis
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_those_of_the_document(openapi, mode):
    """Requests as the document describes them, and others; half of those for a run are for one that is there."""
    operations = [found.ok() for found in openapi.get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
        def answer(case, is_known):
            if is_known and "run" in case.path_parameters:
                case.path_parameters = {**case.path_parameters, "run": RUN}
            # That a window ends after it starts, and a run in the past, no schema can say.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        with suppress(Unsatisfiable):  # Nothing about such a request can be wrong.
            answer()
