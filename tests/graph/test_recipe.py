"""What a recipe says about each node, and one sentence for every word that is not understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.collectors import names as collector_names
from onnxq.errors import BadRecipe
from onnxq.recipe import KEEP, Recipe, Rule, load_recipe, parse_set
from onnxq.schemes import SCHEMES


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "r.toml").write_text(text, encoding="utf-8")
        return tmp_path / "r.toml"

    return write


def test_all_of_toml(written) -> None:
    path = written("""
        scheme = "w8a8"
        block_size = 64
        min_sqnr = 25
        calibration = "moving-average"
        reduce_range = true
        keep_slow = true
        requantize = true
        accuracy_level = 1

        [[rule]]
        nodes = "decoder/*"
        ops = ["MatMul", "Gemm"]
        set = "w4a16"

        [[rule]]
        set = "keep"
    """)
    rules = (Rule("w4a16", "decoder/*", ("MatMul", "Gemm")), Rule("keep"))
    assert load_recipe(path) == Recipe("w8a8", rules, 64, 25.0, "moving-average", True, True, True, 1)
    assert isinstance(load_recipe(path).min_sqnr, float)


def test_the_mark_that_editors_on_windows_begin_files_with(written) -> None:
    assert load_recipe(written('\ufeffscheme = "w8a8"\n')) == Recipe("w8a8")


def test_an_empty_recipe_is_the_default(written) -> None:
    assert load_recipe(written("")) == Recipe()


@pytest.mark.parametrize(
    ("rule", "name", "op", "matches"),
    [
        (Rule("keep", "layers.0/*"), "layers.0/mlp/up", "MatMul", True),
        (Rule("keep", "layers.0/*"), "layers.00/up", "MatMul", False),
        (Rule("keep", "layers.?"), "layers.1", "MatMul", True),
        (Rule("keep", "Head"), "head", "MatMul", False),
        (Rule("keep", "head"), "my_head", "MatMul", False),
        (Rule("keep", "re:head"), "my_head_1", "MatMul", True),
        (Rule("keep", "re:^layers\\.[02]$"), "layers.2", "MatMul", True),
        (Rule("keep", "re:^layers\\.[02]$"), "layers.1", "MatMul", False),
        (Rule("keep", ops=("Conv",)), "anything", "Conv", True),
        (Rule("keep", ops=("Conv",)), "anything", "ConvTranspose", False),
        (Rule("keep", "a*", ("Conv", "Gemm")), "b", "Gemm", False),
    ],
    ids=str,
)
def test_rules_match_by_glob_regular_expression_and_operator(rule: Rule, name: str, op: str, matches: bool) -> None:
    assert rule.matches(name, op) is matches
    assert Recipe("w8a16", (rule,)).scheme_for(name, op) == (KEEP if matches else "w8a16")


def test_the_last_rule_that_matches_wins() -> None:
    recipe = Recipe("w8a8", (Rule("keep", "a*"), Rule("nf4", "ab*"), Rule("w4a16", ops=("Gather",))))
    found = {name: recipe.scheme_for(name, "MatMul") for name in ("a", "abc", "b")}
    assert found == {"a": "keep", "abc": "nf4", "b": "w8a8"}
    assert recipe.scheme_for("abc", "Gather") == "w4a16"


@pytest.mark.parametrize(
    ("text", "rule"),
    [("a/*=w8a16", Rule("w8a16", "a/*")), ("re:x=y$=keep", Rule("keep", "re:x=y$")), ("*=nf4", Rule("nf4"))],
)
def test_set(text: str, rule: Rule) -> None:
    assert parse_set(text) == rule


@pytest.mark.parametrize("text", ["w8a16", "=w8a16", ""])
def test_set_without_a_pattern(text: str) -> None:
    with pytest.raises(BadRecipe, match=f"--set: invalid rule '{text}'; example: "):
        parse_set(text)


def test_unknown_words_list_the_known_ones() -> None:
    with pytest.raises(BadRecipe, match="unknown scheme 'int9'; choose one of " + ", ".join(SCHEMES)):
        Recipe("int9")
    with pytest.raises(BadRecipe, match=r"'int9'; .* or a number format for the weights: bfloat16, .* uniform"):
        Rule("int9")
    with pytest.raises(BadRecipe, match="'uniform17': uniform takes 2 to 16 bits, as in uniform2"):
        Recipe("uniform17")
    with pytest.raises(BadRecipe, match="a rule cannot set 'auto'"):
        Rule("auto")
    words = ", ".join(collector_names())
    with pytest.raises(BadRecipe, match=f"unknown calibration method 'magic'; choose one of {words}"):
        Recipe(calibration="magic")


@pytest.mark.parametrize("block", [0, -32, 8, 24, 33, 100, 512])
def test_blocks_are_those_the_kernels_have(block: int) -> None:
    with pytest.raises(BadRecipe, match=f"invalid block size {block}; choose one of 16, 32, 64, 128, 256"):
        Recipe(block_size=block)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheme = ", "is not TOML: "),
        ("schema = 'w8a8'", "unknown key 'schema'; valid keys: scheme, block_size, min_sqnr, .* and "),
        ("rules = []", "unknown key 'rules'"),
        ("scheme = 8", "scheme = 8 should be of type str"),
        ("block_size = '32'", "block_size = '32' should be of type int"),
        ("block_size = true", "block_size = True should be of type int"),
        ("min_sqnr = true", "min_sqnr = True should be of type float"),
        ("min_sqnr = nan", "min_sqnr must be a number of dB, not NaN"),
        ("keep_slow = 1", "keep_slow = 1 should be of type bool"),
        ("accuracy_level = 5", "invalid accuracy level 5; choose one of 0, 1, 2, 3, 4"),
        ("rule = 3", "rules are written as"),
        ("[rule]\nset = 'keep'", "rules are written as"),
        ("rule = [3]", "has 'set', and may have 'nodes' and 'ops', nothing else"),
        ("[[rule]]\nnodes = 'a'", "has 'set', and may have 'nodes' and 'ops', nothing else"),
        ("[[rule]]\nset = 'keep'\nop = 'Conv'", "has 'set', and may have 'nodes' and 'ops', nothing else"),
        ("[[rule]]\nset = 'keep'\nops = 'Conv'", "'ops' is a list of strings"),
        ("[[rule]]\nset = 'keep'\nnodes = 3", "'set' and 'nodes' are strings"),
        ("[[rule]]\nset = 'keep'\nnodes = 're:('", r"the rule 're:\(' is not a regular expression"),
    ],
    ids=str,
)
def test_recipes_that_are_not_understood(written, text: str, message: str) -> None:
    with pytest.raises(BadRecipe, match=message):
        load_recipe(written(text))


def test_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"the recipe '.*none.toml' cannot be read"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadRecipe, match=r"the recipe '.*bytes.toml' cannot be read"):
        load_recipe(tmp_path / "bytes.toml")


def test_auto_depends_on_the_data() -> None:
    assert Recipe().resolve(has_data=True).scheme == "w8a8"
    assert Recipe().resolve(has_data=False).scheme == "w4a16"
    assert not Recipe().resolve(has_data=False).keep_slow


def test_a_format_named_by_the_user_is_kept_though_slow() -> None:
    kept = {word for word in SCHEMES if Recipe(word).resolve(has_data=True).keep_slow}
    assert kept == set(SCHEMES) - {"auto", "w4a8", "w8a8", "w8a8-dynamic"}


@pytest.mark.parametrize(
    "recipe", [Recipe("w8a8"), Recipe("w8a8-dynamic", (Rule("w8a8", "a"),))], ids=["scheme", "rule"]
)
def test_w8a8_needs_data(recipe: Recipe) -> None:
    assert recipe.resolve(has_data=True) == recipe
    with pytest.raises(BadRecipe, match="w8a8 needs calibration data: give --data, or use w8a8-dynamic"):
        recipe.resolve(has_data=False)


def test_a_w8a8_rule_needs_data_in_every_scheme() -> None:
    for scheme in set(SCHEMES) - {"w4a8"}:  # which needs them too, and says so first
        with pytest.raises(BadRecipe, match="w8a8 needs calibration data"):
            Recipe(scheme, (Rule("w8a8", "head"),)).resolve(has_data=False)


def test_preference_effort_and_floor_of_toml(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('prefer = "size"\neffort = "quick"\nmin_sqnr = 25', encoding="utf-8")
    assert load_recipe(path) == Recipe(prefer="size", effort="quick", min_sqnr=25.0)
    assert (Recipe().min_sqnr, Recipe().aim, Recipe(min_sqnr=25).aim) == (None, 20.0, 25)
    assert (Recipe().prefer, Recipe("w8a8-dynamic").prefer, Recipe().effort) == ("balanced", "balanced", "normal")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"prefer": "beauty"}, "unknown preference 'beauty'; choose one of speed, balanced, accuracy, size"),
        ({"effort": "some"}, "unknown effort 'some'; choose one of quick, normal, thorough"),
    ],
)
def test_unknown_preferences_and_efforts(words: dict[str, str], message: str) -> None:
    with pytest.raises(BadRecipe, match=message):
        Recipe(**words)  # type: ignore[arg-type]
