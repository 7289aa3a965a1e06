"""An image says itself what it was made from, or is not believed."""

from __future__ import annotations

import pytest

from wattdock.launch.images.labels import BASE_DIGEST, BUILD_ARGS, INPUTS, INPUTS_SHA256, Recipe, labels_from, recipe_of

RECIPE = Recipe(
    inputs={"FROM": f"sha256:{'b' * 64}", "ARG VARIANT": "cpu", "runners/a name.py": "1" * 64},
    build_args={"BASE": "base", "VARIANT": "cpu"},
    base_digest=None,
    source_date="2026-11-21T12:00:00+00:00",
)


def test_what_is_written_on_an_image_is_read_from_it() -> None:
    """Names with blanks too; a base without a digest hides the one that its own base has."""
    labels = labels_from(RECIPE)
    assert labels[BASE_DIGEST] == ""
    assert recipe_of({"other": "label", **labels}) == RECIPE


@pytest.mark.parametrize(
    ("label", "value"),
    [(INPUTS_SHA256, "0" * 64), (INPUTS, "x  FROM\n"), (BUILD_ARGS, "{"), (INPUTS, None), (BUILD_ARGS, None)],
)
def test_labels_that_disagree_or_lack_say_nothing(label: str, value: str | None) -> None:
    """Anybody can write labels."""
    labels = {**labels_from(RECIPE), label: value}
    assert recipe_of({name: text for name, text in labels.items() if text is not None}) is None
