"""What a site of a federation may be called: its name is also that of folders, logs and keys."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from conftest import fednoil, refused

pytest.importorskip("flwr")

from fednoil.flower.members import _site
from fednoil.flower.messages import BadMessage, Body
from fednoil.flower.names import is_name
from fednoil.flower.settings import NodeSettings


@pytest.mark.parametrize("name", ["a", "süd", "Klinik Łódź 2", "서울", "हिन्दी", "9.b_c-d", "x" * 64])
def test_letters_of_any_script_make_a_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "-a",
        " a",
        "a ",
        "a.",
        "a\0",
        "a\nb",
        "a\u202eb",
        'a"b',
        "x" * 65,
        "𐍈" * 60,
    ],
)
def test_what_a_path_could_be_made_of_is_no_name(name: str) -> None:
    assert not is_name(name)


def test_a_name_has_one_spelling() -> None:
    apart = unicodedata.normalize("NFD", "süd")
    settings = NodeSettings.read({"client-id": apart, "data": "npz:x"})
    assert settings.client_id == "süd" != apart
    assert not is_name(apart)


def test_the_server_takes_no_other_name_from_a_node() -> None:
    values = {"partition": -1, "shape": [1, 8, 8], "classes": ["a", "b"], "columns": []}
    numbers = {"mean": [0.5], "std": [0.5], "counts": [], "samples": 3, "held_out": 0}
    assert _site(Body(numbers=numbers, values=values | {"client": "süd"})).name == "süd"
    with pytest.raises(BadMessage, match="its client id is not possible"):
        _site(Body(numbers=numbers, values=values | {"client": "../süd"}))


def test_keys_have_such_names(tmp_path: Path) -> None:
    assert fednoil("federation", "keys", "Klinik Süd", "--out", tmp_path)[0] == 0
    assert (tmp_path / "Klinik Süd.pub").is_file()
    assert "must be letters of any script" in refused("federation", "keys", "../x", "--out", tmp_path)
    assert "must be letters of any script" in refused("federation", "up", tmp_path, "--site", "../x=npz:y.npz")
