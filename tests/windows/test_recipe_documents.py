"""The recipes are good documents, one after another, and the page about them shows each as it is."""

from benchmarks.support.models_recipes import DIRECTORY, RECIPES, recipe

from tests.windows.recipes import shown_documents, shown_rows
from tests.windows.support import WindowFlow


def test_the_page_shows_each_recipe_as_it_is() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.yaml")} == set(RECIPES)
    assert shown_documents() == {name: recipe(name) for name in RECIPES}
    assert len({shown.dataset for shown in shown_rows()}) == len(RECIPES) - 1
    assert all(shown.rows for shown in shown_rows())


def test_recipes_deploy_one_after_another_with_known_columns(windows: WindowFlow) -> None:
    for name in RECIPES:
        windows.deploy(recipe(name))
    rows = windows.harness.sql(
        "SELECT d.name, v.columns FROM datasets d JOIN dataset_versions v ON v.dataset_version = d.current_version"
    )
    assert {shown.dataset for shown in shown_rows()} <= {row["name"] for row in rows}
    assert all(row["columns"] is not None for row in rows if row["name"] in {shown.dataset for shown in shown_rows()})
