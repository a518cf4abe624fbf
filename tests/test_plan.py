from pathlib import Path

import msgspec

from envkit.planning.plan import Plan, Step, recipe_checksum
from envkit.sources.fetch import Source

SOURCE = Source(filename="toy-1.0.tar.gz", sha256="0" * 64, needed_by="Toy-1.0.eb")


def test_sources_are_those_of_every_step() -> None:
    steps = (
        Step(module="A/1", easyconfig="/a.eb", sources=(SOURCE,)),
        Step(module="B/1", easyconfig="/b.eb"),
        Step(module="C/1", easyconfig="/c.eb", sources=(SOURCE, SOURCE)),
    )
    assert Plan(stack="toy", steps=steps, robot=()).sources == (SOURCE, SOURCE, SOURCE)


def test_a_plan_is_a_value() -> None:
    made = Plan(stack="toy", steps=(Step(module="A/1", easyconfig="/a.eb", sources=(SOURCE,)),), robot=("/r",))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
    assert hash(made)


def test_a_checksum_changes_with_the_recipe_and_with_its_patches(tmp_path: Path) -> None:
    recipe, patch, other = (tmp_path / name for name in ("Toy-1.0.eb", "Toy-1.0_fix-it.patch", "Other.patch"))
    recipe.write_text("patches = ['Toy-1.0_fix-it.patch', 'elsewhere.patch']\n")
    seen = [recipe_checksum(recipe)]
    for path, text in ((patch, "one"), (patch, "two"), (recipe, recipe.read_text() + "# edited\n")):
        path.write_text(text)
        seen.append(recipe_checksum(recipe))
    assert len(set(seen)) == 4
    other.write_text("not named")
    assert recipe_checksum(recipe) == seen[-1]
    assert Step(module="Toy/1.0", easyconfig=str(recipe)).checksum() == seen[-1]


def test_a_recipe_that_is_not_there_has_no_checksum(tmp_path: Path) -> None:
    assert recipe_checksum(tmp_path / "none.eb") == ""
