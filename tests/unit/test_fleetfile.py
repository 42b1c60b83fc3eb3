"""Fleet files: cards, engines and own speeds become backends, and mistakes name entry and key."""

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.errors import UsageError
from agentsched.sim import engines, gpus
from agentsched.sim.fleetfile import KEYS, Fleet, read_fleet


def read(text: str) -> Fleet:
    return read_fleet(text, "fleet.toml")


def test_cards_engines_and_own_speeds() -> None:
    fleet = read("""
        [[backend]]
        name = "big"
        gpu = "H100"
        count = 2
        max_concurrency = 32
        models = ["qwen3"]

        [[backend]]
        name = "cpu"
        engine = "vllm small"
        max_model_len = 1000

        [[backend]]
        name = "own"
        prefill_s_per_token = 0
        step_s = 0.03
        batch_slope = 0.1
        entry_s = 0.002
        kv_tokens = 64_000
        max_num_seqs = 64
    """)
    assert [backend.name for backend in fleet.backends] == ["big-1", "big-2", "cpu", "own"]
    assert [backend.max_concurrency for backend in fleet.backends] == [32, 32, None, None]
    assert [backend.models for backend in fleet.backends] == [{"qwen3": "qwen3"}] * 2 + [None] * 2
    big, also_big, cpu, own = fleet.specs
    assert big == also_big == gpus.backend("H100")
    assert (cpu.speed, cpu.max_num_seqs, cpu.max_model_len) == (engines.fit("vllm small").speed, 16, 1000)
    assert (own.speed.prefill_s, own.speed.step_s, own.speed.batch_slope, own.speed.entry_s) == (
        0,
        0.03,
        0.1,
        0.002,
    )
    assert (own.kv_blocks * own.block_tokens, own.max_num_seqs) == (64_000, 64)


def test_who_serves_a_model() -> None:
    fleet = read("""
        [[backend]]
        name = "a"
        gpu = "A100"
        count = 2
        models = ["x"]
        [[backend]]
        name = "b"
        gpu = "H100"
        models = ["x", "y"]
        [[backend]]
        name = "c"
        gpu = "A40"
    """)
    a, _, b, c = fleet.specs
    assert fleet.serving("x") == [a, b, c]
    assert fleet.serving("y") == [b, c]
    assert fleet.serving("z") == [c]
    assert fleet.serving(None) == [a, b, c]


def test_each_call_gives_engines_that_served_nothing() -> None:
    fleet = read('fleet = "hetero1"')
    first, second = fleet.fresh(), fleet.fresh()
    assert [backend for backend, _ in first] == [backend for backend, _ in second] == list(fleet.backends)
    assert not {id(server) for _, server in first} & {id(server) for _, server in second}


@pytest.mark.parametrize("name", gpus.FLEETS)
def test_named_fleets(name: str) -> None:
    fleet = read(f'fleet = "{name}"')
    assert [backend.name for backend in fleet.backends] == list(gpus.fleet(name))
    assert list(fleet.specs) == list(gpus.fleet(name).values())


def test_a_named_fleet_may_have_limits() -> None:
    fleet = read('fleet = "pair"\nmax_concurrency = { h100 = 8 }')
    assert {backend.name: backend.max_concurrency for backend in fleet.backends} == {"h100": 8, "a6000": None}


ONE = '[[backend]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'fleet.toml: it must hold [[backend]] entries, or fleet = "..."'),
        ("backend = []", "it must hold [[backend]] entries"),
        ("backend = 7", "it must hold [[backend]] entries"),
        ("backend = [7]", "backend 1: it is 7; it must be a [[backend]] table"),
        ("x = ", "fleet.toml is not TOML: "),
        ("a" * 99, "fleet.toml is not TOML: "),
        (
            "x = 1" + "0" * 5_000,
            "fleet.toml is not TOML that can be read: a number in it has too many digits",
        ),
        (
            ".".join("a" * 20_000) + " = 1",
            "line 1 has more than 40 dots; a list may go on over several lines",
        ),
        (ONE + f"x = {{ {'.'.join('a' * 90)} = 1 }}", "line 3 has more than 40 dots"),
        ("#" * 600_000, "the file is longer than 500000 characters"),
        ("[[backends]]\n", "no key is called 'backends' here; there are backend"),
        ('fleet = "mine"', "fleet is 'mine'; it must be one of hetero1, "),
        ("fleet = 7", "fleet is 7; it must be one of"),
        ('fleet = "pair"\nbackend = []', "no key is called 'backend' here; there are fleet, max_concurrency"),
        (
            'fleet = "pair"\nmax_concurrency = 7',
            "max_concurrency is 7; it must be a table by the backends' names",
        ),
        (
            'fleet = "pair"\nmax_concurrency = {b = 1}',
            "max_concurrency of 'b': no such backend in pair; there are h",
        ),
        (
            'fleet = "pair"\nmax_concurrency = {h100 = 0}',
            "max_concurrency is 0; it must be a whole number from 1",
        ),
        ('[[backend]]\ngpu = "A100"', "backend 1: name is missing"),
        (ONE, "backend 1: it is not said how fast it is; give one of gpu, engine and step_s"),
        (
            ONE + 'gpu = "A100"\nstep_s = 1',
            "backend 1: gpu and step_s are given; give one of gpu, engine and step_s",
        ),
        (ONE + 'gpu = "B9000"', "backend 1: gpu is 'B9000'; it must be one of A100, H100, "),
        (ONE + "gpu = [1]", "backend 1: gpu is [1]; it must be one of A100"),
        (ONE + 'engine = "vllm"', "backend 1: engine is 'vllm'; it must be one of vllm tiny, "),
        (
            ONE + 'gpu = "A100"\nentry_s = 1',
            "backend 1: entry_s is given with gpu, which has a speed of its own",
        ),
        (ONE + "step_s = 0.1", "backend 1: prefill_s_per_token is missing beside step_s"),
        (ONE + "step_s = 0", "backend 1: step_s is 0; it must be a number of seconds from 1e-09 to 1e+06"),
        (ONE + "step_s = nan", "backend 1: step_s is nan"),
        (ONE + "step_s = inf", "backend 1: step_s is inf"),
        (ONE + "step_s = true", "backend 1: step_s is True"),
        (ONE + "step_s = 1979-05-27", "backend 1: step_s is datetime.date(1979, 5, 27)"),
        (ONE + "prefill_s_per_token = -1", "backend 1: prefill_s_per_token is -1"),
        (
            ONE + 'gpu = "A100"\nkv_tokens = 15',
            "backend 1: kv_tokens is 15; it must be a whole number from 16 to",
        ),
        (ONE + 'gpu = "A100"\nkv_tokens = 1e5', "backend 1: kv_tokens is 100000.0"),
        (
            ONE + 'gpu = "A100"\nmax_num_seqs = 4096',
            "backend 1: max_num_seqs is 4096; it must be a whole number from 1",
        ),
        (ONE + 'gpu = "A100"\ncount = 0', "backend 1: count is 0"),
        (ONE + 'gpu = "A100"\nmodels = "m"', "backend 1: models is 'm'; it must be a list of names"),
        (ONE + 'gpu = "A100"\nmodels = []', "backend 1: Backend: models is empty"),
        (ONE + 'gpu = "A100"\nspeed = 9', "backend 1: no key is called 'speed' here; there are name, gpu, "),
        ('[[backend]]\nname = ""\ngpu = "A100"', "backend 1: Backend: name must be a non-empty string"),
        ('[[backend]]\nname = 7\ngpu = "A100"', "backend 1: name is 7; it must be text"),
        (2 * (ONE + 'gpu = "A100"\n'), "fleet.toml: two backends have the name 'a'"),
        (ONE + 'gpu = "A100"\n[[backend]]\nname = "b"\ngpu = 1', "backend 2: gpu is 1"),
        (
            "".join(f'[[backend]]\nname = "{n}"\ngpu = "A100"\ncount = 9999\n' for n in "ab"),
            "more than 10000 backends",
        ),
    ],
)
def test_a_bad_fleet_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    said = str(caught.value)
    assert said.startswith("fleet.toml")
    assert message in said
    assert len(said) < 500
    assert "\n" not in said


def test_the_longest_file_is_read_in_seconds() -> None:
    """What reads TOML takes a time that grows with the parts of its keys."""
    key = ".".join("a" * 20)
    text = f"[{key}]\n" + "".join(f"b{number}.{key} = 1\n" for number in range(10_000))
    began = process_time()
    with pytest.raises(UsageError, match="no key is called 'a' here"):
        read(text[:499_000].rpartition("\n")[0])
    assert process_time() - began < 10


values = st.sampled_from(
    ['"a"', '"A100"', '"vllm tiny"', "1", "-1", "0.5", "nan", "true", "[]", '["m"]', "{}"]
)
entries = st.dictionaries(st.sampled_from(list(KEYS)), values, max_size=6).map(
    lambda keys: "[[backend]]\n" + "".join(f"{key} = {item}\n" for key, item in keys.items())
)


@given(st.text() | st.lists(entries, min_size=1, max_size=3).map("".join))
@settings(max_examples=150)
def test_whatever_stands_there_it_is_a_fleet_or_a_usage_error(text: str) -> None:
    try:
        fleet = read(text)
    except UsageError as error:
        assert str(error).startswith("fleet.toml")
    else:
        assert len(fleet.fresh()) == len(fleet.backends) > 0
