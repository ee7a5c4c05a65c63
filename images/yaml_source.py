"""YAML with line numbers: reads a file into a pydantic model, with errors a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from images.errors import UserError

Path_ = tuple[str | int, ...]


class Strict(BaseModel):
    """A frozen model that knows all its keys: an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


@dataclass
class Source:
    """Data read from a YAML file and where each value stands: ``places[path]`` is "FILE:LINE"."""

    name: str
    data: dict[str, Any]
    places: dict[Path_, str] = field(default_factory=dict)

    def place(self, path: Path_) -> str:
        """Where ``path`` stands, or its nearest parent that is there."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.name)

    def override(self, assignment: str) -> None:
        """Applies ``key.sub=value`` (``--set``); the value is YAML. Raises ``UserError`` when malformed."""
        key, equals, value = assignment.partition("=")
        keys = key.strip().split(".")
        if not equals or not all(keys):
            raise UserError(
                f"--set {assignment}: not of the form key=value",
                hint="for example --set kernel.series=6.12; a dot goes one level down",
            )
        try:
            # Scalars stay text (6.10 is a version, not a number); the model makes numbers where needed.
            parsed = None if value.strip() in ("", "null", "~") else yaml.load(value, Loader=yaml.BaseLoader)
        except yaml.YAMLError:
            raise UserError(f"--set {assignment}: the value is not valid YAML") from None
        target: Any = self.data
        for step in keys[:-1]:
            if not isinstance(target, dict) or not isinstance(target.setdefault(step, {}), dict):
                raise UserError(f"--set {assignment}: {step!r} has no keys below it")
            target = target[step]
        target[keys[-1]] = parsed
        path: Path_ = ()
        for step in keys:
            path = (*path, step)
            self.places.setdefault(path, f"--set {assignment}")
        self.places[path] = f"--set {assignment}"


def read(path: Path) -> Source:
    """Reads a YAML file whose top is a mapping. Raises ``UserError`` with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return parse(text, name=_shown(path))


def parse(text: str, *, name: str) -> Source:
    """Like ``read``, from text; ``name`` stands for the file in messages."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{name}: expected keys and values at the top")
    places: dict[Path_, str] = {}
    for at, line, duplicate in _walk(node, ()):
        if duplicate:
            raise UserError(f"{name}:{line}: the key {at[-1]!r} stands here for the second time")
        places[at] = f"{name}:{line}"
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UserError(f"{name}: not valid YAML: {error}") from None
    return Source(name, data, places)


def _walk(node: yaml.Node, path: Path_) -> Iterator[tuple[Path_, int, bool]]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            at = (*path, str(key.value))
            yield at, key.start_mark.line + 1, key.value in seen
            seen.add(key.value)
            yield from _walk(value, at)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), value.start_mark.line + 1, False
            yield from _walk(value, (*path, index))


def validate(source: Source, model: type[Model], *, data: Any = None, prefix: Path_ = ()) -> Model:
    """Makes a ``model`` of the source's data (or of ``data``, found below ``prefix``).

    Raises one ``UserError`` that names each wrong value with file, line and what was expected.
    """
    try:
        return model.model_validate(source.data if data is None else data)
    except ValidationError as error:
        problems = [_problem(source, model, prefix, item) for item in error.errors(include_url=False)]
        lines = [f"{place}: {text}" for place, text, _ in problems]
        hints = [hint for _, _, hint in problems if hint]
        raise UserError("\n  ".join(lines), hint=hints[0] if hints else None) from None


def _problem(
    source: Source, model: type[BaseModel], prefix: Path_, item: Mapping[str, Any]
) -> tuple[str, str, str | None]:
    path: Path_ = (*prefix, *item["loc"])
    name = ".".join(map(str, path)) or "the document"
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _known_keys(model, item["loc"][:-1])
        close = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        known_hint = f"did you mean {close[0]!r}?" if close else f"known keys here: {', '.join(known)}"
        return source.place(path), f"unknown key {name!r}", known_hint
    if kind == "missing":
        return source.place(path[:-1]), f"{name!r} is missing", None
    message = item["msg"].removeprefix("Value error, ")
    hint = None
    if kind == "string_type" and isinstance(item["input"], int | float):
        hint = f'put it in quotes: "{item["input"]}"'
    return source.place(path), f"{name!r}: {message} (got {item['input']!r})"[:400], hint


def _known_keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys a model has at ``loc``; empty where the type there is no single model."""
    current: Any = model
    for step in loc:
        if isinstance(step, int):
            continue
        annotation = (
            current.model_fields[step].annotation if step in getattr(current, "model_fields", {}) else None
        )
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        models = [item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)]
        if not models:
            return []
        current = models[0]
    return sorted(current.model_fields)


def _shown(path: Path) -> str:
    """The path as a person in the current folder would type it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
