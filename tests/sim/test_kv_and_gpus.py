"""Block hashes and pools; GPU speeds and fleets."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.sim import engines, gpus
from agentsched.sim.kv import BlockPool, chain_blocks


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 16))
def test_chained_hashes_agree_exactly_on_the_common_prefix(a: bytes, b: bytes, width: int) -> None:
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    first, second = chain_blocks(a, width=width), chain_blocks(b, width=width)
    same = [x == y for x, y in zip(first, second, strict=False)]
    assert same == [index < common // width for index in range(len(same))]
    assert len(first) == len(a) // width


def test_a_seed_separates_and_a_tail_can_be_hashed_from_where_the_head_ends() -> None:
    data = bytes(range(64))
    whole = chain_blocks(data, width=16)
    assert set(whole).isdisjoint(chain_blocks(data, width=16, seed=1))
    assert whole[2:] == chain_blocks(data[32:], width=16, seed=whole[1])


def test_a_pool_finds_freed_blocks_until_their_room_is_needed() -> None:
    pool = BlockPool(4)
    pool.reserve(3)
    pool.publish([1, 2, 3], 0)
    pool.release([1, 2, 3], 0)
    assert (pool.used, pool.free, pool.idle) == (0, 4, 3)
    assert pool.find([1, 2, 9, 3]) == (2, 0)
    pool.reserve(2)
    assert pool.find([1, 2, 3]) == (2, 0)  # the tail went first
    pool.hold([1, 2])
    assert (pool.used, pool.free, pool.find([1, 2])) == (4, 0, (2, 2))


def scanned(pool: BlockPool, blocks: list[int]) -> tuple[int, int]:
    """Find block by block, as long as they are known."""
    found = shared = 0
    for block in blocks:
        if block in pool._held:
            shared += 1
        elif block not in pool._idle:
            break
        found += 1
    return found, shared


@given(st.randoms(use_true_random=False))
def test_bisection_finds_what_a_scan_finds(dice: Random) -> None:
    """Sequences over a tree of prefixes come and go in any order, in a pool that forgets all the time."""
    pool, live = BlockPool(24), list[list[int]]()
    for _ in range(60):
        path = "".join(dice.choice("ab") for _ in range(dice.randint(1, 8)))
        blocks = [int(f"1{path[: n + 1]}".translate({97: "0", 98: "1"}), 2) for n in range(len(path))]
        found, shared = pool.find(blocks)
        assert (found, shared) == scanned(pool, blocks)
        if live and dice.random() < 0.5:
            pool.release(live.pop(dice.randrange(len(live))), 0)
        elif len(blocks) - shared <= pool.free:
            pool.hold(blocks[:found])
            pool.reserve(len(blocks) - found)
            published = dice.randint(found, len(blocks))
            pool.publish(blocks[:published], found)
            live.append(blocks[:published])
            pool.release([], len(blocks) - published, blocks[published:])
        held = {block for chain in live for block in chain}
        assert pool._held.keys() == held
        assert (pool.used, pool.free) == (len(held), 24 - len(held))


@pytest.mark.parametrize("gpu", ["A100", "H100", "A6000", "L40S"])
def test_fitted_speeds_come_within_an_eighth_of_every_stage(gpu: str) -> None:
    assert max(map(abs, gpus.fit(gpu).residuals)) < 0.13


@pytest.mark.parametrize("gpu", ["A40", "A800"])
def test_two_cards_have_one_stage_that_no_line_explains(gpu: str) -> None:
    residuals = sorted(gpus.fit(gpu).residuals, key=abs)
    assert abs(residuals[-2]) < 0.25
    assert -0.45 < residuals[-1] < -0.3


def test_faster_cards_are_faster_and_the_ratio_depends_on_the_call() -> None:
    speed = {gpu: gpus.fit(gpu).speed for gpu in gpus.STAGE_TIMES}
    assert speed["H100"].step_s < speed["A100"].step_s < speed["A6000"].step_s < speed["L40S"].step_s
    assert speed["L40S"].prefill_s < speed["A6000"].prefill_s


def test_card_memory_leaves_room_for_a_known_number_of_tokens() -> None:
    assert {gpu: gpus.kv_tokens(gpu) for gpu in ("A100", "L40S", "H100")} == {
        "A100": 36_621,
        "L40S": 129_394,
        "H100": 500_488,
    }


def test_hetero1_is_two_a100_an_a6000_and_an_l40s() -> None:
    fleet = gpus.fleet("hetero1")
    assert list(fleet) == ["a100-1", "a100-2", "a6000", "l40s"]
    assert fleet["a100-1"] == fleet["a100-2"]
    assert fleet["a100-1"].kv_blocks == 36_621 // 16


def test_the_report_has_a_line_per_card() -> None:
    lines = gpus.report().splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(gpus.STAGE_TIMES)


def test_all_fleets() -> None:
    sizes = {name: len(gpus.fleet(name)) for name in gpus.FLEETS}
    assert sizes == {"hetero1": 4, "hetero2": 4, "homo": 4, "pair": 2, "tight": 4, "fleet64": 64}
    assert list(gpus.fleet("hetero2")) == ["a100-1", "a100-2", "a6000-1", "a6000-2"]
    assert list(gpus.fleet("pair")) == ["h100", "a6000"]


def test_in_a_tight_fleet_memory_is_short_long_before_seats() -> None:
    for spec in gpus.fleet("tight").values():
        prompt, output = gpus.STAGES["generate_candidate"]
        together = spec.kv_blocks * spec.block_tokens // (prompt + output)
        assert together == 2 < spec.max_num_seqs


@pytest.mark.parametrize("engine", engines.STEPS_MS)
def test_engines_are_as_fast_as_measured(engine: str) -> None:
    assert max(map(abs, engines.fit(engine).residuals)) < 0.15


def test_one_engine_is_nearly_flat_in_the_batch_and_the_other_about_proportional() -> None:
    grown = {
        name: engines.fit(name).speed.step(16) / engines.fit(name).speed.step(1) for name in engines.STEPS_MS
    }
    assert all(grown[name] < 2.1 for name in grown if name.startswith("vllm"))
    assert all(grown[name] > 8 for name in grown if name.startswith("llama.cpp"))


def test_the_engines_report_has_a_line_each() -> None:
    assert [line[:17].strip() for line in engines.report().splitlines()[1:]] == list(engines.STEPS_MS)
    assert engines.backend("vllm tiny").max_num_seqs == 16
