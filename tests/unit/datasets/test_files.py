"""Prompt files that people really have: each shape, valid and broken."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recguide_core.datasets import ReadOptions, load_prompts
from recguide_core.datasets.formats import MAX_LINE
from recguide_core.errors import DataError, UsageError

FILES = Path(__file__).parents[2] / "fixtures" / "prompts"


def read(name: str, **options):
    return load_prompts([str(FILES / name)], options=ReadOptions(**options))


def texts(name: str, **options) -> list[str]:
    return [prompt.text for prompt in read(name, **options).prompts]


def test_sharegpt_asks_the_last_question_with_what_came_before():
    prompts = read("valid/sharegpt.json").prompts
    assert [p.text for p in prompts] == ["Another one.", "Name a river.", "Name a star."]
    assert [role for role, _ in prompts[0].messages] == ["user", "assistant", "user"]
    assert prompts[1].messages[0] == ("system", "Be short.")


def test_sharegpt_first_turn_keeps_the_system_message():
    prompts = read("valid/sharegpt.json", turns="first").prompts
    assert prompts[0].messages == (("user", "Name a tree."),)
    assert prompts[1].messages == (("system", "Be short."), ("user", "Name a river."))
    assert prompts[2].messages == (("user", "Name a star."),)


def test_every_turn_is_asked_once():
    prompts = read("valid/sharegpt.json", turns="all").prompts
    assert [p.id for p in prompts] == ["a#0", "a#1", "b", "c"]
    assert [p.text for p in prompts][:2] == ["Name a tree.", "Another one."]


def test_messages_in_every_spelling():
    assert texts("valid/messages.jsonl") == [
        "Colour of grass?",
        "Colour of snow?",
        "Colour of\ncoal?",
        "Colour of milk?",
    ]


def test_windows_line_ends_and_extra_keys():
    loaded = read("valid/gsm8k_like.jsonl")
    assert [p.text for p in loaded.prompts][1] == "Six shared by two?"
    assert loaded.columns == {"gsm8k_like": "question"}


def test_turns_with_category():
    prompts = read("valid/turns.jsonl", turns="first").prompts
    assert [(p.text, p.category) for p in prompts] == [
        ("Plan a picnic.", "writing"),
        ("Sort 3, 1, 2.", "code"),
    ]


def test_csv_with_quoted_newlines_empty_rows_and_lengths():
    prompts = read("valid/table.csv").prompts
    assert [(p.text, p.max_tokens) for p in prompts] == [
        ("Write two lines,\nplease.", 12),
        ("Count to three.", None),
    ]


def test_csv_with_semicolons():
    assert texts("valid/semicolon.csv") == ["What is 1 + 1?", "What is 2, doubled?"]


def test_plain_text_skips_blank_lines_and_keeps_the_last():
    lines = texts("valid/lines.txt")
    assert len(lines) == 3
    assert lines[2] == "No newline at the end."


def test_byte_order_mark_and_unicode():
    assert texts("valid/single.jsonl") == ["With a byte-order mark.", "Zweite Zeile: Größe?"]


def test_parquet_text_and_message_columns(tmp_path):
    prompts = pa.table({"prompt": ["One.", "Two.", "Three."]})
    pq.write_table(prompts, tmp_path / "text.parquet", row_group_size=1)
    chats = [[{"role": "user", "content": "Hello."}], [{"role": "user", "content": "Bye."}]]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "chat.parquet")
    as_text = pa.table({"messages": [json.dumps(chat) for chat in chats]})
    pq.write_table(as_text, tmp_path / "json.parquet")
    found = load_prompts([str(tmp_path / f"{n}.parquet") for n in ("text", "chat", "json")])
    assert [p.text for p in found.prompts] == ["One.", "Two.", "Three."] + ["Hello.", "Bye."] * 2


def test_parquet_null_row_is_named(tmp_path):
    path = tmp_path / "null.parquet"
    pq.write_table(pa.table({"prompt": ["One.", None]}), path)
    with pytest.raises(DataError, match=r"null\.parquet:2: "):
        load_prompts([str(path)])


def test_gzip(tmp_path):
    path = tmp_path / "packed.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "One."}\n'))
    assert [p.text for p in load_prompts([str(path)]).prompts] == ["One."]
    path.write_bytes(gzip.compress(b'{"prompt": "One."}\n')[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        load_prompts([str(path)])


@pytest.mark.parametrize(
    ("name", "line", "cause"),
    [
        ("sharegpt_no_conversations.json", 2, "no column with a prompt"),
        ("sharegpt_null_value.json", 1, "must be text, not null"),
        ("sharegpt_model_only.json", 1, "no turn by the user"),
        ("sharegpt_role.json", 1, "unknown role 'narrator'"),
        ("messages_empty.jsonl", 1, "conversation is empty"),
        ("messages_image.jsonl", 1, "content part of type 'image_url'"),
        ("messages_text.jsonl", 1, "is text, not a list"),
        ("turns_text.jsonl", 1, "is text, not a list"),
        ("turns_none.jsonl", 1, "conversation is empty"),
        ("other_column.csv", 2, "no column with a prompt"),
        ("ragged.csv", 3, "3 cells, but the header has 2"),
        ("length.csv", 2, "output length is -3"),
        ("pretty.jsonl", 1, "one object a line is expected"),
        ("nan.jsonl", 1, "NaN is not JSON"),
        ("duplicate.jsonl", 3, "id 'a' was already used on line 1"),
        ("cut.jsonl", 2, "not JSON at column"),
        ("number.jsonl", 2, "must be text, not a number"),
        ("blank.jsonl", 1, "is empty"),
        ("scalar.jsonl", 1, "must be an object, not text"),
        ("latin1.jsonl", 2, "not UTF-8"),
        ("unknown_column.jsonl", 1, "columns present: body, title"),
        ("deep.jsonl", 1, "not JSON"),
    ],
)
def test_broken_row_is_named_with_file_and_line(name, line, cause):
    with pytest.raises(DataError) as caught:
        read(f"broken/{name}")
    assert f"{name}:{line}: " in caught.value.cause
    assert cause in caught.value.cause
    assert "\n" not in caught.value.cause
    assert "--skip-bad-rows" in caught.value.remedy


def test_bad_rows_are_skipped_and_listed_on_request():
    loaded = read("broken/duplicate.jsonl", skip_bad_rows=True)
    assert [p.text for p in loaded.prompts] == ["One.", "Two."]
    assert [(s.line, s.cause) for s in loaded.skipped] == [(3, "id 'a' was already used on line 1")]


def test_a_file_of_bad_rows_only_is_no_data_set():
    with pytest.raises(DataError, match="has no prompts"):
        read("broken/blank.jsonl", skip_bad_rows=True)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("empty.jsonl", "is empty"),
        ("only_blank_lines.jsonl", "has no prompts"),
        ("sharegpt_object.json", "no array"),
        ("missing.jsonl", "No file"),
    ],
)
def test_unusable_file(name, cause):
    with pytest.raises(DataError, match=cause):
        read(f"broken/{name}")


def test_unknown_ending_lists_the_known():
    with pytest.raises(UsageError) as caught:
        read("broken/noformat.dat")
    assert ".jsonl" in caught.value.remedy


def test_huge_line_is_refused_not_read(tmp_path):
    path = tmp_path / "huge.txt"
    path.write_bytes(b"x" * (MAX_LINE + 1) + b"\nshort\n")
    with pytest.raises(DataError, match=r"huge\.txt:1: the line has"):
        load_prompts([str(path)])


def test_asked_column_is_read_and_a_wrong_one_gets_the_nearest():
    assert texts("broken/unknown_column.jsonl", column="body") == ["Hello."]
    with pytest.raises(DataError, match="Did you mean 'body'"):
        read("broken/unknown_column.jsonl", column="boddy")


def test_unknown_turns():
    with pytest.raises(UsageError, match="turns"):
        read("valid/turns.jsonl", turns="frist")
