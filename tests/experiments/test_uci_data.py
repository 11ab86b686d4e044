"""The sets of the UCI experiment: files, downloads, bad input, splits, first weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from torch import nn

import linlap as ll
import linlap.cli
from experiments.uci import data, problems, sets
from experiments.uci.config import FULL, SPLITS
from experiments.uci.sets import SETS
from tests.uci_sets import known, put, table, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small sets in CSV files, and nothing in the cache."""
    put(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_folder_named_is_read(folder: Path) -> None:
    assert np.array_equal(data.load("three", folder), table(3))


def test_digits_come_from_scikit_learn() -> None:
    digits = data.load("digits")
    assert digits.shape == (1797, 65)
    assert set(digits[:, -1]) == set(range(10))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file"),
        (b"", "is empty"),
        (b"names\n1,2,x,0\n", "is not a table of numbers"),
        (b"names\n1,2,3,0\n1,2,0\n", "is not a table of numbers"),
        (b"names\n1,2,3,0\n", "has 1 rows of 4 numbers; two has 60 of 4"),
        (b"\xff\xfe\xff", "cannot be read (not text)"),
    ],
)
def test_missing_and_damaged_files_are_named(folder: Path, content: bytes | None, said: str) -> None:
    path = folder / "two.csv"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ll.InputError) as caught:
        data.load("two", folder)
    assert said in str(caught.value)
    assert "two.csv" in str(caught.value)


def test_other_numbers_and_another_order_are_refused(folder: Path) -> None:
    made = table(2)
    write(folder / "two.csv", made[::-1])
    with pytest.raises(ll.InputError, match="its rows in another order"):
        data.load("two", folder)
    made[7, 1] = np.nan
    write(folder / "two.csv", made)
    with pytest.raises(ll.InputError, match="has nan in row 8, column 2"):
        data.load("two", folder)


def test_an_unknown_name_gets_the_known_ones() -> None:
    with pytest.raises(ll.InputError, match="there is no set 'iris'; the sets are australian, cancer"):
        data.load("iris")
    with pytest.raises(ll.InputError, match="there is no network '3x50'; the networks are 1x50_tanh"):
        problems.network("3x50", SETS["glass"], 0)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which its files are served."""
    files = tmp_path / "served"
    files.mkdir()
    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(files))) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield files, f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_downloads_are_checked_and_kept(
    folder: Path, server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features and labels apart, in two parts, labels named −1 and 1; the second time from the cache."""
    files, address = server
    made = table(2)
    for part, rows in (("a", made[:20]), ("b", made[20:])):
        np.savetxt(files / f"x{part}.txt", rows[:, :-1])
        np.savetxt(files / f"y{part}.txt", 2 * rows[:, -1] - 1)
    monkeypatch.setitem(SETS, "two", known("two", 2, (("xa.txt", "ya.txt"), ("xb.txt", "yb.txt"))))
    monkeypatch.setattr(data, "PUBLIC", address)
    assert np.array_equal(data.load("two"), made)
    for path in files.iterdir():
        path.unlink()
    assert np.array_equal(data.load("two"), made)
    assert [path.name for path in (folder / "cache" / "linlap" / "uci").iterdir()] == ["two.csv"]


def test_features_and_labels_in_one_file(server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    files, address = server
    monkeypatch.setattr(data, "PUBLIC", address)
    np.savetxt(files / "all.data", table(3), delimiter=",")
    np.savetxt(files / "few.txt", np.arange(5))
    assert np.array_equal(data.download(known("three", 3, (("all.data",),))), table(3))
    with pytest.raises(ll.InputError, match="do not fit together"):
        data.download(known("three", 3, (("all.data", "few.txt"),)))


def test_a_failed_download_says_how_to_get_the_data(
    folder: Path, server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "PUBLIC", server[1])
    with pytest.raises(ll.InputError, match="none could not be had .*Pass --data FOLDER with a file two.csv"):
        data.load("two")
    (server[0] / "none").write_text("1 2 3 0\n", encoding="utf-8")
    with pytest.raises(ll.InputError, match="has 1 rows of 4 numbers"):
        data.load("two")
    assert not (folder / "cache").exists()


def test_the_public_copy_has_all_but_the_digits() -> None:
    assert [one.name for one in SETS.values() if not one.files] == ["digits"]
    assert sets.PUBLIC.startswith("https://")
    assert set(FULL.sets) == set(SETS)


def test_splits_are_the_protocols() -> None:
    made = table(3)
    x, y = made[:, :-1], made[:, -1]
    x_train, x_rest, y_train, y_rest = train_test_split(
        x, y, train_size=0.7, random_state=711, shuffle=True, stratify=y
    )
    x_test, x_valid, y_test, _ = train_test_split(
        x_rest, y_rest, train_size=0.5, random_state=711, shuffle=True, stratify=y_rest
    )
    train, valid, test = problems.split(made, 711)
    mean, deviation = x_train.mean(0), x_train.std(0)
    for part, wanted in ((train, x_train), (valid, x_valid), (test, x_test)):
        assert np.allclose(part[:, :-1], (wanted - mean) / deviation)
    assert np.array_equal(train[:, -1], y_train)
    assert np.array_equal(test[:, -1], y_test)


def test_first_weights_are_torchs_own() -> None:
    torch.manual_seed(75)
    wanted = nn.Sequential(nn.Linear(9, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 6))
    found = problems.network("2x50_tanh", SETS["glass"], 75)
    assert all(torch.equal(p, q) for p, q in zip(wanted.parameters(), found.parameters(), strict=True))
    assert problems.weights("2x50_tanh", SETS["glass"]) == 3356
    assert problems.weights("1x50_tanh", SETS["cancer"]) == 601


def test_the_protocols_numbers() -> None:
    assert FULL.splits == SPLITS == (711, 1, 75, 359, 17, 420, 129, 666, 69, 36)
    assert np.allclose(np.log10(FULL.precisions), np.linspace(-2, 2, 10))
    assert (FULL.steps, FULL.step_size, FULL.mfvi_steps, FULL.mfvi_step_size) == (10_000, 1e-3, 5_000, 1e-2)
    assert (FULL.samples, FULL.refine_steps, FULL.refine_rate, FULL.refine_diagonal_rate) == (1000, 250, 1e-2, 1e-3)
