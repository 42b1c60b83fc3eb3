"""Examples need what their frameworks bring; without those there is nothing to test."""

from importlib.util import find_spec

collect_ignore_glob = (
    [] if find_spec("langgraph") and find_spec("langchain_openai") else ["test_text2sql*.py"]
)
