"""A Llama of a million random weights in Hugging Face's format: `python -m tests.real.tiny_hf FOLDER`.

It runs in the environment of the engine that will load it, so it imports nothing of ours.
"""

import json
import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.real.vocabulary import LEARNED, MARKS

CONTEXT = 4_096
END = "<|im_end|>"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Learn one from the texts that every Python has."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    texts = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:100]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [END, "<|im_start|>"]
    trainer = trainers.BpeTrainer(vocab_size=LEARNED, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator((text.read_text(errors="replace") for text in texts), trainer)
    made.add_tokens([*MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token=END, chat_template=TEMPLATE
    )


def write(folder: Path) -> None:
    """Write model and tokenizer."""
    words = tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=LEARNED + len(MARKS),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    folder.mkdir(parents=True, exist_ok=True)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words.save_pretrained(folder)
    end = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(end))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
