import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch_search.pattern import MAX_LAYERS, format_pattern, parse_pattern

PAPER = "m2rnn gdn*3 attn (gdn*7 attn)*2 gdn*3"
names = st.lists(
    st.sampled_from(["gdn", "attn", "m2rnn", "my_pkg.file:Block"]), min_size=1, max_size=40
)


def test_the_papers_hybrid_has_24_layers_with_attention_where_it_says():
    layers = parse_pattern(PAPER)
    assert len(layers) == 24
    assert [i for i, name in enumerate(layers) if name == "attn"] == [4, 12, 20]
    assert layers[0] == "m2rnn"
    assert layers.count("gdn") == 20


@given(names)
def test_parsing_what_was_printed_gives_the_layers_back(layers):
    assert parse_pattern(format_pattern(layers)) == tuple(layers)


@given(names)
def test_the_canonical_form_is_a_fixed_point(layers):
    canonical = format_pattern(layers)
    assert format_pattern(parse_pattern(canonical)) == canonical


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("gdn gdn gdn attn gdn gdn gdn attn", "(gdn*3 attn)*2"),
        ("( gdn * 3   attn )*2", "(gdn*3 attn)*2"),
        ("((gru attn)*2 gdn)*2", "((gru attn)*2 gdn)*2"),
        ("a", "a"),
        ("a a", "a*2"),
        ("gru attn gru attn", "(gru attn)*2"),
        ("a b a b", "a b a b"),
    ],
)
def test_equal_layers_print_alike(text, canonical):
    assert format_pattern(parse_pattern(text)) == canonical


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "empty"),
        ("   ", "empty"),
        ("(gdn*3 attn", "never closed"),
        ("gdn)", "closes nothing"),
        ("()", "parentheses are empty"),
        ("*3", "must follow"),
        ("gdn*0", "at least 1"),
        ("gdn*-2", "at least 1"),
        ("gdn*2*3", "must follow"),
        ("gdn+attn", "cannot read"),
        (f"gdn*{MAX_LAYERS + 1}", "layers"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_reason(text, says):
    with pytest.raises(ValueError, match=says):
        parse_pattern(text)


def test_an_error_points_at_the_character():
    with pytest.raises(ValueError, match="character 5"):
        parse_pattern("gdn +attn")
