"""The answer that the first page opens with is the answer to its question, and still what this code comes to."""

from __future__ import annotations

import json

import pytest

from kvcast.jobs import example
from kvcast.jobs.runner import Runner
from kvcast.pages import ask_words
from tools import first_answer


def test_it_is_of_the_pages_question():
    about = example.kept()[example.PREPARED]
    assert tuple(about["words"]) == ask_words.argv(example.QUESTION)


def test_a_piece_of_it_comes_out_the_same():
    """Fails when a change moves the numbers: then `python -m tools.first_answer`."""
    card = example.kept()
    piece = card[example.PREPARED]["piece"]
    assert card["answer"]["feasible"]
    assert piece["completed"] > 50
    assert first_answer.piece_of(card) == pytest.approx(piece, rel=1e-9)


def test_it_stands_where_the_servers_own_would_and_gives_way_to_it(tmp_path):
    runner = Runner(tmp_path)
    job = example.place(runner)
    assert runner.asked(ask_words.argv(example.QUESTION)).document() == job.document()
    assert runner.find_asked(job.key).command == job.command
    own = {"own": True}
    job.file(".json").write_text(json.dumps(own), encoding="utf-8")
    assert example.place(runner).document() == own


def test_no_folder_of_whoever_made_it_is_in_it():
    assert "/tmp" not in example.FILE.read_text(encoding="utf-8")
    assert first_answer._without_folders({"run": "/a", "rows": [{"run": "/b", "gpus": 3}]}) == {
        "run": None,
        "rows": [{"run": None, "gpus": 3}],
    }
