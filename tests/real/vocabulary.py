"""The token ids of the model that vLLM is given."""

LEARNED = 2_048
"""Tokens that are learned; those of `MARKS` follow in that order."""

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens of their own that stay in the text, as in the models that reason and call tools."""

THINK_END = LEARNED + MARKS.index("</think>")
