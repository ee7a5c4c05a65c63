"""YAML with line numbers: every error names file, line and what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images import yaml_source
from images.errors import UserError
from images.yaml_source import Strict


class Inner(Strict):
    size: int
    label: str = ""


class Outer(Strict):
    name: str
    inner: Inner
    items: tuple[Inner, ...] = ()


GOOD = "name: a\ninner:\n  size: 1\n"


def problem(text: str, *overrides: str) -> UserError:
    with pytest.raises(UserError) as caught:
        source = yaml_source.parse(text, name="spec.yaml")
        for assignment in overrides:
            source.override(assignment)
        yaml_source.validate(source, Outer)
    return caught.value


@pytest.mark.parametrize(
    ("text", "place", "words", "hint"),
    [
        ("name: a\ninner:\n  size: 1\n  sise: 2\n", "spec.yaml:4", "unknown key 'inner.sise'", "'size'"),
        ("name: a\ninner:\n  size: x\n", "spec.yaml:3", "'inner.size'", None),
        ("inner:\n  size: 1\n", "spec.yaml", "'name' is missing", None),
        ("name: a\ninner:\n  label: b\n", "spec.yaml:2", "'inner.size' is missing", None),
        ("name: 13\ninner: {size: 1}\n", "spec.yaml:1", "'name'", '"13"'),
        ("name: a\nname: b\n", "spec.yaml:2", "second time", None),
        ("name: [\n", "spec.yaml:2", "not valid YAML", None),
        ("- a\n", "spec.yaml", "keys and values at the top", None),
        ("", "spec.yaml", "keys and values at the top", None),
        (
            "name: a\ninner: {size: 1}\nitems:\n- size: 1\n- size: nine\n",
            "spec.yaml:5",
            "'items.1.size'",
            None,
        ),
    ],
)
def test_error_names_place_and_hint(text: str, place: str, words: str, hint: str | None) -> None:
    error = problem(text)
    assert error.message.startswith(place + ":"), error.message
    assert words in error.message
    assert (hint is None) or (hint in (error.hint or ""))


def test_all_problems_are_named_at_once() -> None:
    message = problem("name: 1\ninner:\n  size: x\n").message
    assert "spec.yaml:1" in message and "spec.yaml:3" in message


@pytest.mark.parametrize("assignment", ["inner.size", "=3", "inner..size=1", "name.size=3"])
def test_malformed_override(assignment: str) -> None:
    assert f"--set {assignment}" in problem(GOOD, assignment).message


def test_override_is_named_as_the_place_of_an_error() -> None:
    assert problem(GOOD, "inner.size=x").message.startswith("--set inner.size=x:")


def test_override_keeps_text_and_makes_numbers_where_the_model_wants_them() -> None:
    source = yaml_source.parse(GOOD, name="spec.yaml")
    source.override("name=6.10")
    source.override("inner.size=7")
    model = yaml_source.validate(source, Outer)
    assert (model.name, model.inner.size) == ("6.10", 7)


@given(st.text(max_size=60))
def test_any_text_gives_data_or_a_user_error(text: str) -> None:
    try:
        source = yaml_source.parse(text, name="x")
    except UserError:
        return
    assert isinstance(source.data, dict)
