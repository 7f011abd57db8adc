"""A model that draws: trained, resumed exactly, sampled with and without a cache."""

import io
import json
import re
import shutil

import numpy as np
import pytest
import torch

import limelight
from limelight.cli import main
from limelight.data.config import ImageConfig
from limelight.draw.examples import GeneratedPictures, SequenceExamples, caption_tokens, join
from limelight.draw.image_tokenizer import DECODER, FOLDER, FSQ, ImageTokenizer, RunningNorm
from limelight.draw.png import png_bytes, preview
from limelight.draw.sampling import sample_in_steps
from limelight.draw.shapes import ShapeWorld
from limelight.draw.train import init_rows_and_columns
from limelight.errors import UserError
from limelight.model import ModelConfig, build
from limelight.run.weights import WEIGHTS, read_tensors
from limelight.training import loop
from limelight.workflows.evaluate import score_run
from limelight.workflows.train import train
from tests.draw.test_scenes import scenes_of
from tests.tasks.conftest import DRAWS

CAPTION = "a small red circle above a large blue square"


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return limelight.load(tiny_run, device="cpu")


def test_numbers_reach_the_levels_with_mean_0_and_variance_1():
    """Else all patches of an untrained encoder round to one token, and never leave it."""
    norm, values = RunningNorm(3), 5 + 0.5 * torch.randn(400, 3)
    for _ in range(400):
        made = norm(values)
    torch.testing.assert_close(made.mean(dim=0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(made.var(dim=0), torch.ones(3), atol=0.2, rtol=0)
    torch.testing.assert_close(norm.eval()(values), made, atol=0.2, rtol=0)
    untrained = ImageTokenizer((8, 5, 5, 5), 16).train()
    assert (
        untrained(ShapeWorld(32, torch.device("cpu")).render(scenes_of("train", 64)[0]))[1]
        .unique()
        .numel()
        > 20
    )


def test_positions_begin_as_rows_and_columns():
    images = ImageConfig()
    config = ModelConfig(
        family="decoder-only",
        vocab=9,
        layers=1,
        d_model=8,
        heads=2,
        max_len=images.positions,
        positions="learned",
    )
    model = build(config)
    init_rows_and_columns(model, images)
    grid = model.target.positions.weight[images.caption_tokens :].view(8, 8, 8)
    row_step, column_step = grid[1:] - grid[:-1], grid[:, 1:] - grid[:, :-1]
    torch.testing.assert_close(row_step, row_step[:, :1].expand_as(row_step))
    torch.testing.assert_close(column_step, column_step[:1].expand_as(column_step))


def test_batches_depend_on_their_position_alone(loaded):
    world = ShapeWorld(32, torch.device("cpu"))
    made = GeneratedPictures(world, ImageConfig(), 1, torch.device("cpu"))
    same, again, later = (
        made.batch("train", 0, p, np.arange(4), loaded.tokenizer) for p in (3, 3, 4)
    )
    assert torch.equal(same[0], again[0])
    assert torch.equal(same[1], again[1])
    assert not torch.equal(same[0], later[0])
    with pytest.raises(
        UserError, match="caption_tokens=8 is too few: these captions have up to 24"
    ):
        GeneratedPictures(world, ImageConfig(caption_tokens=8), 1, torch.device("cpu"))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_captions_are_left_empty_in_training_alone(loaded, share):
    """So the model learns to draw without a caption, which guidance moves away from."""
    images = ImageConfig(caption_dropout=share, caption_tokens=24)
    world = ShapeWorld(32, torch.device("cpu"))
    pictures = GeneratedPictures(world, images, 1, torch.device("cpu"))
    empty = {}
    for split in ("train", "valid"):
        examples = SequenceExamples(pictures, split, loaded.tokenizer, loaded.image_tokenizer)
        rows = np.arange(400)
        tokens = examples.batch(0, 0, rows, np.full(400, 88)).tokens
        captions = tokens[:, : images.caption_tokens]
        empty[split] = float((captions == loaded.tokenizer.pad).all(dim=1).float().mean())
    assert abs(empty["train"] - share) < 0.08
    assert share or not empty["train"]
    assert empty["valid"] == 0


def test_every_level_has_its_token_and_comes_back():
    fsq = FSQ((8, 5, 5, 5))
    ids = torch.arange(fsq.codes)
    vectors = fsq.vectors(ids)
    assert len(vectors.unique(dim=0)) == fsq.codes == 1000
    assert vectors.abs().max() <= 1
    # A number far inside of a level is rounded to that level.
    bounded = vectors * fsq.centre
    z = torch.atanh((bounded + (fsq.levels % 2 == 0) / 2) / ((fsq.levels - 1) * 1.001 / 2))
    z = z - torch.atanh((fsq.levels % 2 == 0) / 2 / ((fsq.levels - 1) * 1.001 / 2))
    again, found = fsq(z)
    assert torch.equal(found, ids)
    torch.testing.assert_close(again, vectors)


def test_rounding_lets_the_gradient_through():
    z = torch.randn(7, 4, requires_grad=True)
    FSQ((8, 5, 5, 5))(z)[0].sum().backward()
    assert (z.grad > 0).all()


@pytest.mark.parametrize("size", [32, 64])
def test_pictures_become_tokens_of_patches(size):
    images = ImageConfig(size=size)
    tokenizer = ImageTokenizer(images.levels, 8).eval()
    pictures = torch.rand(2, 3, size, size)
    ids = tokenizer.encode(pictures)
    assert ids.shape == (2, images.tokens) == (2, (size // 4) ** 2)
    rebuilt, grid = tokenizer(pictures)
    assert torch.equal(grid.flatten(1), ids)
    torch.testing.assert_close(tokenizer.decode(ids), rebuilt.clamp(0, 1))


def uncached(loaded, ids, caption):
    """Log-probabilities of all image tokens in one pass, without a cache."""
    row = torch.tensor([caption_tokens(caption, loaded.tokenizer, loaded.recipe.images)])
    tokens = join(row, ids, loaded.tokenizer)
    logits = loaded.model(tokens[:, :-1])[:, row.size(1) :, len(loaded.tokenizer) :]
    return logits.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]


@torch.no_grad()
def test_cached_sampling_scores_what_one_pass_scores(loaded):
    drawing = loaded.draw(CAPTION, seed=5)
    ids = torch.tensor(drawing.tokens)
    wanted = (uncached(loaded, ids, CAPTION) - uncached(loaded, ids, "")).sum()
    assert drawing.scores[0] == pytest.approx(float(wanted), abs=2e-3)


@torch.no_grad()
def test_greedy_picture_is_the_argmax_of_one_pass(loaded):
    ids = torch.tensor(loaded.draw(CAPTION, temperature=0.0, guidance=1.0).tokens)
    row = torch.tensor([caption_tokens(CAPTION, loaded.tokenizer, loaded.recipe.images)])
    logits = loaded.model(join(row, ids, loaded.tokenizer)[:, :-1])
    best = logits[:, row.size(1) :, len(loaded.tokenizer) :].argmax(dim=-1)
    assert torch.equal(best, ids)


def test_a_seed_is_a_picture_whatever_is_drawn_beside_it(loaded):
    alone = loaded.draw(CAPTION, seed=4).tokens[0]
    several = loaded.draw(CAPTION, n=5, seed=2)
    assert several.tokens[2] == alone
    assert several.seeds == [2, 3, 4, 5, 6]
    assert len({tuple(tokens) for tokens in several.tokens}) > 1
    rows = [
        caption_tokens(text, loaded.tokenizer, loaded.recipe.images) for text in (CAPTION, "a box")
    ]
    args = (loaded.tokenizer, loaded.recipe.images, loaded.decode)
    *_, both = sample_in_steps(loaded.model, rows, [4, 9], *args)
    assert both.ids[0].tolist() == alone


def test_the_best_of_several_is_the_one_with_the_highest_score(loaded):
    every = loaded.draw(CAPTION, n=6, seed=1)
    best = loaded.draw(CAPTION, n=2, best_of=3, seed=1)
    assert best.scores == [max(every.scores[:3]), max(every.scores[3:])]


def test_guidance_moves_away_from_the_picture_without_a_caption(loaded):
    plain, guided = (loaded.draw(CAPTION, n=8, guidance=g) for g in (1.0, 6.0))
    assert np.mean(guided.scores) > np.mean(plain.scores)
    blind = loaded.draw(CAPTION, n=3, guidance=0.0)
    assert blind.tokens == loaded.draw("a yellow triangle", n=3, guidance=0.0).tokens


def test_half_a_picture_is_decoded_with_zeros_for_the_rest(loaded):
    """They are what convolutions see beyond the edge; any other token would be seen as drawn."""
    tokenizer, ids = loaded.image_tokenizer, torch.tensor(loaded.draw(CAPTION).tokens)
    nothing = int((tokenizer.quantizer.centre * tokenizer.quantizer.bases).sum())
    padded = ids.clone()
    padded[:, 20:] = nothing
    torch.testing.assert_close(tokenizer.decode(ids[:, :20], 64), tokenizer.decode(padded))
    torch.testing.assert_close(tokenizer.decode(ids, 64), tokenizer.decode(ids))
    assert not torch.equal(tokenizer.decode(ids[:, :20], 64), tokenizer.decode(ids))


@torch.no_grad()
def explicit_attention(loaded, tokens):
    """Weights of each layer for one sequence, H T T, from the weights of the model by hand."""
    model, config = loaded.model, loaded.model.config
    x, found = model.target(tokens, torch.arange(tokens.size(1))[None]), []
    for layer in model.decoder.layers:
        attention, read = layer.self_attention, layer.self_residual.norm(x)  # pre-norm
        q, k = (
            part(read)[0].view(-1, config.heads, config.d_model // config.heads).transpose(0, 1)
            for part in (attention.query, attention.key)
        )
        scores = q @ k.transpose(1, 2) / (config.d_model // config.heads) ** 0.5
        later = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        found.append(scores.masked_fill(later, -torch.inf).softmax(dim=-1))
        x = layer(x, causal=True)
    return found


@pytest.mark.parametrize("patch", [0, 27, 63])
@torch.no_grad()
def test_a_patch_is_shown_with_what_it_was_chosen_from(loaded, patch):
    """Probabilities by the definition of guidance, attention by that of attention."""
    tokens = loaded.draw(CAPTION, seed=3).tokens[0]
    config = loaded.settings(guidance=3.0, temperature=0.8, top_k=50)
    view = loaded.drawer().inspect(CAPTION, tokens, patch, 6, config)
    rows = [
        torch.tensor([caption_tokens(text, loaded.tokenizer, loaded.recipe.images)])
        for text in (CAPTION, "")
    ]
    ids = torch.tensor([tokens[:patch]], dtype=torch.long)
    read = [join(row, ids, loaded.tokenizer) for row in rows]
    informed, blind = (
        loaded.model(each)[0, -1, len(loaded.tokenizer) :].log_softmax(dim=-1) for each in read
    )
    guided = (blind + 3.0 * (informed - blind)) / 0.8
    best = guided.topk(50)
    assert view.tokens == best.indices[:6].tolist()
    assert view.probabilities == pytest.approx(best.values.softmax(-1)[:6].tolist(), rel=1e-3)
    words, length = len(CAPTION.split()), rows[0].size(1)
    weights = explicit_attention(loaded, read[0])
    assert len(view.attention) == len(weights) == 2
    for layer, wanted in zip(view.attention, weights, strict=True):
        mean = wanted.mean(dim=0)[-1]
        assert layer.words == pytest.approx(mean[:words].tolist(), abs=1e-6)
        assert layer.padding == pytest.approx(float(mean[words:length].sum()), abs=1e-6)
        assert layer.separator == pytest.approx(float(mean[length]), abs=1e-6)
        assert layer.patches == pytest.approx(mean[length + 1 :].tolist(), abs=1e-6)
    assert view.words == CAPTION.split()


def test_candidates_are_shown_in_the_picture_around_their_patch(loaded):
    drawing, drawer = loaded.draw(CAPTION, seed=3), loaded.drawer()
    for patch, (y, x) in {0: (0, 0), 27: (8, 8), 63: (20, 20), 39: (12, 20)}.items():
        view = drawer.inspect(CAPTION, drawing.tokens[0], patch, 1000, loaded.decode)
        assert sum(view.probabilities) == pytest.approx(1)
        chosen = view.tokens.index(drawing.tokens[0][patch])
        assert np.array_equal(view.pixels[chosen], drawing.pixels[0][y : y + 12, x : x + 12])
        assert len(np.unique(view.pixels.reshape(1000, -1), axis=0)) > 1


def test_unknown_words_are_drawn_and_named(loaded):
    drawing = loaded.draw("a Small red ZEBRA, above a box!")
    assert drawing.unknown == ("zebra",)
    assert (
        drawing.note
        == "the model has not learned 'zebra': the picture may ignore what it cannot read"
    )
    assert loaded.draw("a small red box").note == ""


def test_pictures_are_saved_as_a_grid(loaded, tmp_path):
    from PIL import Image

    loaded.draw(CAPTION, n=4).save(tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as image:
        assert image.size == (8 * 65, 8 * 65)
        assert image.mode == "RGB"
    pixels = loaded.draw(CAPTION).pixels[0]
    with Image.open(io.BytesIO(png_bytes(pixels, 2))) as image:
        assert np.array_equal(np.asarray(image)[::2, 1::2], pixels)


def test_a_preview_has_two_pixels_in_each_character():
    pixels = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)
    shown = preview(pixels)
    assert shown.plain == "▀▀▀\n▀▀▀\n"
    assert [span.style for span in shown.spans][4] == "rgb(21,22,23) on rgb(30,31,32)"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("e.jpg", r"the output e\.jpg must end in \.png"), ("no/e.png", "there is no folder .*/no$")],
)
def test_a_file_that_cannot_be_written_is_refused_before_drawing(
    loaded, tiny_run, tmp_path, monkeypatch, capsys, name, sentence
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["limelight", "draw", str(tiny_run), CAPTION, "-o", name])
    monkeypatch.setattr("limelight.loading.load", None)  # nothing is loaded for it
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2
    assert re.search(sentence, capsys.readouterr().err.strip())
    with pytest.raises(UserError, match=sentence):
        loaded.draw(CAPTION).save(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"n": 0}, "n=0 is out of range: ask for 1 to 256"),
        ({"n": 16, "best_of": 17}, "best_of=17 is out of range: ask for 1 to 16"),
        ({"caption": "red " * 17}, "has 17 tokens, and this model reads 16 at most: shorten it"),
        ({"guidance": -1.0}, "guidance=-1.0 is out of range: should be 0 or more"),
    ],
)
def test_impossible_requests_are_refused_with_a_sentence(loaded, request_, sentence):
    with pytest.raises(UserError) as error:
        loaded.draw(**{"caption": CAPTION, **request_})
    assert sentence in str(error.value)


def test_other_tasks_are_refused(loaded):
    with pytest.raises(
        UserError,
        match="cannot translate: it is decoder-only and learned from images, so it can draw",
    ):
        loaded.require("translate")


def test_scores_and_files_of_a_run(tiny_run, monkeypatch):
    monkeypatch.setattr("limelight.draw.evaluate._CAPTIONS", 20)
    scores = score_run(tiny_run, silent=True)
    assert scores["truth"]["pictures"] == 1.0
    assert 0 <= scores["drawn"]["objects"] <= 1
    assert scores["tokens_used"] <= 1000
    assert json.dumps(scores)
    for name in ("reconstructions.png", "samples.png", "curves.svg", "image_tokenizer/log.jsonl"):
        assert (tiny_run / name).is_file()
    lines = [
        json.loads(line)
        for line in (tiny_run / "image_tokenizer/log.jsonl").read_text().splitlines()
    ]
    assert {"tokens_used", "mse", "perplexity"} <= next(
        x for x in lines if "validation" in x
    ).keys()


def weights_of(run):
    finished = sorted(run.glob("**/finished/step-*"))
    return {str(f.relative_to(run)): read_tensors(f / WEIGHTS) for f in finished}


def test_a_decoder_that_trains_alone_leaves_the_tokens_as_they_are(tiny_run, loaded):
    whole, alone = (
        read_tensors(next((tiny_run / FOLDER / part).glob("finished/step-*")) / WEIGHTS)
        for part in (".", DECODER)
    )
    moved = {name for name, value in whole.items() if not torch.equal(alone[name], value)}
    assert moved == {name for name in whole if name.startswith("decoder.")}
    used = loaded.image_tokenizer.state_dict()
    assert all(torch.equal(used[name], value) for name, value in alone.items())


@pytest.mark.parametrize("stop_at", [3, 8, 11])  # in each of the three trainings
def test_an_interrupted_run_ends_with_the_same_weights(tiny_run, tmp_path, monkeypatch, stop_at):
    run, taken = tmp_path / "run", []

    def step(trainer, batches, original=loop.train_step):
        taken.append(1)
        if len(taken) == stop_at:
            raise KeyboardInterrupt
        return original(trainer, batches)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "train_step", step)
        with pytest.raises(KeyboardInterrupt):
            train("shapes-small", run, DRAWS, silent=True)
    assert train("shapes-small", run, DRAWS, silent=True) == 0
    ours, theirs = weights_of(run), weights_of(tiny_run)
    assert ours.keys() == theirs.keys()
    assert len(ours) == 3
    for name, tensors in theirs.items():
        assert all(torch.equal(ours[name][key], value) for key, value in tensors.items())


def test_a_changed_image_setting_is_not_resumed(tiny_run):
    with pytest.raises(UserError, match=r"was begun with images\.channels = 8, and this is 16"):
        train("shapes-small", tiny_run, DRAWS | {"images.channels": 16}, silent=True)


def test_a_damaged_image_tokenizer_is_refused(tiny_run, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(tiny_run, run)
    text = (run / "recipe.toml").read_text().replace("channels = 8", "channels = 16")
    (run / "recipe.toml").write_text(text)
    meta = json.loads((run / "run.json").read_text())
    del meta["sha256"]["recipe.toml"]
    (run / "run.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="is not of this model"):
        limelight.load(run)


@pytest.mark.parametrize(("name", "value"), [("bpe_dropout", 0.1), ("pack", 32)])
def test_what_is_done_to_texts_alone_is_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=f"{name}={value} is for models of texts: set --train"):
        train("shapes-small", tmp_path / "run", {**DRAWS, f"train.{name}": value}, silent=True)
    assert not (tmp_path / "run" / "recipe.toml").exists()
