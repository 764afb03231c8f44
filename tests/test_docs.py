"""What the Markdown files name exists: files, headings, Python names, commands, options, presets, keys, targets.

Each check is a function from a text to the list of what is wrong with it. It is tried on texts with one mistake
each, so that it is known to find them, and then on every Markdown file of the repository.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
from studies import ROOT, script
from typer.main import get_command

import fednoil
from fednoil.bench.settings import PRESETS
from fednoil.cli.main import app
from fednoil.config import Config, load_config
from fednoil.config.axes import AXES
from fednoil.errors import UserError
from fednoil.study import preset_names

DECISIONS = sorted((ROOT / "docs/decisions").glob("0*.md"))
ANYWHERE = ROOT / "any.md"
PRESET_NAMES = {*preset_names(), *PRESETS.names()}
NOT_OURS = {"runs", "build", "dist", "carry"}
SUFFIXES = {"parquet", "safetensors", "json", "jsonl", "toml", "py", "npz", "md", "png", "svg"}  # noise.parquet
_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.M | re.S)
_SPAN = re.compile(r"(`+)(.+?)\1", re.S)
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ +)*(?:\S*python3? -m +|\S*/)?fednoil +(\S.*)")
_PATH = re.compile(r"(?<![\w./~$-])(?:src|tests|docs|tools|benchmarks|experiments)/[\w./<>*-]*")


def markdown_files() -> Iterator[Path]:
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(n for n in names if n not in NOT_OURS and not n.startswith("."))
        yield from (Path(folder) / f for f in sorted(files) if f.endswith(".md"))


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in these languages, or all of them."""
    return [body for language, body in _FENCE.findall(text) if not languages or language in languages]


def spans(text: str) -> list[str]:
    """The inline code."""
    return [" ".join(code.split()) for _, code in _SPAN.findall(_FENCE.sub("", text))]


def code_lines(text: str) -> list[str]:
    """Inline code, and the lines of blocks with continued ones joined."""
    shell = "\n".join(blocks(text, "", "bash", "sh", "console", "shell", "text"))
    return spans(text) + re.sub(r"\\\n\s*", " ", shell).splitlines()


def anchors(text: str) -> set[str]:
    """The anchors of a file's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(text: str, path: Path) -> list[str]:
    prose = _SPAN.sub("code", _FENCE.sub("", text))
    found = re.findall(r"\]\(\s*<?([^)\s>]+)", prose) + re.findall(r"^\[[^\]]+\]: *(\S+)", prose, re.M)
    found += re.findall(r"\b(?:src|href|srcset)=\"([^\"]+)\"", prose)
    wrong = []
    for link in found:
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        target, _, anchor = unquote(link).partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.is_relative_to(ROOT) or (target and not file.exists()):
            wrong.append(f"link {link}: no such file in the repository")
        elif anchor and file.suffix == ".md" and anchor not in anchors(text if file == path else file.read_text()):
            wrong.append(f"link {link}: no such heading")
    return wrong


def name_exists(dotted: str) -> bool:
    """Whether a module, or an attribute or field at any depth below one, has this name."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for place, part in enumerate(parts[cut:], start=cut + 1):
            if has_field(found, part) and place == len(parts):
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def has_field(owner: Any, name: str) -> bool:
    """Whether a class declares a field of this name; such a field need not be an attribute of the class."""
    return any(name in vars(cls).get("__annotations__", {}) for cls in getattr(owner, "__mro__", ()))


@cache
def classes() -> dict[str, list[type]]:
    """All classes of the package by name."""
    found: dict[str, list[type]] = {}
    for info in pkgutil.walk_packages(fednoil.__path__, "fednoil."):
        if info.name != "fednoil.__main__" and (
            importlib.util.find_spec("triton") or not info.name.startswith("fednoil.kernels.")
        ):
            for name, value in vars(importlib.import_module(info.name)).items():
                if isinstance(value, type) and value.__module__.startswith("fednoil"):
                    found.setdefault(name, []).append(value)
    return found


def unknown_names(text: str, _path: Path) -> list[str]:
    wrong = []
    for code in spans(text):
        for dotted in re.findall(r"(?<![\w./-])fednoil(?:\.[A-Za-z_]\w*)+", code):
            if not name_exists(dotted):
                wrong.append(f"name {dotted}")
        for owner, name in re.findall(r"(?<![\w./:-])([A-Z]\w*)\.([a-z_]\w*)", code):
            owners = classes().get(owner, [])
            if owners and not any(hasattr(cls, name) or has_field(cls, name) for cls in owners):
                wrong.append(f"name {owner}.{name}")
    for body in blocks(text, "python", "py"):
        wrong += [f"name {dotted}" for dotted in imported(body) if not name_exists(dotted)]
    return wrong


def imported(source: str) -> Iterator[str]:
    """What a piece of Python imports from this package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("fednoil."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if f"{alias.name}.".startswith("fednoil."))


def missing_paths(text: str, _path: Path) -> list[str]:
    wrong = []
    for code in spans(text) + "\n".join(blocks(text)).splitlines():
        for found in _PATH.findall(code):
            # src/fednoil/learners/<name>.py is a file to be made: its folder must exist
            name = found.split("<")[0].rpartition("/")[0] if "<" in found else found.rstrip(".")
            if not (any(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()):
                wrong.append(f"path {found}")
    return wrong


@cache
def options() -> dict[str, set[str]]:
    """The long options of every command."""
    commands = dict(getattr(get_command(app), "commands"))  # noqa: B009  (the type of a group isn't public)
    for name, group in list(commands.items()):
        commands |= {f"{name} {inner}": command for inner, command in getattr(group, "commands", {}).items()}
    return {
        name: {o for p in command.params for o in getattr(p, "opts", []) if o.startswith("--")} | {"--help"}
        for name, command in commands.items()
    }


@cache
def script_options() -> set[str]:
    """The long options of the scripts beside the package."""
    scripts = [path for folder in ("tools", "benchmarks", "experiments") for path in (ROOT / folder).rglob("*.py")]
    return {option for path in scripts for option in re.findall(r"\"(--[a-z-]+)\"", path.read_text(encoding="utf-8"))}


def wrong_commands(text: str, _path: Path) -> list[str]:
    wrong = []
    of_none = {"--help", *(option for param in get_command(app).params for option in param.opts)}
    everywhere = of_none.union(*options().values(), script_options())
    for line in code_lines(text):
        if line.startswith("--"):
            wrong += [f"option {o}" for o in re.findall(r"^--[a-z-]+", line) if o not in everywhere]
        match = _COMMAND.match(line)
        if not match:
            continue
        words = re.split(r"&&|[;#]", match[1])[0].split()
        if words[0] not in options():
            if words[0] not in of_none:
                wrong.append(f"command fednoil {words[0]}")
            continue
        if " ".join(words[:2]) in options():
            words = [" ".join(words[:2]), *words[2:]]
        known = options()[words[0]]
        used = [o for word in words[1:] for o in re.findall(r"^\W*(--[a-z][a-z-]*)", word)]
        wrong += [f"option fednoil {words[0]} {o}" for o in used if o not in known]
        source = words[1] if words[0].endswith("run") and len(words) > 1 else "-"
        if re.fullmatch(r"[a-z0-9/+-]+", source) and source[0] != "-" and source not in PRESET_NAMES:
            wrong.append(f"preset {source}")
    return wrong


@cache
def keys() -> dict[str, set[str]]:
    """The keys of every section, those of all its plugins together."""
    found = {name: set(getattr(f.annotation, "model_fields", {})) for name, f in Config.model_fields.items()}
    for section, axes in AXES.items():
        found[section] |= {key for axis in axes for name in axis.table for key in axis.config(name).model_fields}
    return found


def unknown_keys(text: str, path: Path) -> list[str]:
    if path.name == "CHANGELOG.md":  # names keys that are gone
        return []
    sections = "|".join(keys())
    pairs = [p for code in spans(text) for p in re.findall(rf"(?<![\w./])({sections})\.([a-z_]+)(?![\w.(/:])", code)]
    pairs = [(section, key) for section, key in pairs if key not in SUFFIXES]
    # In text about Python `run.model` is a Run's.
    pairs = [(section, key) for section, key in pairs if section != "run" or not hasattr(fednoil.Run, key)]
    for line in code_lines(text):
        own = set(
            re.findall(r"--set +(\w+)\.(?:name|kind|levels)=\w+:", line)
        )  # a user's own class has keys of its own
        pairs += [p for p in re.findall(r"--set +(\w+)\.(\w+)=", line) if p[0] not in own]
    wrong = [f"key {section}.{key}" for section, key in pairs if key not in keys().get(section, set())]
    for body in blocks(text, "toml"):
        values = tomllib.loads(body)
        if not any(":" in str(values.get(s, {}).get("name", "")) for s in ("server", "learner", "model")):
            try:
                load_config(values)
            except UserError as error:
                wrong.append(f"toml: {error}")
    return wrong


def unknown_targets(text: str, _path: Path) -> list[str]:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = [m[1] for line in code_lines(text) if (m := re.match(r"^\s*(?:\$ )?make ([a-z-]+)", line))]
    return [f"target make {target}" for target in used if target not in known]


Check = Callable[[str, Path], list[str]]
CHECKS: list[Check] = [broken_links, unknown_names, missing_paths, wrong_commands, unknown_keys, unknown_targets]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("path", list(markdown_files()), ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_exists(path: Path, check: Check) -> None:
    assert check(path.read_text(encoding="utf-8"), path) == []


MISTAKES: list[tuple[Check, str]] = [
    (broken_links, "see [this](docs/none.md)"),
    (broken_links, "see [this](docs/data.md#no-such-heading)"),
    (broken_links, "see [this](../outside.md)"),
    (broken_links, "see [this][1]\n\n[1]: docs/none.md"),
    (broken_links, '<img src="docs/none.png">'),
    (unknown_names, "`fednoil.learners.none`"),
    (unknown_names, "`fednoil.learners.base.Learner.fly`"),
    (unknown_names, "`Server.fly(state)`"),
    (unknown_names, "```python\nfrom fednoil.noise import Nothing\n```"),
    (missing_paths, "`src/fednoil/none.py`"),
    (missing_paths, "`src/none/<name>.py`"),
    (missing_paths, "```\npython tools/none.py\n```"),
    (wrong_commands, "`--fly`"),
    (wrong_commands, "`fednoil fly`"),
    (wrong_commands, "`fednoil compare --resume runs/a`"),
    (wrong_commands, "`fednoil federation up --resume`"),
    (wrong_commands, "`fednoil federation run no-such-preset`"),
    (wrong_commands, "```\n$ .venv/bin/fednoil run demo \\\n    --fly 3\n```"),
    (wrong_commands, "`fednoil run paper/mnist/iid/clean/fedavg`"),
    (unknown_keys, "`train.round`"),
    (unknown_keys, "`server.wings = 2`"),
    (unknown_keys, "```\nfednoil run --set schedule.epoch=3\n```"),
    (unknown_keys, '```toml\n[noise]\nkind = "loud"\n```'),
    (unknown_targets, "`make fly`"),
]


@pytest.mark.parametrize(("check", "text"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_mistakes_are_found(check: Check, text: str) -> None:
    assert len(check(text, ANYWHERE)) == 1


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_what_is_right_passes(check: Check) -> None:
    text = """# A title
[self](#a-title) [page](docs/data.md#the-cache "Data") [out](https://example.org/x#y) `[no](link)`
`fednoil.learners.base.Turn.seed` `fednoil.learners.base` `Learner.step(nets)` `Truth(None)` `numpy.savez`
`src/fednoil/learners/<name>.py` `src/fednoil/learners/*.py` `runs/demo` `noise.parquet` `data.load(config)`
`fednoil run demo --set train.rounds=3` `fednoil run [PRESET|FILE.toml] [--resume | --force]` `--set` `server.mu`
`schedule.t_min` `learner.name` `make test` `fednoil.noise.apply`
```toml
[train]
rounds = 3
```
"""
    assert check(text, ANYWHERE) == []


def test_decisions_are_numbered_complete_and_listed() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    assert [p.name[:5] for p in DECISIONS] == [f"{n:04d}-" for n in range(1, len(DECISIONS) + 1)]
    for number, path in enumerate(DECISIONS, start=1):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.M) == ["Context", "Decision", "Consequences"], path.name
        title = text.splitlines()[0].removeprefix("# ")
        assert f"\n{number}. [{title.partition(' ')[2]}]({path.name})" in index, path.name


def test_every_page_is_in_the_index_and_every_stage_in_the_architecture() -> None:
    index, tour = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("README.md", "architecture.md"))
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()
    package = Path(fednoil.__file__).parent
    stages = {p.name for p in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    stages |= {f"{p.parent.name}/" for p in package.glob("*/__init__.py")}
    named = set(re.findall(r"`([\w/.]+)`", "\n".join(re.findall(r"^\|([^|]+)\|", tour, re.M))))
    assert stages - named == set()


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script(ROOT / "tools/make_reference.py", "tools_make_reference")


@pytest.mark.parametrize("name", ["configuration.md", "methods.md", "commands.md", "api.md"])
def test_the_reference_is_up_to_date(reference: ModuleType, name: str) -> None:
    """`python tools/make_reference.py` writes it."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == reference.PAGES[name]()


def test_the_reference_has_every_choice_with_keys_of_its_own(reference: ModuleType) -> None:
    """`fixed` has the keys of `two-level`, `feddiv` one of `mixup`: they are listed all the same."""
    page, axes = reference.configuration(), [axis for axes in AXES.values() for axis in axes]
    for axis in axes:
        shared = set.intersection(*(set(axis.config(name).model_fields) for name in axis.table)) | {axis.key}
        parts = re.findall(rf"^### `{axis.path}` = (.*)\n((?:(?!^#).*\n)*)", page, re.M)
        listed = {name: set(re.findall(r"^\| `\w+\.(\w+)`", text, re.M)) for names, text in parts
                  for name in re.findall(r"`([^`]+)`", names)}  # fmt: skip
        for name in axis.table:
            assert set(axis.config(name).model_fields) - shared - listed.get(name, set()) == set(), (axis.path, name)


def test_every_key_is_explained_once() -> None:
    """In the reference, and in no other table of keys."""
    row = re.compile(rf"^\| `((?:{'|'.join(keys())})\.\w+)`.*\n(?!\|-)", re.M)  # a heading is of what a key may be
    for path in set((ROOT / "docs").glob("*.md")) - {ROOT / "docs/configuration.md"}:
        found = row.findall(path.read_text(encoding="utf-8"))
        explained = [key for key in found if key.partition(".")[2] in keys()[key.partition(".")[0]] - SUFFIXES]
        assert explained == [], f"{path.name} has a table of keys"


def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mkdocs")
    assert script(ROOT / "tools/site.py", "tools_site").build(tmp_path) == 0, capsys.readouterr().out
    home = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    assert 'href="docs/configuration.html"' in home
    assert not re.search(
        r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://", home
    )  # nothing is fetched from elsewhere
