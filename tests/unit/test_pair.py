"""A pair differs in objective and mask alone; progress, matching, masks and verdicts have known answers."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from tl_aniso.errors import TlAnisoError
from tl_aniso.pair.compare import few_shards_notes
from tl_aniso.pair.progress import HeldOut, match_progress, match_steps, progress_of, unigram_entropy, unigram_losses
from tl_aniso.pair.verdict import combined, judge_window
from tl_aniso.statistics import (
    excess_contrast,
    mean_excess_contrast,
    mean_share_difference,
    share_difference,
)
from tl_aniso.training import MaskedTokens, PairRecipe, build_pair, next_token_loss, train_model, train_tokenizer

TINY = PairRecipe(
    d_model=16, n_layers=1, n_heads=2, d_mlp=32, vocab_size=300, context=16, batch_size=4, n_steps=5, warmup=2
)


def windows(n=24, seed=0):
    return torch.randint(2, 300, (n, 16), generator=torch.Generator().manual_seed(seed))


def test_both_start_from_one_state_and_differ_in_the_mask_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    pair = build_pair(TINY, seed=3)
    assert torch.equal(torch.rand(2), expected)
    one, other = pair.decoder.state_dict(), pair.encoder.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one["lm_head.weight"].data_ptr() != other["lm_head.weight"].data_ptr()
    assert pair.decoder.model.embed_tokens.weight.std().item() == pytest.approx(0.06, rel=0.05)
    # In one layer, what the last token attends to is the same under either mask; the first token's is not.
    ids = windows(4)
    with torch.no_grad():
        causal, both = pair.decoder(ids).logits, pair.encoder(ids).logits
    torch.testing.assert_close(causal[:, -1], both[:, -1], rtol=1e-4, atol=1e-5)
    assert (causal[:, 0] - both[:, 0]).abs().max() > 1e-3
    again = build_pair(TINY, seed=4)
    assert not torch.equal(again.decoder.lm_head.weight, one["lm_head.weight"])


def test_masks_are_a_function_of_seed_and_step():
    objective = TINY.objective(seed=7)
    batch = windows(8)
    fed, chosen = objective.hide(batch, step=3)
    torch.manual_seed(0)
    same_fed, same_chosen = TINY.objective(seed=7).hide(batch, step=3)
    assert torch.equal(fed, same_fed)
    assert torch.equal(chosen, same_chosen)
    assert not torch.equal(chosen, objective.hide(batch, step=4)[1])
    assert not torch.equal(chosen, TINY.objective(seed=8).hide(batch, step=3)[1])
    # Other tokens in the batch change nothing of what is chosen.
    assert torch.equal(chosen, objective.hide(windows(8, seed=1), step=3)[1])


def test_masks_do_not_depend_on_the_model():
    seen = []

    class Spy(MaskedTokens):
        def hide(self, batch, step):
            found = super().hide(batch, step)
            seen[-1].append((step, batch.clone(), *found))
            return found

    for model, extra in ((build_pair(TINY, 0).encoder, False), (build_pair(TINY, 9).encoder, True)):
        seen.append([])
        objective = Spy(1, 300, seed=2)

        def look(step, live, loss, extra=extra, objective=objective):
            torch.rand(3)
            if extra:  # asking more often changes nothing either
                objective.hide(windows(2), step)
                seen[-1].pop()

        train_model(model, TINY, windows(), objective, seed=2, checkpoints=(0, 2), on_checkpoint=look)
    assert len(seen[0]) == len(seen[1]) == 7
    for one, other in zip(*seen, strict=True):
        assert one[0] == other[0]
        assert all(torch.equal(a, b) for a, b in zip(one[1:], other[1:], strict=True))


def test_masking_keeps_its_rates_and_spares_special_tokens():
    batch = torch.full((400, 50), 9)
    batch[:, 0] = 0
    fed, chosen = MaskedTokens(1, 300, rate=0.3).hide(batch, step=0)
    assert not chosen[:, 0].any()
    n = int(chosen.sum())
    assert n / (400 * 49) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 19600))
    now = fed[chosen]
    hidden, kept = int((now == 1).sum()), int((now == 9).sum())
    assert hidden / n == pytest.approx(0.8, abs=0.02)
    assert kept / n == pytest.approx(0.1, abs=0.02)
    assert (now >= 1).all()
    assert (now < 300).all()
    assert torch.equal(fed[~chosen], batch[~chosen])
    alone, all_hidden = MaskedTokens(1, 300, rate=1e-9, replacement="mask").hide(batch, step=0)
    assert (all_hidden.sum(1) == 1).all()
    assert (alone[all_hidden] == 1).all()
    with pytest.raises(TlAnisoError, match="nothing but special"):
        MaskedTokens(1, 300).hide(torch.zeros(2, 5, dtype=torch.int64), step=0)
    for wrong in ({"rate": 0.0}, {"rate": 1.0}, {"replacement": "all"}):
        with pytest.raises(TlAnisoError, match=next(iter(wrong))):
            MaskedTokens(1, 300, **wrong)


def test_the_masked_loss_is_hugging_faces():
    model = build_pair(TINY).encoder
    objective = TINY.objective(seed=1)
    batch = windows(6)
    fed, chosen = objective.hide(batch, step=2)
    expected = model(input_ids=fed, labels=batch.masked_fill(~chosen, -100)).loss
    assert objective(model, batch, 2).item() == pytest.approx(expected.item(), abs=1e-6)
    assert next_token_loss(build_pair(TINY).decoder, batch, 2).item() > 0


def test_unigram_entropy_by_hand():
    losses = unigram_losses(torch.tensor([[0, 0, 0, 1]]), 3)  # counts + 1: 4, 2, 1 of 7
    assert unigram_entropy(torch.tensor([0, 1, 1, 2]), losses) == pytest.approx(
        (math.log(7 / 4) + 2 * math.log(7 / 2) + math.log(7)) / 4
    )


def test_held_out_losses_are_the_models_own():
    held, logs = windows(5), unigram_losses(windows(), 300)
    pair = build_pair(TINY)
    causal = HeldOut.causal(held, logs)
    assert causal.loss(pair.decoder) == pytest.approx(pair.decoder(held, labels=held).loss.item(), abs=1e-5)
    assert causal.unigram == pytest.approx(unigram_entropy(held[:, 1:].flatten(), logs))
    objective = TINY.objective()
    masked = HeldOut.masked(held, logs, objective)
    assert masked.loss(pair.encoder) == pytest.approx(objective(pair.encoder, held, -1).item(), abs=1e-5)


def test_progress_is_matched_in_closed_form():
    # Losses that fall as straight lines: the decoder five times as fast, so equal progress is at a fifth of the steps.
    steps = range(0, 1001, 50)
    decoder = {step: progress_of(6.0 - 0.003 * step, 6.0) for step in steps if step <= 600}
    encoder = {step: progress_of(5.5 - 0.00055 * step, 5.5) for step in steps}
    found = match_progress(decoder, encoder, tolerance=1e-9)
    assert [(m.decoder, m.encoder) for m in found] == [(50 * i, 250 * i) for i in range(1, 5)]
    assert all(m.gap == pytest.approx(0) for m in found)
    assert [(m.decoder, m.encoder) for m in match_steps(decoder, encoder)] == [(s, s) for s in decoder]


def test_progress_below_zero_and_beyond_reach_is_not_matched():
    falling = {0: -0.2, 10: -0.05, 20: 0.04, 30: 0.02, 40: 0.4}
    assert [(m.decoder, m.encoder) for m in match_progress(falling, {0: -0.2, 10: -0.05, 90: 0.041})] == [(20, 90)]
    assert match_progress(falling, {0: -0.2, 10: -0.1}) == ()
    assert match_progress({0: -0.1}, {5: 0.1}) == ()
    assert match_progress(falling, {90: 0.2}) == ()
    # One checkpoint of the decoder serves once, for the nearest.
    assert [m.encoder for m in match_progress({5: 0.1}, {1: 0.095, 2: 0.1, 3: 0.105})] == [2]
    with pytest.raises(TlAnisoError, match="tolerance"):
        match_progress({}, {}, tolerance=0.0)


def test_means_of_contrasts_over_sites():
    rng = np.random.default_rng(0)

    def energy():
        total = rng.uniform(5, 10, 8)
        return total * rng.uniform(0.2, 0.6, 8), total

    terms = [tuple(energy() for _ in range(4)) for _ in range(3)]
    found = mean_excess_contrast(terms)
    assert found.value == pytest.approx(np.mean([excess_contrast(*term).value for term in terms]))
    # Of differences of shares too: the value is their plain mean, whatever scale its interval is made on.
    pairs = [term[:2] for term in terms]
    assert mean_share_difference(pairs).value == pytest.approx(
        np.mean([share_difference(*one, *other).value for one, other in pairs])
    )
    # The same site three times is one site: no narrower for being counted again.
    one, thrice = mean_excess_contrast(terms[:1]), mean_excess_contrast(terms[:1] * 3)
    assert (thrice.value, thrice.low, thrice.high) == pytest.approx((one.value, one.low, one.high))
    assert one.low == pytest.approx(excess_contrast(*terms[0]).low)
    with pytest.raises(TlAnisoError, match="no terms"):
        mean_excess_contrast([])


def test_verdicts():
    assert judge_window([(0.1, 0.2), (0.01, 3.0)]) == "holds"
    assert judge_window([(-0.3, -0.2), (-2.0, -0.01)]) == "does not hold"
    assert judge_window([(0.1, 0.2), (-0.2, -0.1)]) == "unclear"
    assert judge_window([(-0.1, 0.2), (0.1, 0.2)]) == "unclear"
    assert judge_window([(0.1, math.nan)]) == judge_window([]) == "not known"
    assert combined(["holds", "unclear", "does not hold"]) == "does not hold"
    assert combined(["holds", "unclear"]) == "unclear"
    assert combined([]) == "not known"


def test_a_tokenizer_with_a_mask_token():
    texts = [f"sentence {i} says that {i * 7 % 11} is a number" for i in range(80)]
    tokenizer = train_tokenizer(texts, 290, mask=True)
    assert len(tokenizer) == 290
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id) == (0, TINY.mask_id)
    assert train_tokenizer(texts, 290).mask_token is None
    with pytest.raises(TlAnisoError, match="258"):
        train_tokenizer(texts, 257, mask=True)


def test_notes_name_seed_model_and_steps_where_few_documents_decide():
    rows = [
        (0, 16.0, 16.0, 5.0, 6.0),
        (1, 32.0, 32.0, 1.4, 6.0),
        (1, 48.0, 96.0, 2.9, 3.0),
        (1, math.nan, math.nan, 1, 1),
    ]
    names = ["seed", "decoder_step", "encoder_step", "decoder_shards", "encoder_shards"]
    frame = pd.DataFrame(rows, columns=names).assign(group="readers", measure="energy_share")
    (note,) = few_shards_notes(frame)
    assert note.startswith("seed 1, decoder: a few documents carry most")
    assert "at step 32 (1.4), 48 (2.9);" in note
