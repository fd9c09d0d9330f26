"""Named sets: where they are looked for, and what is said when they are not there."""

import importlib.util

import pytest

from recguide_core.datasets import Prompt, benchmarks, load_prompts, select
from recguide_core.errors import DataError, UsageError


def write(folder, name, count=3):
    lines = [f'{{"id": "{name}/{i}", "prompt": "Task {i} of {name}"}}' for i in range(count)]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_demo_is_shipped_with_about_sixty_prompts():
    demo = load_prompts(["demo"]).prompts
    assert 50 <= len(demo) <= 80
    assert len({p.hash for p in demo}) == len(demo)
    assert len({p.category for p in demo}) >= 3


def test_benchmark_from_a_folder_has_its_category(tmp_path):
    write(tmp_path, "gsm8k_test.jsonl")
    write(tmp_path, "ifeval.jsonl")
    loaded = load_prompts(["gsm8k", "ifeval"], tmp_path)
    assert {p.dataset: p.category for p in loaded.prompts} == {"gsm8k": "math", "ifeval": "qa_if"}
    assert loaded.sources["gsm8k"].endswith("gsm8k_test.jsonl")


def test_stand_ins_keep_their_names(tmp_path):
    write(tmp_path, "gpqa_style_own.jsonl")
    assert {p.dataset for p in load_prompts(["gpqa_style_own"], tmp_path).prompts} == {
        "gpqa_style_own"
    }


@pytest.mark.parametrize("name", ["gpqa", "aime25", "livecodebench"])
def test_a_stand_in_never_answers_for_its_benchmark(name, tmp_path):
    stand_in = benchmarks.BENCHMARKS[name].stand_in
    write(tmp_path, f"{stand_in}.jsonl")
    if importlib.util.find_spec("datasets") is not None:
        pytest.skip("needs an environment without the `datasets` library")
    with pytest.raises(DataError) as caught:
        load_prompts([name], tmp_path)
    assert "Hugging Face hub" in caught.value.remedy
    assert stand_in in caught.value.remedy


def test_a_missing_set_is_an_error_and_not_the_demo():
    with pytest.raises(DataError) as caught:
        load_prompts(["humaneval"], None)
    assert "RECGUIDE_DATA_DIR" in caught.value.remedy


def test_unknown_set_gets_the_nearest_name():
    with pytest.raises(UsageError, match="Did you mean 'gsm8k'"):
        load_prompts(["gsm8"])


def test_the_same_set_twice():
    with pytest.raises(UsageError, match="twice"):
        load_prompts(["demo", "demo"])


def test_data_directory_must_be_one(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        load_prompts(["gsm8k"], tmp_path / "absent")


def prompts(dataset, count):
    return [Prompt(f"{dataset}/{i}", (("user", f"{dataset} {i}"),), dataset) for i in range(count)]


def test_selection_is_seeded_and_takes_sets_in_turn():
    pool = prompts("a", 5) + prompts("b", 50)
    first, again, other = select(pool, 8, 1), select(pool, 8, 1), select(pool, 8, 2)
    assert first == again != other
    assert [p.dataset for p in first] == ["a", "b"] * 4


def test_selection_repeats_only_when_it_must():
    pool = prompts("a", 5)
    assert len({p.id for p in select(pool, 5, 0)}) == 5
    assert sorted(p.id for p in select(pool, 10, 0)) == sorted([p.id for p in pool] * 2)


def test_instructions_apply_to_their_template_only():
    assert benchmarks.instruction("gsm8k", "plain") == "{task}"
    assert "boxed" in benchmarks.instruction("gsm8k", "instruct")
    assert benchmarks.template_hash(["gsm8k"], "plain") != benchmarks.template_hash(
        ["gsm8k"], "instruct"
    )


def test_unknown_template():
    with pytest.raises(UsageError, match="Did you mean 'plain'"):
        benchmarks.check_template("plane")


def test_hub_rows_of_choices_do_not_tell_the_answer_by_place():
    row = {"Question": "Which?", "Correct Answer": "z"}
    row |= {f"Incorrect Answer {i}": c for i, c in ((1, "a"), (2, "b"), (3, "c"))}
    task = benchmarks.task_of_hub_row(benchmarks.BENCHMARKS["gpqa"], row)
    assert task.splitlines() == ["Which?", "(A) a", "(B) b", "(C) c", "(D) z"]
