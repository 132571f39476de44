"""The recipe is what it says, training is reproducible, and a checkpoint callback cannot disturb it."""

import math

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup

from tl_aniso.errors import ModelError, TextError, TlAnisoError
from tl_aniso.text import document_hash, half_of
from tl_aniso.training import (
    DecoderRecipe,
    build_decoder,
    measured_documents,
    pack_windows,
    train_decoder,
    train_tokenizer,
)

TINY = DecoderRecipe(
    d_model=16, n_layers=2, n_heads=2, d_mlp=32, vocab_size=300, context=12, batch_size=4, n_steps=10, warmup=3
)
TEXTS = [f"sentence {i} says that {i * 7 % 11} is a number and {i % 5} is another" for i in range(120)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 300)


@pytest.fixture(scope="module")
def windows(tokenizer):
    return pack_windows(TEXTS, tokenizer, 12)


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_rate_warms_up_and_follows_a_cosine_to_a_tenth():
    recipe = DecoderRecipe()
    assert [recipe.rate(s) for s in (0, 24, 49, 50)] == pytest.approx([4e-5, 1e-3, 2e-3, 2e-3])
    assert recipe.rate(275) == pytest.approx(2e-3 * 0.55)
    assert recipe.rate(500) == recipe.rate(900) == pytest.approx(2e-4)
    assert DecoderRecipe(warmup=0).rate(0) == 2e-3
    # A peer, whose cosine ends at zero and whose warmup starts there.
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.AdamW([parameter], lr=1.0)
    peer = get_cosine_schedule_with_warmup(optimiser, 50, 500).lr_lambdas[0]
    for step in range(50, 500, 30):
        assert recipe.rate(step) / 2e-3 == pytest.approx(0.1 + 0.9 * peer(step))


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_layers": 0},
        {"n_steps": -1},
        {"learning_rate": float("nan")},
        {"weight_decay": -0.1},
        {"context": 1},
        {"vocab_size": 256},
        {"n_heads": 3},
    ],
)
def test_impossible_recipes_name_the_value(wrong):
    with pytest.raises(TlAnisoError, match=next(iter(wrong))):
        DecoderRecipe(**wrong)


def test_default_checkpoints():
    assert DecoderRecipe().default_checkpoints() == tuple(range(0, 501, 25))
    assert DecoderRecipe(n_steps=3).default_checkpoints() == (0, 1, 2, 3)


def test_decoder_is_the_recipes():
    recipe = DecoderRecipe()
    model = build_decoder(recipe, seed=3)
    config = model.config
    assert not config.tie_word_embeddings
    assert config.use_parallel_residual
    assert (config.hidden_dropout, config.attention_dropout) == (0, 0)
    assert config.max_position_embeddings == 128
    d, m, v = 128, 512, 2048
    layer = 4 * d * d + 4 * d + 2 * d * m + m + d + 4 * d
    assert sum(p.numel() for p in model.parameters()) == 4 * layer + 2 * d + 2 * v * d
    assert model.gpt_neox.embed_in.weight.detach().std() == pytest.approx(0.02, rel=0.02)
    assert model.gpt_neox.layers[0].mlp.dense_h_to_4h.weight.shape == (m, d)
    assert not model.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


def test_seeds_are_local_and_matter():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    one, two, other = build_decoder(TINY, 0), build_decoder(TINY, 0), build_decoder(TINY, 1)
    assert torch.equal(torch.rand(3), expected)
    assert same(weights(one), weights(two))
    assert not same(weights(one), weights(other))


def test_tokenizer_reproduces_any_text(tokenizer):
    for text in ("sentence 3", " leading", "tab\t\n\n ünïcode 😀 </script>", "don ' t , stop ."):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer) == 300
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 0)
    assert tokenizer("").input_ids == []
    assert 0 not in tokenizer("sentence 1").input_ids
    assert train_tokenizer(TEXTS, 300).get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer(TEXTS[0]).input_ids) < 0.7 * len(TEXTS[0])  # pairs were merged


def test_tokenizer_needs_enough_text():
    with pytest.raises(TextError, match="not 2048"):
        train_tokenizer(["a b"], 2048)
    with pytest.raises(TlAnisoError, match="257"):
        train_tokenizer(["a b"], 100)


def test_windows_are_the_documents_joined_by_end_of_text(tokenizer):
    windows = pack_windows(TEXTS, tokenizer, 12)
    stream = [i for text in TEXTS for i in (*tokenizer(text).input_ids, 0)]
    assert windows.dtype == torch.int64
    assert windows.shape == (len(stream) // 12, 12)
    assert windows.flatten().tolist() == stream[: windows.numel()]
    with pytest.raises(TextError, match="less than one window of 500"):
        pack_windows(["sentence"], tokenizer, 500)
    with pytest.raises(TextError, match="0 tokens"):
        pack_windows([], tokenizer, 12)


def test_measured_documents_are_equal_in_length_and_halves(tokenizer):
    found = measured_documents(TEXTS, tokenizer, length=10, per_half=7)
    assert {len(ids) for ids in found} == {10}
    hashes = [document_hash(ids) for ids in found]
    assert sorted(map(half_of, hashes)) == ["A"] * 7 + ["B"] * 7
    assert len(set(hashes)) == 14
    starts = {tuple(tokenizer(text).input_ids[:10]) for text in TEXTS}
    assert {tuple(ids.tolist()) for ids in found} <= starts
    again = measured_documents([*TEXTS[::-1], "short"], tokenizer, length=10, per_half=7)
    assert [ids.tolist() for ids in again] == [ids.tolist() for ids in found]
    with pytest.raises(TextError, match="100 are asked for"):
        measured_documents(TEXTS, tokenizer, length=10, per_half=100)


def slow_reference(windows, seed):
    """The recipe again in the plainest way: torch's own schedule, one window at a time."""
    model = build_decoder(TINY, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=TINY.learning_rate, weight_decay=TINY.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: TINY.rate(s) / TINY.learning_rate)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))
    losses = []
    for step in range(TINY.n_steps):
        optimiser.zero_grad()
        total = 0.0
        for row in windows[order[4 * step : 4 * step + 4]]:
            logits = model(input_ids=row[None]).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], row[1:]) / 4
            loss.backward()
            total += float(loss.detach())
        optimiser.step()
        schedule.step()
        losses.append(total)
    return losses


def test_training_follows_the_slow_reference(windows):
    assert train_decoder(TINY, windows, seed=5).losses == pytest.approx(slow_reference(windows, 5), rel=1e-4)


def test_every_window_is_seen_once_an_epoch(windows, monkeypatch):
    few = torch.arange(300)[: 5 * 12].view(5, 12)
    seen = []
    forward = type(build_decoder(TINY)).forward

    def spy(self, input_ids, **rest):
        seen.extend(input_ids[:, 0].tolist())
        return forward(self, input_ids=input_ids, **rest)

    monkeypatch.setattr(type(build_decoder(TINY)), "forward", spy)
    train_decoder(TINY, few)
    assert len(seen) == TINY.n_steps * TINY.batch_size == 40
    epochs = [seen[i : i + 5] for i in range(0, 40, 5)]
    assert all(sorted(epoch) == [0, 12, 24, 36, 48] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_same_seed_same_run_and_nothing_global_changes(windows):
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    one, two, other = (train_decoder(TINY, windows, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert one.losses == two.losses != other.losses
    assert same(weights(one.model), weights(two.model))
    assert not one.model.training
    assert all(p.grad is None for p in one.model.parameters())


def test_checkpoints_are_the_model_after_so_many_steps(windows):
    seen = {}
    told = []

    def keep(step, model, loss):
        assert not model.training
        assert all(p.grad is None for p in model.parameters())
        seen[step] = (weights(model), loss)

    run = train_decoder(
        TINY,
        windows,
        seed=2,
        checkpoints=[10, 0, 4, 4],
        on_checkpoint=keep,
        on_step=lambda step, loss: told.append((step, loss)),
    )
    assert list(seen) == [0, 4, 10]
    assert same(seen[0][0], weights(build_decoder(TINY, 2)))
    assert same(seen[10][0], weights(run.model))
    assert not same(seen[4][0], seen[0][0])
    # The loss is of the batch that comes next, so it is also the next step's.
    assert seen[0][1] == pytest.approx(run.losses[0], rel=1e-6)
    assert seen[4][1] == pytest.approx(run.losses[4], rel=1e-6)
    assert math.isfinite(seen[10][1])
    assert told == list(enumerate(run.losses, start=1))


def test_a_rude_callback_changes_nothing(windows):
    plain = train_decoder(TINY, windows, seed=0)

    def rude(step, model, loss):
        model.train()
        model(input_ids=windows[:1], labels=windows[:1]).loss.backward()
        model.requires_grad_(False)
        torch.manual_seed(step)
        torch.rand(5)

    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    disturbed = train_decoder(TINY, windows, seed=0, checkpoints=range(11), on_checkpoint=rude)
    assert torch.equal(torch.rand(3), expected)
    assert disturbed.losses == plain.losses
    assert same(weights(disturbed.model), weights(plain.model))


def test_an_error_in_a_callback_comes_out_with_the_model_ready_to_train(windows):
    lent = []

    def fail(step, model, loss):
        lent.append(model)
        model.requires_grad_(False)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train_decoder(TINY, windows, on_checkpoint=fail)
    assert lent[0].training
    assert all(p.requires_grad for p in lent[0].parameters())


def test_it_learns():
    # A fixed successor for every id: the loss must fall far below the uniform log(300).
    recipe = DecoderRecipe(
        d_model=32,
        n_layers=1,
        n_heads=2,
        d_mlp=64,
        vocab_size=300,
        context=16,
        n_steps=80,
        warmup=5,
        learning_rate=0.02,
    )
    windows = (torch.arange(64)[:, None] * 5 + torch.arange(16)) % 300
    losses = train_decoder(recipe, windows).losses
    assert losses[0] == pytest.approx(math.log(300), abs=0.3)
    assert losses[-1] < 1.5


def test_bad_input_is_named(windows):
    with pytest.raises(TlAnisoError, match="Checkpoint 11"):
        train_decoder(TINY, windows, checkpoints=[0, 11])
    with pytest.raises(TextError, match=r"\(window, 12\)"):
        train_decoder(TINY, windows[:, :8])
    with pytest.raises(TextError, match="id 300"):
        train_decoder(TINY, torch.full((4, 12), 300))
    with pytest.raises(ModelError, match=r"diverged.*step"):
        train_decoder(DecoderRecipe(**{**vars(TINY), "learning_rate": 1e30}), windows)
