"""What a site of a federation may be called: its name is also that of folders, logs and keys."""

from __future__ import annotations

import unicodedata

import pytest

pytest.importorskip("flwr")

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
