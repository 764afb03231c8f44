"""Wrong usage in one line: what the command-line library says, and the key that an unknown option seems to mean."""

from __future__ import annotations

import re

_SUGGESTED = re.compile(r"( ?\(?Did you mean [^?]*\?\)?)+")


def said(error: Exception) -> str:
    """The message of one of the library's exceptions, of which only the shape is public."""
    message = str(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    option = getattr(error, "option_name", None)
    command = getattr(getattr(error, "ctx", None), "info_name", None)
    if option and type(error).__name__ == "NoSuchOption" and command == "run" and (keys := _keys(str(option))):
        options = " or ".join(_settings(key) for key in keys)
        return f"No such option '{option}'; {option.lstrip('-')} is a key of the configuration: {options}"
    # Two layers of the library may each make the same suggestion.
    return _SUGGESTED.sub(r"\1", message)


def _settings(key: str) -> str:
    """How to set a key; if only one choice has it, or each another meaning of it, a preset may have made another
    choice: the one that has it, or the default."""
    from fednoil.config.axes import AXES

    section, _, word = key.partition(".")
    owned = [(axis, name) for axis in AXES.get(section, ()) for name in axis.owners(word)]
    if len(owned) > 1:
        meanings = {axis.config(name).model_fields[word].description for axis, name in owned}
        everywhere = len(meanings) > 1 and all(name in axis.owners(word) for axis, _ in owned for name in axis.table)
        owned = [(axis, name) for axis, name in owned if everywhere and name == axis.default]
    choice = f"--set {owned[0][0].path}={owned[0][1]} " if owned else ""
    return f"{choice}--set {key}=VALUE"


def _keys(option: str) -> list[str]:
    """The `section.key` that an option's name stands for: a key's own name, or the name of a choice's section."""
    from fednoil.config.axes import AXES, owners
    from fednoil.config.schema import Config

    word = option.lstrip("-").replace("-", "_")
    if word in AXES:
        return [axis.path for axis in AXES[word]][:1]
    found = [section for section in AXES if owners(section, word)]
    for section in ("train", "run"):
        config = Config.model_fields[section].annotation
        found += [section] if word in getattr(config, "model_fields", {}) else []
    return [f"{section}.{word}" for section in found]
