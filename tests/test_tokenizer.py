"""Text to ids and back, and conversations to prompts, for tokenizers from folders and from GGUF metadata."""

import datetime
import json
from inspect import signature

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.errors import UserError
from harness.models import smollm2
from harness.models.gguf_tokenizer import build_tokenizer
from harness.models.huggingface import read_folder
from harness.models.tokenizer import ChatTokenizer
from harness.models.weights import load_checkpoint

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEXTS = ["it's 12345 o'clock, WE'LL see  the   cat\n\n and\tthe 99 hats!!\r\n",
         "ni\u0308na can't fly; x1=22+333", "漢字 ½²Ⅷ 😀👩‍👩‍👧 the the"]


@pytest.fixture(scope="module")
def smollm():
    return load_checkpoint(smollm2.fetch()).tokenizer


def trained() -> Tokenizer:
    """A byte-level tokenizer with merges over letters, digits and spaces, so that wrong word borders show."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    return tokenizer


def metadata(kind: str, **changes) -> dict:
    """What a GGUF file says of `trained()`, with a user-defined token at the end."""
    tokenizer = trained()
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get) + ["<think>"]
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    types = [3 if token in SPECIAL else 4 if token == "<think>" else 1 for token in tokens]
    fields = {"model": "gpt2", "pre": kind, "tokens": tokens, "merges": merges, "token_type": types, "eos_token_id": 1}
    return {f"tokenizer.ggml.{key}": value for key, value in (fields | changes).items()}


def reference(pre: str) -> Tokenizer:
    """The same vocabulary cut into words by Transformers' own code."""
    import transformers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    fields = metadata(pre)
    vocab = {token: index for index, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    qwen = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges, unk_token=None, pad_token=None).backend_tokenizer
    if pre == "llama-bpe":
        pattern = signature(TikTokenConverter.__init__).parameters["pattern"].default
        qwen.normalizer = None
        qwen.model = models.BPE(vocab=vocab, merges=merges, ignore_merges=True)
        qwen.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    return qwen


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_words_are_cut_as_transformers_cuts_them(pre):
    ours, theirs = build_tokenizer(metadata(pre), (1,), "m.gguf"), reference(pre)

    @settings(max_examples=150, deadline=None)
    @given(st.one_of(st.text(), st.text(alphabet=sorted(set("".join(TEXTS))))))
    def same(text):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids

    same()
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert len(ours.encode("12345")) >= (5 if pre == "qwen2" else 2)


# The vocabulary lacks the bytes of six control characters and of planes in which Unicode has assigned nothing.
WRITABLE = st.text(st.one_of(st.sampled_from("\n\t\r "), st.characters(exclude_categories=["Cc", "Cs", "Cn"])))


def test_smollm_text_comes_back(smollm):
    @settings(max_examples=200, deadline=None)
    @given(WRITABLE)
    def comes_back(text):
        assert smollm.decode(smollm.encode(text)) == text

    comes_back()


def test_smollm_ids(smollm):
    """Ids as Transformers gives them with the pre-tokenizer of the published tokenizer.json (digits one by one)."""
    prompt = smollm.render([{"role": "user", "content": "Hi 123"}])
    assert prompt[:4] == [1, 9690, 198, 2683]
    assert prompt[-14:] == [1, 4093, 198, 26843, 216, 33, 34, 35, 2, 198, 1, 520, 9531, 198]
    assert smollm.end_tokens == (2,)
    half = smollm.encode("½")  # a number too: it is cut off from the space before it
    assert smollm.encode("it's 2024 ½") == smollm.encode("it's ") + [34, 32, 34, 36] + smollm.encode(" ") + half


def test_smollm_template_is_the_file_s(smollm):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert smollm.render_text(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_special_and_user_defined_tokens():
    tokenizer = build_tokenizer(metadata("qwen2"), (1,), "m.gguf")
    think = tokenizer.vocab_size - 1
    ids = tokenizer.encode("<|im_start|>the<think>cat<|im_end|>")
    assert ids[0] == 0 and ids[-1] == 1 and think in ids
    assert tokenizer.decode(ids) == "the<think>cat"  # control tokens are silent, user-defined ones are text


@pytest.mark.parametrize("change, words", [
    ({"pre": "tekken"}, "tekken"),
    ({"model": "llama"}, "llama/qwen2"),
    ({"merges": ["zz qq"]}, "fetch the file again"),
    ({"token_type": [1]}, "1 types"),
    ({"eos_token_id": 10**6}, "fetch the file again"),
])
def test_gguf_tokenizers_that_are_refused(change, words):
    with pytest.raises(UserError, match=words) as caught:
        build_tokenizer(metadata("qwen2", **change), (1,), "m.gguf")
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def chat(template, **special):
    return ChatTokenizer(trained(), template, special, (1,), "the model")


def test_template_helpers():
    user = [{"role": "user", "content": "é"}]
    assert chat("{{ bos_token }}{{ messages | tojson }}", bos_token="<s>").render_text(user) == \
        '<s>[{"role": "user", "content": "é"}]'
    assert chat("{% if enable_thinking is false %}no{% endif %} {{ tools is none }}").render_text(user) == "no True"
    assert chat("{% for m in messages %}{% break %}{% endfor %}x").render_text(user) == "x"


def test_template_does_not_depend_on_the_day():
    template = chat("{{ strftime_now('%d %b %Y') }}")
    assert template.render_text([]) == "26 Jul 2024" != datetime.date.today().strftime("%d %b %Y")


@pytest.mark.parametrize("template, words", [
    ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
    ("{% if %}", "cannot be read"),
    (None, "no chat template"),
    ("{{ messages.__class__.__mro__ }}", "refuses"),
    ("{{ messages[0].content + 1 }}", "refuses"),
])
def test_template_errors_are_one_line(template, words):
    with pytest.raises(UserError, match=words) as caught:
        chat(template).render([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_folder_with_template_in_tokenizer_config(tmp_path):
    import torch
    import transformers

    config = transformers.LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                                      vocab_size=600, eos_token_id=1)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    backend = trained()
    backend.enable_truncation(2)  # a setting of the file that must not cut prompts
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    default = {"name": "default", "template": "{{ eos_token }}the cat and the hat"}
    named = [{"name": "tool_use", "template": "tools"}, default]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": named, "eos_token": {"content": "<|im_end|>"}})
    )
    _, _, tokenizer, _ = read_folder(tmp_path)
    ids = tokenizer.render([])
    assert ids[0] == 1 and tokenizer.decode(ids) == "the cat and the hat"


def test_vocabulary_larger_than_the_model(tmp_path):
    import transformers

    config = transformers.LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                                      vocab_size=100, eos_token_id=1)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    trained().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="only 100"):
        load_checkpoint(tmp_path)
