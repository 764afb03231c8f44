"""Two methods never share a title, lest one of them vanish from a table."""

from __future__ import annotations

import pytest

from fednoil.config import load_config
from fednoil.report.places import place_of


@pytest.mark.parametrize("data", ["fashion-mnist-mini", "fashion-mnist"])
@pytest.mark.parametrize(
    ("section", "one", "other"),
    [
        ("server", {"name": "trimmed_mean", "trim": 0.1}, {"name": "trimmed_mean", "trim": 0.3}),
        ("learner", {"name": "fednoil", "frac": 0.35}, {"name": "fednoil", "frac": "auto"}),
        ("learner", {"name": "coteaching", "forget": 0.2}, {"name": "coteaching"}),
    ],
)
def test_methods_that_differ_in_a_key_have_titles_of_their_own(
    data: str, section: str, one: dict[str, object], other: dict[str, object]
) -> None:
    titles = [
        place_of(load_config({"data": {"name": data}, section: keys}).model_dump(mode="json")).method_title
        for keys in (one, other)
    ]
    assert titles[0] != titles[1]
