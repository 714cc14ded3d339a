"""The tree of exceptions: codes, statuses, messages, and the drawing in the module's docstring."""

import json
import pickle
import re

import pytest

from workflows import exceptions
from workflows.exceptions import InvalidInput, KeyConflict, SagError, StaleVersion, WrongState


def tree(root: type[SagError] = SagError) -> list[type[SagError]]:
    ours = [child for child in root.__subclasses__() if child.__module__ == exceptions.__name__]
    return [root, *(found for child in ours for found in tree(child))]


def test_the_drawing_shows_every_class_in_its_place() -> None:
    drawn = re.findall(r"^([│├└─ ]*)([A-Z]\w+)", exceptions.__doc__.partition("Each class")[0], re.M)
    assert [name for prefix, name in drawn if prefix or name == "SagError"] == [error.__name__ for error in tree()]
    depth = {name: len(prefix) // 4 for prefix, name in drawn}
    for error in tree()[1:]:
        assert depth[error.__name__] == error.__mro__.index(SagError)


def test_every_class_has_a_code_of_its_own_and_a_status() -> None:
    codes = [error.code for error in tree()]
    assert len(set(codes)) == len(codes)
    assert all(error.http_status in {403, 404, 409, 412, 413, 422, 500} for error in tree())


@pytest.mark.parametrize("error", tree(), ids=lambda error: error.__name__)
def test_the_docstring_is_the_default_message(error: type[SagError]) -> None:
    assert error().message == str(error()) == error.__doc__
    assert str(error("Something else.")) == "Something else."


@pytest.mark.parametrize(
    ("name", "status"),
    [("KeyConflict", 422), ("KeyInUse", 409), ("WrongState", 409), ("StaleVersion", 412), ("NotFound", 404)]
    + [("InvalidInput", 422), ("InputTooLarge", 413), ("UnknownWorkflow", 422)],
)
def test_what_clients_see_has_the_documented_status(name: str, status: int) -> None:
    assert getattr(exceptions, name).http_status == status


def test_what_a_program_wants_to_know_is_in_the_details() -> None:
    error = WrongState("Completed already.", state="Completed", allowed=("compensate",))
    assert (error.state, error.allowed) == ("Completed", ["compensate"])
    assert json.dumps(error.details) == '{"state": "Completed", "allowed": ["compensate"]}'
    assert StaleVersion(current=7).details == {"current": 7}


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("Wrong.", errors=[{"pointer": "/a", "message": "b"}]),
        WrongState("No.", state="Failed", allowed=["retry"]),
        KeyConflict(job="j-1"),
    ],
    ids=lambda error: error.code,
)
def test_an_error_survives_being_sent_to_another_process(error: SagError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
