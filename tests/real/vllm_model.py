"""Make a tiny Llama that vLLM can serve, from nothing: `python tests/real/vllm_model.py FOLDER`.

Runs with the packages of vllm.lock. The tokenizer is a byte-level BPE of 2,048 tokens trained on Python's own
help texts, the weights are random: the texts are nonsense, but the same ones each time at temperature 0.
"""

from __future__ import annotations

import sys
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
POSITIONS = 4096
END, START, STOP = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One that knows English words a little, and a ChatML template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet
    )
    bpe.train_from_iterator(topics.values(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=STOP,
        pad_token=END,
        additional_special_tokens=[END, START],
        chat_template=TEMPLATE,
        model_max_length=POSITIONS,
    )


def model(words: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two layers of random weights, the same ones each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    words = tokenizer()
    words.save_pretrained(sys.argv[1])
    model(words).save_pretrained(sys.argv[1])
