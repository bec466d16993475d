"""Word vectors, read from files."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas.core.errors import ConfigurationError
from nas.core.validation import short_repr
from nas.problems.squad.articles import FORMAT_ERRORS, PlaceError, cause
from nas.storage.remote_file import read_file, read_lines

_NPZ = b"PK\x03\x04"
_Vectors = tuple[list[str], NDArray[np.float32]]


def read_vectors(url: str, options: Mapping[str, Any], known: Collection[str]) -> _Vectors:
    """Returns the words of the data that have vectors, and these.

    The file is an npz of ``words`` and ``vectors``, or GloVe's text. The text may have word2vec's header, and may be
    compressed with gzip. It is read line by line. Of a word's several vectors the last one is used.

    Args:
        url: The file.
        options: Options for fsspec.
        known: The words of the data. A word is used if it is one of them, or the lower case of one.

    Raises:
        ConfigurationError: the file can't be read or has another format, or none of its words is known.
    """
    used = {word.encode(errors="surrogatepass") for word in {*known}.union(word.lower() for word in known)}
    try:
        lines = read_lines(url, options)
        first = next(lines, b"")
        is_npz = first.startswith(_NPZ)
        found = _from_npz(read_file(url, options), used) if is_npz else _from_text(chain([first], lines), used)
        if not found:
            raise PlaceError("none of its words is in the passages and questions")
        vectors = np.stack([*found.values()])
        if not np.isfinite(vectors).all():
            raise PlaceError("some numbers are not finite")
    except FORMAT_ERRORS as error:
        raise ConfigurationError(
            f"problem.vectors_file={url}: must be an npz of words and vectors, or GloVe's text ({cause(error)}). "
            "Give one, or null to learn vectors."
        ) from error
    return [word.decode(errors="surrogatepass") for word in found], vectors


def _from_npz(content: bytes, used: Collection[bytes]) -> dict[bytes, NDArray[np.float32]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        words, vectors = [str(word) for word in arrays["words"]], arrays["vectors"]
    if vectors.ndim != 2 or len(words) != len(vectors) or vectors.shape[1] < 2:
        raise PlaceError(f"{len(words)} words and vectors of shape {vectors.shape}")
    rows = ((word.encode(errors="surrogatepass"), row) for word, row in zip(words, vectors, strict=True))
    return {word: row.astype(np.float32) for word, row in rows if word in used}


def _from_text(lines: Iterable[bytes], used: Collection[bytes]) -> dict[bytes, NDArray[np.float32]]:
    found: dict[bytes, NDArray[np.float32]] = {}
    for n, word, numbers in _rows(lines):
        if word in used:
            try:
                found[word] = np.array(numbers, np.float32)
            except ValueError as error:
                raise PlaceError(f"line {n}: something after the word is no number") from error
    return found


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Yields the number of each line, its word, and its numbers.

    Some of GloVe's words hold spaces.

    Raises:
        PlaceError: a line has another number of numbers than the first, which has two or more.
    """
    size = 0
    for n, line in enumerate(lines, 1):
        fields = line.strip(b" \r\n").split(b" ")
        if n == 1:
            is_header = len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit()
            size = int(fields[1]) if is_header else len(fields) - 1
            if size < 2:
                raise PlaceError(
                    f"line 1: {short_repr(line.decode(errors='replace').strip())} is no word with two numbers or more"
                )
            if is_header:
                continue
        if fields == [b""]:
            continue
        words = fields[:-size]
        if not words or (len(words) > 1 and _is_number(words[-1])):
            n_numbers = len(fields) - 1
            raise PlaceError(f"line {n}: {n_numbers} numbers after a word, must be {size}")
        yield n, b" ".join(words), fields[-size:]


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
