"""Dense codes for raw ids, given out part by part: memory grows with the number of distinct ids, not of events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from data_prep.event_log import Ids
from repro.errors import InputError

# N events, K distinct ids seen so far, P distinct ids of a part


class Vocabulary:
    """Codes 0..K-1 in the order in which ids are first seen. Integers cost 12 bytes each, text about 150."""

    def __init__(self, name: str) -> None:
        """`name` is used in messages only."""
        self._name = name
        self._is_text: bool | None = None
        self._integers_K = np.zeros(0, dtype=np.int64)
        """Ascending."""
        self._codes_K = np.zeros(0, dtype=np.int32)
        """Code of each of `_integers_K`."""
        self._texts: dict[str, int] = {}

    def __len__(self) -> int:
        """K."""
        return len(self._texts) or self._codes_K.size

    def encode(self, ids_N: Ids) -> np.ndarray:
        """Codes of `ids_N`, int32 (N,); unknown ids get new ones.

        Raises:
            InputError: neither integers nor text, text after integers, or missing values.
        """
        part = (ids_N if isinstance(ids_N, pa.Array) else pa.array(ids_N)).dictionary_encode()
        if part.null_count:
            raise InputError(f"{self._name}: {part.null_count:,} events have none; drop them or fill them in")
        kind = part.dictionary.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not is_text and not pa.types.is_integer(kind):
            raise InputError(f"{self._name}: ids must be integers or text, got {kind}")
        if self._is_text not in (None, is_text):
            raise InputError(f"{self._name}: ids are text in one part of the log and integers in another; use one")
        self._is_text = is_text
        codes_P = self._encode_text(part.dictionary) if is_text else self._encode_integers(part.dictionary)
        if len(self) > np.iinfo(np.int32).max:
            raise InputError(f"{self._name}: more than {np.iinfo(np.int32).max:,} distinct ids")
        codes_N: np.ndarray = codes_P[part.indices.to_numpy()]
        return codes_N

    def raw(self) -> list[int] | list[str]:
        """The ids by code."""
        if self._is_text:
            return list(self._texts)
        by_code_K = np.empty_like(self._integers_K)
        by_code_K[self._codes_K] = self._integers_K
        integers: list[int] = by_code_K.tolist()
        return integers

    def ranks(self) -> np.ndarray:
        """Place of each code's id among the sorted ids (text by code point), int32 (K,)."""
        by_id_K = np.array(list(map(self._texts.__getitem__, sorted(self._texts)))) if self._is_text else self._codes_K
        ranks_K = np.empty(by_id_K.size, dtype=np.int32)
        ranks_K[by_id_K] = np.arange(by_id_K.size, dtype=np.int32)
        return ranks_K

    def _encode_text(self, ids_P: pa.Array) -> np.ndarray:
        texts = self._texts
        return np.array([texts.setdefault(text, len(texts)) for text in ids_P.to_pylist()], dtype=np.int32)

    def _encode_integers(self, ids_P: pa.Array) -> np.ndarray:
        try:
            integers_P = ids_P.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            raise InputError(f"{self._name}: an id is larger than 2**63 - 1; give such ids as text") from None
        place_P = np.searchsorted(self._integers_K, integers_P)
        is_new_P = np.ones(integers_P.size, dtype=bool)
        inside_P = place_P < self._integers_K.size
        is_new_P[inside_P] = self._integers_K[place_P[inside_P]] != integers_P[inside_P]
        codes_P = np.empty(integers_P.size, dtype=np.int32)
        codes_P[~is_new_P] = self._codes_K[place_P[~is_new_P]]
        codes_P[is_new_P] = self._codes_K.size + np.arange(np.count_nonzero(is_new_P), dtype=np.int32)
        new = np.flatnonzero(is_new_P)
        new = new[np.argsort(integers_P[new])]
        self._integers_K = np.insert(self._integers_K, place_P[new], integers_P[new])
        self._codes_K = np.insert(self._codes_K, place_P[new], codes_P[new])
        return codes_P
