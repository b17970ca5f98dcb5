"""Read a file of settings: flat, with Penstock's names, or in sections, as in EpochQ's config.yaml."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple, Never

import yaml

from penstock.config import epochq_compat
from penstock.config.epochq_compat import Given, ParsedFile, SectionKey
from penstock.config.settings import NOTHING, SECRETS, SETTINGS
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Given", "ParsedFile", "read_file"]


class _Line(NamedTuple):
    """A key of the file, and its value."""

    key: str
    node: yaml.Node
    number: int


def read_file(file: Path | None) -> ParsedFile:
    """Return the settings of a file (None: there is no file). Raises ConfigInvalid, with the file, the line and the key."""
    if file is None:
        return ParsedFile({})
    try:
        loader = yaml.SafeLoader(file.read_text(encoding="utf-8"))
        top = loader.get_single_node()
        return ParsedFile({}) if top is None else _read(file, loader, top)
    except OSError as error:
        raise ConfigInvalid(f"The configuration file {file} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"The configuration file {file} is not valid YAML: {error}") from None


def _read(file: Path, loader: yaml.SafeLoader, top: yaml.Node) -> ParsedFile:
    if not isinstance(top, yaml.MappingNode):
        if loader.construct_object(top) is None:
            return ParsedFile({})
        raise ConfigInvalid(f"The configuration file {file} must have settings, one per line, as in 'durability: always'.")
    texts: dict[str, Given] = {}
    nested: dict[str, SectionKey] = {}
    for line in _lines(file, loader, top):
        name = line.key.replace("-", "_")
        is_section = name in epochq_compat.NAMES and (isinstance(line.node, yaml.MappingNode) or name not in SETTINGS)
        if is_section:
            for each in _section(file, loader, line):
                key = f"{name}.{each.key}"
                if key not in epochq_compat.KEYS:
                    _unknown(file, each, key, epochq_compat.KEYS)
                nested[key] = SectionKey(key, _text_of(key, _value(loader, each), file, each), f"{file}, line {each.number}")
        elif name in SETTINGS:
            texts[name] = Given(_text_of(name, _value(loader, line), file, line), f"{file}, line {line.number}", name)
        else:
            _unknown(file, line, line.key, (*SETTINGS, *sorted(epochq_compat.NAMES - set(SETTINGS))))
    found = epochq_compat.translate(nested)
    for name, given in found.texts.items():
        if name in texts:
            raise ConfigInvalid(
                f"The configuration file {file} sets {name} twice: as {name} ({texts[name].origin}) and as {given.key} "
                f"({given.origin}). Keep one of them."
            )
    return found._replace(texts=texts | found.texts)


def _section(file: Path, loader: yaml.SafeLoader, line: _Line) -> Iterator[_Line]:
    if isinstance(line.node, yaml.MappingNode):
        yield from _lines(file, loader, line.node)
    elif _value(loader, line) is not None:
        some = next(key for key in epochq_compat.KEYS if key.startswith(f"{line.key}."))
        raise ConfigInvalid(
            f"The configuration file {file} has a value for {line.key} (line {line.number}), which is a section: expected "
            f"settings below it, such as {some}."
        )


def _lines(file: Path, loader: yaml.SafeLoader, node: yaml.MappingNode) -> Iterator[_Line]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = _Line(str(loader.construct_object(key, deep=True)), value, key.start_mark.line + 1)
        first = seen.setdefault(line.key.replace("-", "_"), line.number)
        if first != line.number:
            raise ConfigInvalid(
                f"The configuration file {file} has {line.key} twice, in the lines {first} and {line.number}. Keep one of them."
            )
        yield line


def _value(loader: yaml.SafeLoader, line: _Line) -> Any:
    return loader.construct_object(line.node, deep=True)


def _unknown(file: Path, line: _Line, key: str, known: tuple[str, ...]) -> Never:
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    section = [each for each in known if each.startswith(f"{key.partition('.')[0]}.")]
    hint = f" Did you mean {close[0]}?" if close else f" There are: {', '.join(section or known)}."
    raise ConfigInvalid(f"The configuration file {file} has an unknown setting {key!r} (line {line.number}).{hint}")


def _text_of(name: str, value: object, file: Path, line: _Line) -> str:
    """Return the text from which YAML read a value. Raises ConfigInvalid if it cannot be determined."""
    if name == "namespace_quotas" and isinstance(value, dict):
        value = [f"{namespace}:{quota}" for namespace, quota in value.items()]
    items = value if isinstance(value, list) else [value]
    where = f"The configuration file {file} has"
    if isinstance(value, bool):  # YAML reads off, no, on and yes without quotes as Booleans
        return "on" if value else "off"
    if name in SECRETS | epochq_compat.SECRETS and not all(isinstance(each, str) for each in items):
        raise ConfigInvalid(f"{where} a value of {name} that is not text (line {line.number}). Put it in quotes.")
    if not items and (ours := epochq_compat.SAME.get(name, name)) in NOTHING:
        return NOTHING[ours]
    empty = not items and name not in epochq_compat.WITHOUT_MEANING
    if empty or not all(isinstance(each, str | int | float) for each in items):
        raise ConfigInvalid(f"{where} no usable value for {name} (line {line.number}). Leave the line out for the default.")
    return ",".join(map(str, items))
