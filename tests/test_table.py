"""CSV tables column by column: the values that come out, and the one line about a value that is none."""

import math
from pathlib import Path

import pytest

from workloads.errors import InputError
from workloads.table import FLAG, NUMBER, TEXT, WHOLE, maybe, number, read_table

COLUMNS = {"name": TEXT, "tokens": WHOLE, "us": NUMBER, "prefill": FLAG, "note": maybe(TEXT), "extra": maybe(NUMBER)}


def table(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_column_has_its_kind(tmp_path):
    path = table(tmp_path, "\ufeffname, tokens,us,prefill,note,other\r\n a ,8.0,1.5e2,True, ,x\r\n\r\nb,0,7,false,n,\n")
    assert read_table(path, COLUMNS) == [
        {"name": "a", "tokens": 8, "us": 150.0, "prefill": True, "note": None, "extra": None},
        {"name": "b", "tokens": 0, "us": 7, "prefill": False, "note": "n", "extra": None},
    ]
    assert type(read_table(path, COLUMNS)[0]["tokens"]) is int


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name,tokens,us,prefill\na,1,1,True\nb,x,1,True\n", "row 3: tokens = 'x', expected a whole number of zero"),
        ("name,tokens,us,prefill\na,1.5,1,True\n", "row 2: tokens = '1.5', expected a whole number of zero or more"),
        ("name,tokens,us,prefill\na,1,-1,True\n", "row 2: us = '-1', expected a number of zero or more"),
        ("name,tokens,us,prefill\na,1,inf,True\n", "row 2: us = 'inf', expected a number of zero or more"),
        ("name,tokens,us,prefill\na,1,,True\n", "row 2: us = '', expected a number of zero or more"),
        ("name,tokens,us,prefill\na,1,1,1\n", "row 2: prefill = '1', expected True or False"),
        ("name,tokens,us,prefill,extra\na,1,1,True,no\n", "row 2: extra = 'no', expected a number of zero or more"),
        ("name,tokens,us,prefill\na,1,1\n", "row 2: 3 fields, expected 4"),
        ("name,tokens,us,us,prefill\n", "row 1: column 'us' comes twice"),
        (
            "name,us,prefill\na,1,True\n",
            "row 1: no column 'tokens' among 'name', 'us', 'prefill', expected name, tokens",
        ),
        ("name,tokens,us,prefill\n", "no rows; expected at least one"),
        ("", "the file is empty, expected CSV with columns name, tokens, us, prefill"),
        (b"name,tokens\n\xff\xfe", "not text (invalid start byte at byte 12), expected CSV with columns name"),
    ],
)
def test_what_is_wrong_names_file_row_column_value_and_expectation(tmp_path, text, line):
    path = table(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_table(path, COLUMNS)
    assert str(error.value).startswith(str(path))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: cannot read \(No such file"):
        read_table(tmp_path / "none.csv", COLUMNS)


@pytest.mark.parametrize("text", ["1_000", "nan", "0x10", "١", "True", "", "1e", "--1"])
def test_what_only_python_takes_for_a_number_is_none(text):
    assert math.isnan(number(text))
