"""What every table of the config has in common: strict, frozen, and all of its mistakes in one report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from pimkv import presets
from pimkv.errors import Problem
from pimkv.wording import (
    choose_from,
    config_error,
    did_you_mean,
    kind_of,
    nearest,
    nearest_power_of_two,
    show_key,
)


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("not a power of two")
    return value


PowerOfTwo = Annotated[int, AfterValidator(_power_of_two)]
"""An integer that must be a power of two; its range comes from the field."""


class Report:
    """The mistakes found so far, and the fields that no further check may build on."""

    def __init__(
        self,
        root: type[Section],
        *,
        sources: Mapping[str, str] | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        self.root = root
        self.problems = list(problems)
        self._earlier = len(self.problems)
        self._sources = sources or {}
        self._doubtful: set[str] = set()

    def add(self, field: str, value: object, message: str, hint: str = "") -> None:
        """Report one mistake; `field` is in doubt from here on."""
        self.problems.append(Problem(field, value, message, hint, self._sources.get(field, "")))
        self._doubtful.add(field)

    def doubt(self, fields: Iterable[str]) -> None:
        """Mark fields whose value only stands in for one that was refused."""
        self._doubtful.update(fields)

    def sure(self, *fields: str) -> bool:
        """Whether none of these fields is in doubt."""
        return self._doubtful.isdisjoint(fields)

    def trial(self, trusted: Iterable[str]) -> Report:
        """An empty report for checks that build on the `trusted` fields, but for those reported themselves."""
        accused = {problem.field for problem in self.problems}
        trial = Report(self.root)
        trial.doubt(self._doubtful - (set(trusted) - accused))
        return trial

    def finish(self) -> None:
        """Raise ConfigError with every mistake reported, if there is any, in the order of the config."""
        if not self.problems:
            return
        order = {field: rank for rank, field in enumerate(_paths(self.root, ""))}
        # A key that does not exist comes with its table, before the keys that do.
        own = sorted(
            self.problems[self._earlier :],
            key=lambda problem: order.get(problem.field, order.get(problem.field.rpartition(".")[0], -1)),
        )
        raise config_error([*self.problems[: self._earlier], *own])


def _tidy_schema(schema: dict[str, Any], cls: type[Any]) -> None:
    """Every field may be left out; what then stands in is a preset's value, never the schema's null."""
    schema.pop("required", None)
    for name, field in schema.get("properties", {}).items():
        if isinstance(cls, type) and issubclass(cls, PresetSection):
            if name == "preset":
                field["enum"] = list(presets.usable(cls.kind))
            else:
                field.pop("default", None)


class Section(BaseModel):
    """A table of the config.

    Building one raises ConfigError with all its mistakes; an instance is valid for good.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, json_schema_extra=_tidy_schema
    )

    def __init__(self, /, **data: Any) -> None:
        report = Report(type(self))
        fill(self, data, "", report)
        report.finish()

    @classmethod
    def tables(cls, given: dict[str, Any]) -> dict[str, type[Section]]:
        """The fields that are tables themselves, with the class of each.

        A section whose tables depend on its other fields overrides this; it may drop from `given` a table
        that cannot be checked because such a field is wrong.
        """
        return {
            name: field.annotation
            for name, field in cls.model_fields.items()
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        }

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        """The values a field may take, where they can be listed; else ()."""
        annotation = cls.model_fields[name].annotation
        members = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
        literals = (member for member in members if get_origin(member) is Literal)
        return tuple(value for literal in literals for value in get_args(literal))

    @classmethod
    def why_not(cls, name: str, value: object) -> str | None:
        """Why a field refuses a value that does exist, where there is more to say than "unknown"."""
        return None

    @classmethod
    def resolved(cls, given: dict[str, Any]) -> dict[str, Any]:
        """`given` with the values filled in that come from elsewhere than the field defaults."""
        return given

    def check(self, path: str, report: Report) -> None:
        """Report the mistakes that take more than one field to see. `path` as in `fill`."""


class PresetSection(Section):
    """A table whose values come from a named preset; values given beside the name win."""

    kind: ClassVar[str]
    preset: str

    @field_validator("preset")
    @classmethod
    def _exists(cls, name: str) -> str:
        if name not in presets.usable(cls.kind):
            raise ValueError("no such preset, or none that can be run")
        return name

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        return presets.usable(cls.kind) if name == "preset" else super().choices(name)

    @classmethod
    def why_not(cls, name: str, value: object) -> str | None:
        return presets.needs(cls.kind, value) if name == "preset" else None

    @classmethod
    def resolved(cls, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("preset", cls.model_fields["preset"].default)
        return {**presets.values(cls.kind, name), **given} if presets.known(cls.kind, name) else given


def from_preset(description: str, **limits: Any) -> Any:
    """A field whose default is the preset's value; the None is never seen, a preset gives every value."""
    return Field(default=None, description=description, **limits)


def fill(section: Section, data: Mapping[Any, Any], path: str, report: Report) -> None:
    """Initialise `section` from `data`: mistakes go to `report`, and defaults stand in for what was refused.

    `path` is the section's own path with its final dot, "" at the top.
    """
    cls = type(section)
    fields = cls.model_fields
    given = {key: value for key, value in data.items() if key in fields}
    for key, value in data.items():
        if key not in fields:
            _refuse_key(cls, path, key, value, report)
    for name, table in cls.tables(given).items():
        given[name] = _fill_table(table, given.get(name, {}), f"{path}{name}", report)
    preset_refused = False
    while True:
        try:
            # BaseModel's constructor, since Section's raises where this has to go on.
            BaseModel.__init__(section, **cls.resolved(given))
            break
        except ValidationError as error:
            for item in error.errors(include_url=False):
                name = str(item["loc"][0])
                if name not in given:
                    raise  # a preset or a default of ours is broken: nothing the caller can mend
                problem = _value_problem(cls, name, given.pop(name), item["type"])
                report.add(f"{path}{name}", *problem)
                preset_refused |= name == "preset"
    if preset_refused:
        report.doubt(f"{path}{name}" for name in fields if name not in given)
    section.check(path, report)


def _fill_table(table: type[Section], value: object, path: str, report: Report) -> Section:
    # Built in Python, and so checked already; options of another allocator are none of this one's.
    if type(value) is table and isinstance(value, Section):
        return value
    section = table.__new__(table)
    if isinstance(value, Mapping):
        fill(section, value, f"{path}.", report)
        return section
    fields = list(table.model_fields)
    keys = f" with keys {', '.join(fields)}" if fields else ""
    report.add(path, value, f"is {kind_of(value)}; must be a table{keys}")
    fill(section, {}, f"{path}.", report)
    report.doubt(f"{path}.{name}" for name in fields)
    return section


def _refuse_key(cls: type[Section], path: str, key: object, value: object, report: Report) -> None:
    own = list(cls.model_fields)
    everywhere = list(_paths(report.root, ""))
    # The right key in the wrong table, then a misspelt key of this table, then one of another table.
    meant = [known for known in everywhere if known.rpartition(".")[2] == key]
    if not meant and (guess := nearest(key, own)):
        meant = [f"{path}{guess}"]
    if not meant and (guess := nearest(key, (known.rpartition(".")[2] for known in everywhere))):
        meant = [known for known in everywhere if known.rpartition(".")[2] == guess]
    known_keys = choose_from(own) if own else "this table takes none"
    names = " or ".join(f'"{known}"' for known in meant)
    report.add(
        f"{path}{show_key(key)}",
        value,
        f"unknown key; {known_keys}",
        f"did you mean {names}?" if meant else "",
    )


def _paths(cls: type[Section], path: str) -> Iterator[str]:
    tables = cls.tables({})
    for name in cls.model_fields:
        yield f"{path}{name}"
        if name in tables:
            yield from _paths(tables[name], f"{path}{name}.")


_WRONG = {
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than_equal": "is too large",
    "finite_number": "is not finite",
    "string_too_short": "is empty",
    "string_unicode": "is not valid Unicode",
    "value_error": "is not a power of two",  # the one check of ours that is no choice
}


def _value_problem(cls: type[Section], name: str, value: object, reason: str) -> tuple[object, str, str]:
    """Value, message and hint for what its own field refuses; `reason` is pydantic's word for why."""
    choices = cls.choices(name)
    if choices:
        wrong = "unknown" if isinstance(value, str) else f"is {kind_of(value)}"
        # One of a short list: the nearest is named however far it is.
        hint = did_you_mean(nearest(value, choices, least=0.01))
        if known := cls.why_not(name, value):
            wrong, hint = known, ""
        message = f"{wrong}; {choose_from(choices)}"
    else:
        limits = _Limits(cls.model_fields[name])
        wrong = _WRONG.get(reason, f"is {kind_of(value)}")
        if reason == "float_type" and type(value) is int:
            wrong = "is too large"  # integers do for floats, unless they leave their range
        message = f"{wrong}; must be {limits.words}"
        hint = did_you_mean(limits.nearest(value))
    return value, message, hint


class _Limits:
    """What a field without choices accepts, read off its declaration so that it is said nowhere twice."""

    def __init__(self, field: FieldInfo) -> None:
        annotation = field.annotation
        members = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
        self._type = next(member for member in members if member is not NoneType)
        self._optional = NoneType in members
        rules = field.metadata
        self._low: Any = next((rule.ge for rule in rules if isinstance(rule, Ge)), None)
        self._above: Any = next((rule.gt for rule in rules if isinstance(rule, Gt)), None)
        self._high: Any = next((rule.le for rule in rules if isinstance(rule, Le)), None)
        self._power = any(isinstance(rule, AfterValidator) for rule in rules)

    @property
    def words(self) -> str:
        """For example `an integer from 1 to 65536`."""
        words = {
            int: "an integer",
            float: "a finite number",
            str: "a string that is not empty",
            bool: "true or false",
        }[self._type]
        if self._power:
            words = "a power of two"
        if self._above is not None:
            words += f" above {self._above:g}"
        elif self._low is not None:
            words += f" from {self._low:.15g} to {self._high:.15g}"
        return f"{words}, or left out" if self._optional else words

    def nearest(self, value: object) -> int | None:
        """The accepted integer that `value` most likely stands for, if one is near."""
        if self._type is not int or type(value) not in {int, float}:
            return None
        if isinstance(value, float) and not value.is_integer():
            return None
        whole = int(value)  # type: ignore[call-overload]
        if whole < self._low or whole > self._high:
            return None
        return nearest_power_of_two(whole, self._low, self._high) if self._power else whole
