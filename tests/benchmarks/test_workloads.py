"""Do the workloads carry what was measured? Expected figures are those of the sources named beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations, islice
from math import log, sqrt
from random import Random
from statistics import correlation, mean, quantiles

import pytest
from benchmarks.policy import data
from benchmarks.policy.draws import Odds, normal_scores
from benchmarks.policy.prompts import BLOCK_TOKENS, LIMIT_TOKENS, USER, Draft
from benchmarks.policy.workloads import WORKLOADS, chess
from benchmarks.policy.workloads.mixed import MIX, TENANTS

from agentsched.sim.plan import Node, Plan, check_plan
from agentsched.sim.prompt import Piece, blocks_of, tokens_of

COUNTS = {"text2sql": 1_000, "research": 150, "swe": 200, "tot": 200}
NAMES = sorted(WORKLOADS)


@cache
def plans(name: str) -> tuple[Plan, ...]:
    return tuple(islice(WORKLOADS[name](Random("test")), COUNTS.get(name, 400)))


@cache
def nodes(name: str, step: str | None = None) -> tuple[Node, ...]:
    return tuple(node for plan in plans(name) for node in plan.nodes if step in (None, node.step))


def per_query(name: str, step: str | None = None) -> list[int]:
    return [sum(step in (None, node.step) for node in plan.nodes) for plan in plans(name)]


def inputs(name: str, step: str | None = None) -> list[int]:
    return [node.input_tokens for node in nodes(name, step)]


def outputs(name: str, step: str | None = None) -> list[int]:
    return [node.output_tokens for node in nodes(name, step)]


def seen_share(name: str) -> float:
    """Return the share of prompt blocks that an earlier prompt of the stream had."""
    seen: set[int] = set()
    hits = count = 0
    for node in nodes(name):
        hits += sum(block in seen for block in node.prompt_blocks)
        count += len(node.prompt_blocks)
        seen.update(node.prompt_blocks)
    return hits / count


def p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20)[-1]


def about(value: float, share: float = 0.1) -> object:
    return pytest.approx(value, rel=share)


# -- all ---------------------------------------------------------------------------------------------------


def test_all_are_there() -> None:
    assert set(WORKLOADS) == set(
        "text2sql rsl_sql rag research react tot swe chat summarisation mixed tenants".split()
    )


@pytest.mark.parametrize("name", NAMES)
def test_plans_can_be_carried_out(name: str) -> None:
    for plan in plans(name):
        check_plan(plan)
        assert plan.workflow == name or name in ("mixed", "tenants")
        assert plan.slo_s is None


@pytest.mark.parametrize("name", NAMES)
def test_calls_fit(name: str) -> None:
    for node in nodes(name):
        assert node.input_tokens + node.output_tokens <= LIMIT_TOKENS
        assert node.output_tokens >= 1
        assert node.max_tokens is None or node.output_tokens <= node.max_tokens


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_their_pieces(name: str) -> None:
    for node in nodes(name)[:500]:
        assert node.pieces[0] is USER
        assert tokens_of(node.pieces) == node.input_tokens - 2
        assert node.prompt_blocks == blocks_of(node.pieces, BLOCK_TOKENS)
        assert not node.output_blocks


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_plans(name: str) -> None:
    again = list(islice(WORKLOADS[name](Random("test")), 20))
    other = list(islice(WORKLOADS[name](Random("another")), 20))
    assert again == list(plans(name)[:20])
    assert other != again


@pytest.mark.parametrize("name", NAMES)
def test_equal_signatures_are_equal_work(name: str) -> None:
    known: dict[str, Node] = {}
    for node in nodes(name):
        if node.signature is not None:
            first = known.setdefault(node.signature, node)
            assert (first.pieces, first.output_tokens) == (node.pieces, node.output_tokens)
            assert (first.step, first.max_tokens) == (node.step, node.max_tokens)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("text2sql", 0.9, 0.97),
        ("rsl_sql", 0.7, 0.9),
        ("rag", 0.5, 0.8),
        ("research", 0.88, 0.97),
        ("react", 0.9, 0.97),
        ("tot", 0.7, 0.9),
        ("swe", 0.7, 0.9),
        ("chat", 0.03, 0.3),
        ("summarisation", 0.0, 0.001),
    ],
)
def test_prompts_begin_alike_where_that_is_claimed(name: str, least: float, most: float) -> None:
    assert least <= seen_share(name) <= most


@pytest.mark.parametrize("name", ["rag", "research"])
def test_popular_work_comes_again(name: str) -> None:
    signed = [node.signature for node in nodes(name) if node.signature is not None]
    assert 0.2 < 1 - len(set(signed)) / len(signed) < 0.8


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"rag", "research", "mixed"}))
def test_elsewhere_no_work_is_the_same(name: str) -> None:
    assert all(node.signature is None for node in nodes(name))


def test_only_tools_and_tests_take_time_between_calls() -> None:
    waiting = {name: {node.step for node in nodes(name) if node.delay_s} for name in NAMES if name in COUNTS}
    assert waiting["text2sql"] == waiting["tot"] == set()
    assert waiting["research"] == {"read", "choose_tool", "findings"}
    assert waiting["swe"] == {"choose_files"}


# -- text-to-SQL as in CHESS: statistics of HexGen-Flow's financial and formula1 traces --------------------


@pytest.mark.parametrize("step", list(chess.STAGES))
def test_stages_are_as_measured(step: str) -> None:
    stage = chess.STAGES[step]
    assert mean(per_query("text2sql", step)) == about(stage.calls, 0.15)
    assert mean(inputs("text2sql", step)) == about(stage.input)
    assert mean(outputs("text2sql", step)) == about(stage.output, 0.2)


@pytest.mark.parametrize(
    ("step", "input_p95", "output_p95"),
    [
        ("extract_keywords", 708, 78),
        ("generate_candidate", 13_844, 978),
        ("revise", 8_346, 1_009),
        ("generate_unit_test", 1_442, 132),
    ],
)
def test_the_tails_of_stages_are_as_measured(step: str, input_p95: int, output_p95: int) -> None:
    assert p95(inputs("text2sql", step)) == about(input_p95, 0.15)
    assert p95(outputs("text2sql", step)) == about(output_p95, 0.2)


def test_queries_are_as_measured() -> None:
    taken = [sum(node.input_tokens for node in plan.nodes) for plan in plans("text2sql")]
    given = [sum(node.output_tokens for node in plan.nodes) for plan in plans("text2sql")]
    assert mean(per_query("text2sql")) == about(16, 0.05)
    assert p95(per_query("text2sql")) == about(23)
    assert (mean(taken), quantiles(taken, n=2)[0], p95(taken)) == (
        about(34_973),
        about(29_031),
        about(76_098, 0.2),
    )
    assert (mean(given), quantiles(given, n=2)[0], p95(given)) == (
        about(1_628),
        about(1_459),
        about(2_961, 0.2),
    )


def test_revisions_and_evaluations_come_as_often_as_measured() -> None:
    revisions, evaluations = (
        Counter(per_query("text2sql", "revise")),
        Counter(per_query("text2sql", "evaluate")),
    )
    count = len(plans("text2sql"))
    for times, share in ((0, 0.71), (1, 0.13), (2, 0.04)):
        assert revisions[times] / count == pytest.approx(share, abs=0.04)
    assert max(revisions) <= 10
    for times, share in ((0, 0.06), (3, 0.07), (4, 0.35), (5, 0.31), (6, 0.16)):
        assert evaluations[times] / count == pytest.approx(share, abs=0.05)
    assert sum(chess.REVISIONS) == pytest.approx(1)
    assert sum(chess.EVALUATIONS.values()) + 1 - chess.UNIT_TESTS_SHARE == pytest.approx(1, abs=0.011)


def test_candidates_are_as_alike_as_measured() -> None:
    pairs = [[node for node in plan.nodes if node.step == "generate_candidate"] for plan in plans("text2sql")]
    first, second = ([log(pair[i].output_tokens) for pair in pairs] for i in (0, 1))
    assert correlation(first, second) == pytest.approx(0.71, abs=0.06)
    longer = [max(a.output_tokens, b.output_tokens) for a, b in pairs]
    assert mean(longer) / mean(outputs("text2sql", "generate_candidate")) == about(1.19, 0.03)
    candidates = nodes("text2sql", "generate_candidate")
    ranks = [
        normal_scores(values)
        for values in ([n.input_tokens for n in candidates], [n.output_tokens for n in candidates])
    ]
    assert correlation(*ranks) == pytest.approx(0.63, abs=0.15)


def test_candidates_run_at_once_and_revisions_one_after_the_other() -> None:
    for plan in plans("text2sql")[:200]:
        candidates = [node for node in plan.nodes if node.step == "generate_candidate"]
        assert len(candidates) == 2
        assert candidates[0].after == candidates[1].after
        for node in plan.nodes:
            if node.step == "revise":
                assert plan.nodes[node.after[0]].step in ("generate_candidate", "revise")
            if node.step == "evaluate":
                assert [plan.nodes[i].step for i in node.after] == ["unit_tester"]
        assert plan.nodes[-1].step == "unit_tester"


def test_a_question_tells_how_long_its_candidates_get() -> None:
    """What the candidates share, .71 of their variance, is the question's: the square root of it correlates."""
    rows = data.bird()
    hardness = normal_scores([row.final for row in rows])
    known = {f"{row.question}\n{row.evidence}": hard for row, hard in zip(rows, hardness, strict=True)}
    first = nodes("text2sql", "generate_candidate")[::2]
    found = correlation([known[n.pieces[-1].text] for n in first], [log(n.output_tokens) for n in first])
    assert found == pytest.approx(sqrt(0.71), abs=0.05)


# -- text-to-SQL as in RSL-SQL: lengths of its published outputs --------------------------------------------


@pytest.mark.parametrize(("step", "tokens"), [("link", 65), ("draft", 61), ("augmented", 60), ("choice", 59)])
def test_rsl_sql_writes_as_measured(step: str, tokens: float) -> None:
    assert mean(outputs("rsl_sql", step)) == about(tokens, 0.12)
    assert set(per_query("rsl_sql", step)) == {1}


def test_rsl_sql_writes_keywords_and_corrects_as_measured() -> None:
    assert mean(outputs("rsl_sql", "keywords")) + mean(outputs("rsl_sql", "conditions")) == about(29)
    corrected = sum(count > 0 for count in per_query("rsl_sql", "correction"))
    assert 0.01 < corrected / len(plans("rsl_sql")) < 0.07


# -- agents -------------------------------------------------------------------------------------------------


def test_rag_ranks_all_passages_at_once_and_then_answers() -> None:
    for plan in plans("rag")[:100]:
        assert [node.step for node in plan.nodes] == ["rewrite", *["rank"] * 4, "answer"]
        assert [node.after for node in plan.nodes] == [(), *[(0,)] * 4, (1, 2, 3, 4)]
        assert len({node.delay_s for node in plan.nodes[1:5]}) == 1


def test_rag_finds_the_same_passages_for_different_questions() -> None:
    found: dict[str, set[Piece]] = {}
    for node in nodes("rag", "rank"):
        found.setdefault(node.pieces[-1].text, set()).update(node.pieces[2:-1])
    assert any(one & other for one, other in combinations(found.values(), 2))


def test_research_is_as_measured() -> None:
    """DeerFlow: 18 calls a query in the median, prompts of 9.8k to 11.1k tokens, a huge report at the end."""
    assert quantiles(per_query("research"), n=2)[0] == about(18, 0.15)
    assert quantiles(inputs("research"), n=2)[0] == about(11_000, 0.15)
    assert mean(outputs("research", "report")) == about(mean(data.research().reports), 0.2)
    assert all(plan.nodes[-1].step == "report" for plan in plans("research"))


def test_research_fans_out() -> None:
    for plan in plans("research"):
        readers = [node for node in plan.nodes if node.step == "read"]
        assert 3 <= len(readers) <= 5
        assert all(node.after == (0,) for node in readers)


def test_contexts_grow() -> None:
    for name, step in (("react", "thought"), ("research", "choose_tool")):
        for plan in plans(name)[:100]:
            for node in plan.nodes:
                before = [plan.nodes[i] for i in node.after]
                if node.step == step and before and before[0].step in ("action", "choose_tool"):
                    assert node.pieces[: len(before[0].pieces)] == before[0].pieces


def test_react_is_as_measured() -> None:
    """Reflexion's logs: thoughts 27 tokens, actions 9, prompts 2.0k with P95 2.7k, most often 3 steps."""
    assert mean(outputs("react", "thought")) == about(27)
    assert mean(outputs("react", "action")) == about(9, 0.15)
    assert mean(inputs("react")) == about(2_030)
    assert p95(inputs("react")) == about(2_700)
    steps = Counter(per_query("react", "action"))
    assert steps.most_common(1)[0][0] == 3
    assert 0.35 < steps[3] / len(plans("react")) < 0.57, "that of all trials, with the many that repeat"


def test_writing_is_as_measured() -> None:
    """Tree of Thoughts: plans 72 tokens, passages 335, and 4.0k answered a task; 2.9k read if siblings are one."""
    assert mean(outputs("tot", "plan")) == about(72)
    assert mean(outputs("tot", "passage")) == about(335)
    given = [sum(node.output_tokens for node in plan.nodes) for plan in plans("tot")]
    taken = [sum(node.input_tokens for node in plan.nodes) / 5 for plan in plans("tot")]
    assert mean(given) == about(4_000, 0.05)
    assert mean(taken) == about(2_900, 0.1)


def test_repairs_are_as_measured() -> None:
    """Aider: one attempt .48 and six .26 of all 296 instances, of which two thirds are here; 11 calls a query."""
    attempts = Counter(per_query("swe", "choose_files"))
    assert attempts[1] / len(plans("swe")) == pytest.approx(0.55, abs=0.1)
    assert attempts[6] / len(plans("swe")) == pytest.approx(0.23, abs=0.08)
    assert mean(per_query("swe")) == about(9.6, 0.25)
    assert quantiles(outputs("swe", "choose_files"), n=2)[0] == about(65, 0.15)
    assert quantiles(outputs("swe", "edit"), n=2)[0] == about(290, 0.2)
    assert all(30 <= node.delay_s <= 120 for node in nodes("swe") if node.delay_s)


# -- single calls -------------------------------------------------------------------------------------------


def test_chat_answers_as_measured() -> None:
    sets = (
        data.prompts("arena_hard_v01", "gpt-4-0314", "greedy"),
        data.prompts("oasst_sampling", "deepseek-v3-0324@2025-08-10", "sample"),
        data.prompts("gsm8k_outputs", "gpt-4-1106-preview", "t0"),
    )
    answers = {prompt.text: prompt.answers for one in sets for prompt in one}
    assert all(node.output_tokens in answers[node.pieces[-1].text] for node in nodes("chat"))
    assert mean(outputs("chat")) == about(mean(mean(p.answers[0] for p in one) for one in sets), 0.15)


def test_some_conversations_go_on() -> None:
    turns = [node for node in nodes("chat") if len(node.pieces) > 2]
    known = {node.pieces for node in nodes("chat")}
    assert 0.04 < len(turns) / len(nodes("chat")) < 0.2
    assert all(node.pieces[:2] in known for node in turns)


def test_summaries_are_as_measured() -> None:
    """Vidur's arXiv lengths: 2,579 in and 296 out."""
    assert mean(inputs("summarisation")) == about(2_579)
    assert mean(outputs("summarisation")) == about(296, 0.25)


# -- tenants ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mix"), [("mixed", MIX), ("tenants", TENANTS)])
def test_tenants_come_as_often_as_they_weigh(name: str, mix: dict[str, tuple[object, float]]) -> None:
    counts = Counter(plan.tenant for plan in plans(name))
    total, count = sum(weight for _, weight in mix.values()), len(plans(name))
    for tenant, (_, weight) in mix.items():
        share = weight / total
        assert counts[tenant] / count == pytest.approx(share, abs=4 * sqrt(share * (1 - share) / count))


# -- tools --------------------------------------------------------------------------------------------------


def test_too_long_a_call_is_refused() -> None:
    draft = Draft("test", "1")
    draft.call("fits", [Piece("a", LIMIT_TOKENS - 4)], 1)
    with pytest.raises(ValueError, match=r"30000 \+ 1"):
        draft.call("does not", [Piece("a", LIMIT_TOKENS - 3)], 1)


def test_odds() -> None:
    dice = Random(1)
    drawn = Counter(Odds([1.0, 0.0, 3.0]).draw(dice) for _ in range(4_000))
    assert set(drawn) == {0, 2}
    assert drawn[2] / 4_000 == pytest.approx(0.75, abs=0.03)
    assert Odds.zipf(5, 1.0).sample(dice, 5) == [0, 1, 2, 3, 4]


def test_normal_scores() -> None:
    scores = normal_scores([30, 10, 20])
    assert scores[2] == pytest.approx(0)
    assert scores[0] == -scores[1] == pytest.approx(0.967, abs=0.001)
