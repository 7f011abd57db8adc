"""SentencePiece models, against the `sentencepiece` package: ids and texts."""

import io
import random
from importlib import resources

import pytest
import sentencepiece

from limelight.errors import UserError
from limelight.interop.charsmap import Charsmap
from limelight.interop.sentencepiece import SentencePieceCoder, parse_sentencepiece, to_bytes
from tests.interop.nasty import nasty_texts

GREETINGS = resources.files("limelight.data").joinpath("greetings.tsv").read_text("utf-8")
TEXTS = [*GREETINGS.split("\n"), *nasty_texts(120, seed=5)[-40:]]
KINDS = {
    "unigram": {"model_type": "unigram"},
    "unigram with bytes": {"model_type": "unigram", "byte_fallback": True},
    "unigram lowercase": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram with symbols": {"model_type": "unigram", "user_defined_symbols": ["<sep>", "don't"]},
    "bpe": {"model_type": "bpe"},
    "bpe as Llama 2": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "unigram without prefix": {"model_type": "unigram", "add_dummy_prefix": False},
}


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    """A path with a model that the package has just learned."""
    options, learned = KINDS[request.param], io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=learned,
        vocab_size=700,
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return learned.getvalue()


def test_ids_and_texts_are_those_of_the_package(model):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = SentencePieceCoder({"m.spm": model})
    texts = nasty_texts()
    for text, found in zip(texts, ours.encode(texts), strict=True):
        wanted = theirs.encode(text)
        assert found == wanted, text
        assert ours.decode(wanted) == theirs.decode(wanted), text


def test_bytes_that_are_no_character_are_shown_one_by_one():
    from limelight.interop.sentencepiece import BYTE, NORMAL, UNKNOWN, SentencePieceModel

    pieces = [("<unk>", 0.0, UNKNOWN), ("▁", -1.0, NORMAL), ("a", -2.0, NORMAL)]
    pieces += [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]
    data = to_bytes(SentencePieceModel(pieces, byte_fallback=True))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours, draw = SentencePieceCoder({"m.spm": data}), random.Random(0)
    for _ in range(300):
        start = draw.choice([[], [1], [2], [1, 2]])
        ids = [*start, *(draw.randrange(259) for _ in range(draw.randrange(6)))]
        ids += ours.encode([draw.choice(["", "é", "日本"])])[0]
        assert ours.decode(ids) == theirs.decode(ids)


def test_a_file_that_is_written_says_what_was_read(model):
    read = parse_sentencepiece(model)
    written = to_bytes(read)
    assert parse_sentencepiece(written) == read
    theirs = [sentencepiece.SentencePieceProcessor(model_proto=m) for m in (model, written)]
    assert len({tuple(map(tuple, one.encode(nasty_texts(100)))) for one in theirs}) == 1


def test_only_a_template_spells_control_pieces(model):
    coder = SentencePieceCoder({"m.spm": model})
    end = coder.symbols.index("</s>")
    assert end not in coder.encode(["the</s>you"])[0]
    one, other = coder.encode(["the", "you"])
    assert coder.encode_template("the</s>you") == [*one, end, *other]


def test_the_bytes_of_tokens_spell_the_text(model):
    coder = SentencePieceCoder({"m.spm": model})
    ids = coder.encode(["the children  know"])[0]
    text = b"".join(map(coder.token_bytes, ids)).decode()
    assert text.removeprefix(" ") == coder.decode(ids)


@pytest.mark.parametrize("rules", [b"", b"\0" * 7, b"\4\0\0\0abc", b"\xff" * 40])
def test_damaged_rules_are_refused(rules):
    with pytest.raises(UserError, match="table of characters is damaged"):
        Charsmap(rules)
