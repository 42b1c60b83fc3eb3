"""A language model of random weights in GGUF, made in a second: real enough for an engine to load and run.

Llama architecture, byte-level BPE with a few hundred merges learned from a fixed text, a ChatML template.
"""

import argparse
import collections
import json
import re
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

CONTEXT = 8_192
VOCABULARY = 4_096
MERGES = 400
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 256, 4, 8, 4, 768


def byte_symbols() -> dict[int, str]:
    """Return GPT-2's reversible byte-to-character table."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {b: chr(256 + n) for n, b in enumerate(rest)}


def learn_merges(text: str, symbols: dict[int, str]) -> list[tuple[str, str]]:
    """Return the most frequent neighbours of a text, as byte-pair encoding merges them."""
    found = collections.Counter(re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", text))
    words = {tuple(symbols[b] for b in word.encode()): count for word, count in found.items()}
    merges: list[tuple[str, str]] = []
    while len(merges) < MERGES:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        merged: collections.Counter[tuple[str, ...]] = collections.Counter()
        for word, count in words.items():
            merged[_merge(word, best)] += count
        words = dict(merged)
    return merges


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return tuple(out)


def write(path: Path, seed: int = 0) -> None:
    """Write the model."""
    symbols = byte_symbols()
    text = "".join(module.__doc__ or "" for module in (argparse, json, re, collections, np))
    merges = learn_merges(text, symbols)
    tokens = list(dict.fromkeys([*SPECIAL, *symbols.values(), *(a + b for a, b in merges)]))
    tokens += [f"\u0120w{number}" for number in range(len(tokens), VOCABULARY)]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    plain = len(tokens) - len(SPECIAL)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * plain)
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    _add_weights(writer, len(tokens), seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weights(writer: gguf.GGUFWriter, vocabulary: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    head = HIDDEN // HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (0.02 * dice.standard_normal((rows, columns), dtype=np.float32)).astype(np.float16)

    ones = np.ones(HIDDEN, np.float32)
    writer.add_tensor("token_embd.weight", matrix(vocabulary, HIDDEN))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", matrix(vocabulary, HIDDEN))
    for block in range(LAYERS):
        at = f"blk.{block}."
        writer.add_tensor(at + "attn_norm.weight", ones)
        writer.add_tensor(at + "ffn_norm.weight", ones)
        writer.add_tensor(at + "attn_q.weight", matrix(HEADS * head, HIDDEN))
        writer.add_tensor(at + "attn_k.weight", matrix(KV_HEADS * head, HIDDEN))
        writer.add_tensor(at + "attn_v.weight", matrix(KV_HEADS * head, HIDDEN))
        writer.add_tensor(at + "attn_output.weight", matrix(HIDDEN, HEADS * head))
        writer.add_tensor(at + "ffn_gate.weight", matrix(INNER, HIDDEN))
        writer.add_tensor(at + "ffn_up.weight", matrix(INNER, HIDDEN))
        writer.add_tensor(at + "ffn_down.weight", matrix(HIDDEN, INNER))
