"""Compiled models as modules of torch, held against transformers: the tokens of ``generate``, its
beams and turns, logits, and the operator below them."""

from __future__ import annotations

import gc

import pytest

WORD = "the extra is not installed: pip install 'meshc[torch]'"
torch = pytest.importorskip("torch", reason=WORD)
transformers = pytest.importorskip("transformers", reason=WORD)

import meshc.torch  # noqa: E402
from meshc.support.diagnostics import MeshcError  # noqa: E402
from meshc.torch.language_model import CACHE  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

SEQ, BATCH, VOCAB, PAD = 64, 2, 97, 96
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": PAD,
}
KINDS = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 16},
}
WIDE = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 192,
}
"""What kernels for prompts take."""
GAP = 0.06
"""By how much the best logit is ahead of the second where tokens are compared; programs of f16 are
off by less than half of it."""


def network(kind, **changes):
    """A tiny random model of transformers, whose weights f16 holds as they are."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **KINDS.get(kind, {}), **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            drawn = torch.randn(weight.shape) * 0.3 + (weight.ndim == 1)
            weight.copy_(drawn.half())
    return model


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    """A model of transformers and the same compiled."""
    model = network(request.param)
    return model, compiled(model)


@pytest.fixture(scope="module")
def llama():
    """One that all other tests share."""
    model = network("llama")
    return model, compiled(model)


def compiled(model, **flags):
    return meshc.torch.compile(model, backend="cuda-cpu", seq=SEQ, batch=BATCH, **flags)


def prompts(*lengths, seed=7):
    """Random prompts of these lengths, padded in front, and their mask."""
    dice, most = torch.Generator().manual_seed(seed), max(lengths)
    rows = torch.randint(3, PAD, (len(lengths), most), generator=dice)
    mask = torch.stack([(torch.arange(most) >= most - n).long() for n in lengths])
    return {"input_ids": torch.where(mask > 0, rows, PAD), "attention_mask": mask}


def greedy(model, given, count=8, **more):
    found = model.generate(
        **given, max_new_tokens=count, min_new_tokens=count, do_sample=False, **more
    )
    return found[:, given["input_ids"].shape[1] :]


def clear_prompts(model, *lengths):
    """The first prompts behind which no token is chosen by a difference that rounding may turn,
    and the tokens of transformers."""
    for seed in range(50):
        given = prompts(*lengths, seed=seed)
        wanted = greedy(model, given)
        if is_clear(model, given, wanted):
            return given, wanted
    raise AssertionError("no tokens are clear")


def is_clear(model, given, tokens):
    ids = torch.cat([given["input_ids"], tokens], 1)
    mask = torch.cat([given["attention_mask"], torch.ones_like(tokens)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    logits[:, :, 2] = -torch.inf  # not before the least number of tokens
    best = logits[:, given["input_ids"].shape[1] - 1 : -1].topk(2).values
    return bool((best[..., 0] - best[..., 1]).min() > GAP)


@pytest.mark.parametrize("lengths", [(3,), (21,), (5, 5), (19, 6), (1, 33)])
def test_generate_gives_the_tokens_of_transformers(pair, lengths):
    """Prompts of one length and padded ones, read token by token and in chunks."""
    model, program = pair
    given, wanted = clear_prompts(model, *lengths)
    assert greedy(program, given).tolist() == wanted.tolist()


def test_logits_of_all_columns_are_those_of_transformers(pair):
    model, program = pair
    (ids,) = prompts(23)["input_ids"][None]
    with torch.no_grad():
        wanted = model(ids).logits
    found = program(ids).logits
    assert found.dtype == torch.float32 and found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 4e-3 * float(wanted.abs().max())
    assert torch.equal(program(ids, logits_to_keep=1).logits[0, 0].argmax(), found[0, -1].argmax())


@pytest.mark.parametrize("chunk", [None, 16])
def test_a_conversation_goes_on_behind_its_cache(llama, chunk):
    """Turns of odd lengths, one of them in chunks that begin within a page, which tasks read, or
    kernels for prompts."""
    model, program = llama
    if chunk:
        model = network("llama", **WIDE)
        program = compiled(model, chunk=chunk)
    given = prompts(3)
    caches = {model: transformers.DynamicCache(config=model.config), program: program.new_cache()}
    for length in (4, 19, 1):
        found = {each: greedy(each, given, 5, **{CACHE: cache}) for each, cache in caches.items()}
        assert found[program].tolist() == found[model].tolist()
        said = torch.cat([given["input_ids"], found[model]], 1)
        ids = torch.cat([said, prompts(length)["input_ids"]], 1)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_beams_are_reordered_with_their_caches(llama):
    model, program = llama
    how = {"num_beams": 2, "num_return_sequences": 2}
    given = prompts(18)
    assert greedy(program, given, **how).tolist() == greedy(model, given, **how).tolist()


def test_guesses_are_verified_in_columns_that_are_taken_back(llama):
    """Tokens that the prompt suggests: several logits of a forward, and caches that are cropped."""
    model, program = llama
    repeated = prompts(6)["input_ids"].repeat(1, 3)
    given = {"input_ids": repeated, "attention_mask": torch.ones_like(repeated)}
    guessed = greedy(program, given, prompt_lookup_num_tokens=3)
    assert guessed.tolist() == greedy(model, given).tolist()


def test_a_text_without_caches_is_read_again_and_again(llama):
    model, program = llama
    given = prompts(5, 9)
    assert greedy(program, given, 3, use_cache=False).tolist() == greedy(model, given, 3).tolist()


def test_seeds_draw_what_transformers_draws(llama):
    model, program = llama
    drawn = []
    for each in (model, program):
        torch.manual_seed(11)
        drawn.append(each.generate(**prompts(6, 6), max_new_tokens=6, do_sample=True))
    assert drawn[0].tolist() == drawn[1].tolist()


def test_caches_do_not_know_of_each_other(llama):
    """What one text has cached is not what another one reads, however they take turns."""
    _, program = llama
    first, second = prompts(9), prompts(4, 14)
    wanted = [program(**given).logits for given in (first, second)]
    caches = [program.new_cache(), program.new_cache()]
    for given, cache in zip((first, second), caches, strict=True):
        program(given["input_ids"][:, :3], given["attention_mask"][:, :3], cache=cache)
    for given, cache, logits in zip((first, second), caches, wanted, strict=True):
        found = program(given["input_ids"][:, 3:], given["attention_mask"], cache=cache)
        assert torch.equal(found.logits, logits[:, 3:])


def test_a_cache_forgets_columns(llama):
    _, program = llama
    given, cache = prompts(12), program.new_cache()
    program(given["input_ids"], cache=cache)
    cache.crop(-4)
    assert (cache.get_seq_length(), cache.counts.tolist()) == (8, [8])
    again = program(given["input_ids"][:, 8:], cache=cache).logits
    assert torch.equal(again, program(given["input_ids"]).logits[:, 8:])
    cache.reset()
    assert cache.get_seq_length() == 0


def test_a_full_cache_is_read_to_its_last_token(llama):
    model, program = llama
    given = prompts(SEQ - 4)
    wanted = greedy(model, given, 5)
    assert greedy(program, given, 5).tolist() == wanted.tolist()
    with pytest.raises(MeshcError, match=f"keeps {SEQ}"):
        greedy(program, given, 6)


@pytest.mark.parametrize("kept", [1, 3])
def test_the_operator_is_what_torch_asks_of_one(llama, kept):
    _, program = llama
    tokens = torch.tensor([[5, 17, 42], [-1, 9, 8]])
    cache = program.new_cache()
    given = (tokens, torch.tensor([0, 0]), cache.tensors, program.program_key, kept)
    found = torch.library.opcheck(meshc.torch.step, given)
    assert set(found.values()) == {"SUCCESS"} and len(found) == 4


def test_a_compiled_function_holds_the_operator(llama):
    """A loop of greedy steps, in one graph, with what it does to the caches."""
    model, program = llama
    key = program.program_key

    def three(tokens, cached, caches):
        found = []
        for _ in range(3):
            tokens = meshc.torch.step(tokens, cached, caches, key, 1)[:, 0].argmax(-1, keepdim=True)
            cached = cached + 1
            found.append(tokens)
        return torch.cat(found, 1)

    given = prompts(7, 7)
    wanted = greedy(model, given, 4)
    cache = program.new_cache()
    logits = meshc.torch.step(
        given["input_ids"], torch.zeros(2, dtype=torch.long), cache.tensors, key, 1
    )
    first = logits[:, 0].argmax(-1, keepdim=True)
    others = torch.compile(three, fullgraph=True, backend="aot_eager")(
        first, torch.tensor([7, 7]), cache.tensors
    )
    assert torch.cat([first, others], 1).tolist() == wanted.tolist()


REFUSED = {
    "is given a DynamicCache": lambda: {"cache": transformers.DynamicCache()},
    "output_attentions": lambda: {"output_attentions": True},
    "labels": lambda: {"labels": torch.tensor([[1, 2, 3]])},
    "the tokens make it": lambda: {"attention_mask": torch.ones(1, 2)},
    "count the tokens": lambda: {"position_ids": torch.tensor([[1, 2, 3]])},
    "a program of 2": lambda: {"input_ids": torch.ones(3, 3, dtype=torch.long)},
    "no token id below": lambda: {"input_ids": torch.tensor([[5, VOCAB]])},
    "-1 is no token id": lambda: {"input_ids": torch.tensor([[5, -1]])},
    "-7 is no token id": lambda: {"input_ids": torch.tensor([[-7, 5, 8]])},
    "token_type_ids": lambda: {"token_type_ids": torch.zeros(1, 3)},
    "reads input_ids": lambda: {"input_ids": torch.tensor([5])},
    "number of columns": lambda: {"logits_to_keep": torch.tensor([0, 1])},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_program_does_not_compute_is_refused(llama, words):
    _, program = llama
    given = {"input_ids": torch.tensor([[5, 17, 42]])} | REFUSED[words]()
    with pytest.raises(MeshcError, match="run-refused") as refusal:
        program(**given)
    assert words.removeprefix("is given ") in str(refusal.value)


def test_other_caches_are_refused_by_generate(llama):
    _, program = llama
    with pytest.raises(MeshcError, match="keeps its own caches"):
        greedy(program, prompts(3), cache_implementation="static")
    with pytest.raises(MeshcError, match="a DynamicCache"):
        greedy(program, prompts(3), **{CACHE: transformers.DynamicCache()})


def test_a_cache_says_what_it_holds(llama):
    _, program = llama
    cache = program.new_cache()
    program(**prompts(2, 7), cache=cache)
    assert (len(cache), cache.get_max_length(), cache.get_seq_length()) == (2, SEQ, 7)
    assert cache.counts.tolist() == [2, 7] and cache.get_mask_sizes(3) == (10, 0)
    with pytest.raises(MeshcError, match="written by the program"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)
    with pytest.raises(MeshcError, match="4 rows do not fit"):
        cache.batch_repeat_interleave(2)


def test_padding_stays_padding(llama):
    _, program = llama
    given, cache = prompts(2, 5), program.new_cache()
    program(**given, cache=cache)
    ids, mask = torch.tensor([[5], [6]]), torch.ones(2, 6)
    for wrong in (None, mask):
        with pytest.raises(MeshcError, match="padding"):
            program(ids, wrong, cache=cache)
    with pytest.raises(MeshcError, match="2 rows"):
        program(ids[:1], torch.cat([given["attention_mask"], mask[:, :1]], 1)[:1], cache=cache)


def test_a_program_stays_where_it_is(llama):
    _, program = llama
    assert program.to("cpu") is program and program.device == torch.device("cpu")
    for change in (program.half, lambda: program.to("meta")):
        with pytest.raises(MeshcError, match="stays on cpu"):
            change()
    for there_or_back in (program.save_pretrained, type(program).from_pretrained):
        with pytest.raises(MeshcError, match="run-refused"):
            there_or_back("place")


def test_the_operator_refuses_caches_of_others(llama):
    _, program = llama
    tokens, none = torch.tensor([[5]]), torch.tensor([0])
    good = program.new_cache().tensors
    for caches in (good[:1], [each.float() for each in good], [each[:, 1:] for each in good]):
        with pytest.raises(MeshcError, match="run-refused"):
            meshc.torch.step(tokens, none, caches, program.program_key, 1)
    wrong = ((tokens[0], none, 1), (tokens, none[:0], 1), (tokens, none, 2), (tokens - 9, none, 1))
    for changed in (*wrong, (tokens, none - 1, 1), (tokens.float(), none, 1)):
        with pytest.raises(MeshcError, match="run-refused"):
            meshc.torch.step(*changed[:2], good, program.program_key, changed[2])


def test_a_program_that_was_given_up_is_not_found():
    program = compiled(network("llama", num_hidden_layers=1))
    key, caches = program.program_key, program.new_cache().tensors
    del program
    gc.collect()
    with pytest.raises(MeshcError, match="no loaded program"):
        meshc.torch.step(torch.tensor([[5]]), torch.tensor([0]), caches, key, 1)
