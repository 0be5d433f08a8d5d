"""Compute the vector of each segment of a row, read the value at one position of each segment, and compute
the vectors of neighbouring sentences.
"""

from typing import Any

import torch

from trainers.rows.batch import PADDING


def pooled_segments(states: Any, segments: Any, positions: Any, pooling: str, count: int) -> tuple[Any, Any]:
    """Return a vector for each of the segments 0 to `count` - 1 of each row, fp32 [rows, count, width], and
    whether the segment exists, bool [rows, count].

    `states` are [rows, length, width], `segments` and `positions` int64 [rows, length]; positions restart in
    every segment. If `pooling` is `first`, a vector is the state of the segment's first token; if it is
    `mean`, the mean of the states of all tokens except the first and the last.
    """
    begins = positions == 0
    if pooling == "mean":
        chosen = ~begins & (segments == torch.nn.functional.pad(segments[:, 1:], (0, 1), value=PADDING))
    else:
        chosen = begins
    members = segments[:, None, :] == torch.arange(count, device=segments.device)[None, :, None]
    shares = (members & chosen[:, None]).float()
    shares = shares / shares.sum(2, keepdim=True).clamp(min=1)
    return shares @ states.float(), members.any(2)


def at_segments(values: Any, segments: Any, chosen: Any, count: int) -> Any:
    """Return the value at the chosen position of each of the segments 0 to `count` - 1, int64 [rows, count],
    or -1 if the segment has no such position.

    `values` and `segments` are int64 [rows, length]. `chosen`, bool [rows, length], may mark at most one
    position of a segment, and no padding.
    """
    found = segments.new_full((len(segments), count + 1), PADDING)
    return found.scatter(1, torch.where(chosen, segments, count), values)[:, :count]


def neighbour_vectors(states: Any, segments: Any, positions: Any, documents: Any, count: int) -> tuple[Any, Any]:
    """Return two pairs that describe, for each position, the sentences before and after its own: their
    vectors, each [rows, length, width], and whether they exist in the same document, each bool [rows,
    length]. A missing sentence has a vector of zeros.

    `states` are [rows, length, width]; `segments`, `positions` and `documents` are int64 [rows, length]. A
    sentence is a segment, and no row may contain more than `count` of them. The vector of a sentence is the
    state of the last token before its end mark.
    """
    columns = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    following = torch.nn.functional.pad(segments[:, 1:], (0, 1), value=PADDING)
    ends = at_segments(columns - 1, segments, (segments >= 0) & (following != segments), count).clamp(min=0)
    owners = at_segments(documents, segments, (segments >= 0) & (positions == 0), count)
    vectors = states.gather(1, ends[..., None].expand(-1, -1, states.shape[2]))
    joined = (owners[:, 1:] == owners[:, :-1]) & (owners[:, 1:] != PADDING)  # a sentence and the next
    before = torch.nn.functional.pad(vectors[:, :-1] * joined[..., None], (0, 0, 1, 0))
    after = torch.nn.functional.pad(vectors[:, 1:] * joined[..., None], (0, 0, 0, 1))
    members = segments[..., None] == torch.arange(count, device=segments.device)
    has_before, has_after = (
        (members & torch.nn.functional.pad(joined, padding)[:, None]).any(2) for padding in ((1, 0), (0, 1))
    )
    own = members.to(states.dtype)  # a product, because a gather would add gradients in no fixed order on a GPU
    return (own @ before, own @ after), (has_before, has_after)
