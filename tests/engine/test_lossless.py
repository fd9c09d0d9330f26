"""Output of every method = plain AR: blocks, batch sizes, lengths, chunked prefill, batching."""

import json
import os
from pathlib import Path

import pytest
from harness import (
    Outcomes,
    assert_lossless,
    chat_ids,
    check_identities,
    demo_texts,
    generate,
    logits_after,
    planner_of,
)

BLOCKS = (1, 2, 3, 8, 16, 32)


def test_ar_is_the_argmax_of_plain_prefills(tiny, pinned):
    """The reference itself: each token is the argmax of one causal pass over all before it."""
    prompts, ar = pinned
    for prompt, done in list(zip(prompts, ar, strict=True))[:3]:
        text = list(prompt)
        for token in done.tokens[:12].tolist():
            assert token == int(logits_after(tiny, text).argmax())
            text.append(token)


def test_ar_of_a_random_model_is_the_argmax_too(random_tiny, random_prompts):
    done = generate(random_tiny, planner_of("ar"), random_prompts, 10)
    for prompt, one in zip(random_prompts, done, strict=True):
        text = list(prompt)
        for token in one.tokens.tolist():
            assert token == int(logits_after(random_tiny, text).argmax())
            text.append(token)


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("block", BLOCKS)
def test_linear_equals_ar_on_the_pinned_prompts(tiny, pinned, block, batch, chunk):
    prompts, ar = pinned
    count = 2 if batch == 1 else 8
    got = generate(
        tiny,
        planner_of("linear", block),
        prompts[:count],
        32,
        max_requests=batch,
        prefill_chunk=chunk,
    )
    assert_lossless(tiny, prompts[:count], ar, got)
    for done in got:
        if block > 1:
            check_identities(done)
        else:
            assert done.forwards == done.rounds


@pytest.mark.parametrize("block", BLOCKS)
def test_linear_equals_ar_on_a_random_model(random_tiny, random_prompts, block):
    """Hardly a draft passes: every round is a correction."""
    ar = generate(random_tiny, planner_of("ar"), random_prompts, 20, max_requests=3)
    for batch, chunk in ((1, 4), (8, 0)):
        got = generate(
            random_tiny,
            planner_of("linear", block),
            random_prompts,
            20,
            max_requests=batch,
            prefill_chunk=chunk,
        )
        assert_lossless(random_tiny, random_prompts, ar, got)


def test_ar_does_not_depend_on_the_batch(tiny, pinned):
    prompts, ar = pinned
    for batch, chunk, size in ((3, 5, 16), (8, 0, 1), (8, 3, 4)):
        got = generate(
            tiny,
            planner_of("ar"),
            prompts,
            32,
            max_requests=batch,
            prefill_chunk=chunk,
            page_size=size,
        )
        assert_lossless(tiny, prompts, ar, got)


def test_prompt_tokens_of_a_step_are_limited(tiny, pinned):
    prompts, ar = pinned
    got = generate(
        tiny,
        planner_of("linear", 8),
        prompts,
        32,
        max_requests=8,
        prefill_chunk=16,
        max_tokens_per_step=20,
    )
    assert_lossless(tiny, prompts, ar, got)


@pytest.mark.parametrize("method", ["ar", "linear", "linear:recipe"])
def test_bucketed_batching_equals_ar(tiny, pinned, method):
    prompts, ar = pinned
    got = generate(
        tiny,
        planner_of(method),
        prompts,
        32,
        batching="bucketed",
        max_requests=3,
        max_admitted=6,
        bucket_wait=2,
    )
    assert_lossless(tiny, prompts, ar, got)


def test_tied_logits_give_the_lowest_id_in_every_method(tmp_path, random_prompts):
    """Every head row doubled: each choice is a tie of two ids, and never the higher one."""
    from checkpoints import published_config, published_tensors, write_checkpoint

    from recguide_core.model.registry import load_model

    config = published_config("3b")
    tensors = published_tensors(config)
    head = tensors["diffusion_head.weight"]
    head[1::2] = head[::2]
    model = load_model(str(write_checkpoint(tmp_path, config, tensors=tensors)), max_positions=512)
    ar = generate(model, planner_of("ar"), random_prompts, 12, max_requests=1)
    mask = config["mask_token_id"]
    for done in ar:
        assert all(t % 2 == 0 or t == mask + 1 for t in done.tokens.tolist())
    for method, block in (("linear", 8), ("overlap", 4), ("tidar", 3)):
        got = generate(model, planner_of(method, block), random_prompts, 12, max_requests=4)
        assert [d.tokens.tolist() for d in got] == [d.tokens.tolist() for d in ar]


def test_block_one_is_ar_in_everything(tiny, pinned):
    prompts, ar = pinned
    got = generate(tiny, planner_of("linear", 1), prompts[:3], 32, max_requests=1)
    for mine, theirs in zip(got, ar, strict=False):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert mine.origins.tolist() == theirs.origins.tolist()
        assert (mine.rounds, mine.forwards) == (theirs.rounds, theirs.forwards)
        assert mine.forwards == len(mine.tokens) - 1


def test_demo_prompts_all(tiny):
    """All sixty, short: AR at one batch size against linear at another."""
    prompts = [chat_ids(tiny, t) for t in demo_texts()]
    ar = generate(tiny, planner_of("ar"), prompts, 12, max_requests=16)
    seen = Outcomes()
    got = generate(tiny, planner_of("linear", 16), prompts, 12, max_requests=8, observer=seen)
    ties = assert_lossless(tiny, prompts, ar, got)
    print(f"near-ties: {ties} of {len(prompts)}")
    assert any(seen.full)


def test_gsm8k(tiny):
    home = os.environ.get("RECGUIDE_DATA_DIR")
    path = Path(home or "") / "gsm8k_test.jsonl"
    if home is None or not path.is_file():
        pytest.skip("needs RECGUIDE_DATA_DIR with gsm8k_test.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()[:8]
    rows = [json.loads(line) for line in lines]
    texts = [row.get("question") or row["prompt"] for row in rows]
    prompts = [chat_ids(tiny, t) for t in texts]
    prompts = [p for p in prompts if len(p) < 300]
    assert len(prompts) >= 5
    ar = generate(tiny, planner_of("ar"), prompts, 24, max_requests=8)
    for block, batch in ((8, 8), (16, 3), (32, 1)):
        got = generate(tiny, planner_of("linear", block), prompts, 24, max_requests=batch)
        ties = assert_lossless(tiny, prompts, ar, got, near_ties=1)
        print(f"B = {block}: {ties} near-ties of {len(prompts)}")
