"""What can be checked of a push without knowing the runs: whether it may be merged, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from goodput.access.tokens import Access
from goodput.aggregator.ingest.known_ranks import AnyReport, KnownPush
from goodput.aggregator.ingest.pushed_steps import (
    PushedSteps,
    decode_steps,
    in_parts,
    in_version_2,
    refused_beyond_bound,
)
from goodput.aggregator.ingest.waiting_pushes import Part
from goodput.wire import schema
from goodput.wire.identity import RUN_CHARACTERS_MAX
from goodput.wire.step_blocks import TOTALS

# Step rows that are decoded and merged together.
ROWS_AT_ONCE = 4096
# Larger bodies are decoded and checked in a thread.
BODY_BYTES_AT_ONCE = 256 << 10
# The bytes of their bodies are bounded before (http/limits.py), and so is their number.
LARGE_WAITING_MAX = 4096
# Merging takes up to so many times the bytes of the rows as columns, and so many bytes for each rank beside.
MERGED_TIMES, RANK_BYTES = 5, 8 << 10


class Checked(NamedTuple):
    """Rank reports that may be merged, those that may not with the reason, and wrong fields that are left out."""

    parts: list[Part]
    wrong: list[tuple[schema.RankReport, Exception]]
    fields: list[tuple[schema.RankReport, schema.SchemaError]]


def checked(
    reports: Sequence[schema.RankReport], is_known: Callable[[schema.RankReport], bool], is_large: bool
) -> Checked:
    """Check the rank reports of a push. Of a large one the steps are decoded too, and divided into parts."""
    valid, wrong, fields = [], [], []
    for report in reports:
        try:
            usable, error = _usable(report, is_known)
            if error is not None:
                fields.append((report, error))
            valid.append(in_version_2(schema.with_printable_texts(usable)))
        except Exception as error:
            wrong.append((report, error))
    refused = refused_beyond_bound(valid)
    wrong += [(valid[at], error) for at, error in refused.items()]
    parts = [Part(report) for at, report in enumerate(valid) if at not in refused]
    if not is_large:
        return Checked(parts, wrong, fields)
    divided = []
    for (report, _), steps in zip(parts, decoded(parts), strict=True):
        if isinstance(steps, Exception):
            wrong.append((report, steps))
        else:
            divided += [Part(*one) for one in in_parts(report, steps, ROWS_AT_ONCE)]
    return Checked(divided, wrong, fields)


def _usable(
    report: schema.RankReport, is_known: Callable[[schema.RankReport], bool]
) -> tuple[schema.RankReport, schema.SchemaError | None]:
    """The report, without optional fields that are out of bounds, and what is wrong with these. Raises SchemaError."""
    try:
        schema.check(report, is_known=is_known(report))
        return report, None
    except schema.SchemaError as error:
        usable = schema.without_wrong_options(report)
        schema.check(usable)
        return usable, error


def decoded(parts: Sequence[Part]) -> list[PushedSteps | Exception]:
    """The steps of each part, or why they are refused or could not be decoded."""
    try:
        of_blocks = iter(decode_steps([part.report for part in parts if part.steps is None]))
        return [next(of_blocks) if part.steps is None else part.steps for part in parts]
    except Exception as error:
        if len(parts) == 1:
            return [error]
    return [steps for part in parts for steps in decoded([part])]


def allowed_part(
    report: schema.NodeReport, access: Access
) -> tuple[schema.NodeReport, list[schema.Identity]]:
    """The part of a report that a token for some runs may push, and the ranks that it may not.

    A health event that hit none of its runs is the node's and needs a token for all runs. A rank whose run's name is too
    long for any token is left in, for `checked` to find it malformed.
    """
    if access.is_of_all:
        return report, []

    def may(rank: schema.RankReport) -> bool:
        run = rank.identity.run
        return access.may(run) or len(run) > RUN_CHARACTERS_MAX

    ranks = [rank for rank in report.ranks if may(rank)]
    refused = [rank.identity for rank in report.ranks if not may(rank)]
    visible = [(event, [hit for hit in event.hits if access.may(hit[0])]) for event in report.health]
    health = [replace(event, hits=hits) for event, hits in visible if hits]
    stacks = [stack for stack in report.stacks if access.may(stack.of.run)]
    return replace(report, ranks=ranks, health=health, stacks=stacks), refused


def out_of_scope(identity: schema.Identity, access: Access) -> str:
    """Why a token may not push reports of a rank."""
    return f"token {access.name} is not for run {identity.run[:64]!r}"


def rejection(identity: schema.Identity, reason: str, text: str) -> schema.Rejection:
    return schema.Rejection(identity.run[:128], identity.rank, reason, text)


def merged_bytes(report: AnyReport) -> int:
    """How much memory merging a report may take. A few bytes can claim many steps, which are refused later."""
    if isinstance(report, KnownPush):
        return MERGED_TIMES * report.part.nbytes + RANK_BYTES * len(report.ranks)
    rows, width = 0, 0
    for rank in report.ranks:
        rows += len(rank.steps) + sum([min(max(block.count, 0), schema.STEPS_MAX) for block in rank.blocks])
        width = max(width, len(rank.phases))
    columns = TOTALS + 2 * min(width, schema.PHASES_MAX)
    return MERGED_TIMES * 8 * columns * min(rows, schema.STEPS_MAX) + RANK_BYTES * len(report.ranks)
