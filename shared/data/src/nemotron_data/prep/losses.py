"""Count rows that were kept, cut or left out, by reason, and fail if a preparation lost too many.

rows: 200 read; 195 kept (97.5%), 3 of them cut (1.5%: 3 answers beyond data_prep.pack_size); 5 dropped (2.5%: ...)
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemotron_shared.errors import UserError

REASONS = 5
ASK_MORE = "look at them in {rejected} and correct them"


class TooManyLost(UserError):
    """Preparation finished, but lost so many rows that its result should be looked at before training."""

    exit_code = 1


@dataclass(frozen=True)
class Totals:
    """Sums over all shards. `rows` of `counts` = kept rows + all of `rejected`.

    Attributes:
        cut: kept rows that lost a part, by reason.
        asked: those reasons of either kind that settings asked for.
        examples: a file and line for each reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)
    examples: dict[str, str] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, Any]:
        """Values for stats.json."""
        counts = {name: count for name, count in sorted(self.counts.items()) if count}
        return {**counts, "cut": dict(sorted(self.cut.items())), "rejected": dict(sorted(self.rejected.items()))}

    def account(self) -> str:
        """One-line summary of rows kept, cut and dropped."""
        rows, dropped, cut = self.counts["rows"], self.rejected.total(), self.cut.total()
        if not dropped and not cut:
            return f"rows: {rows:,} read; all kept"
        parts = [f"{rows - dropped:,} kept ({share(rows - dropped, rows)})"]
        parts += [f"{cut:,} of them cut ({share(cut, rows)}: {listed(self.cut)})"] if cut else []
        parts += [f"{dropped:,} dropped ({share(dropped, rows)}: {listed(self.rejected)})"] if dropped else []
        return f"rows: {rows:,} read; {', '.join(parts)}"

    def main_reason(self, reasons: Mapping[str, int]) -> str:
        """Most frequent reason, such as "no assistant turn, 6 rows, such as chats.jsonl:17"."""
        main, count = Counter(reasons).most_common(1)[0]
        where = f", such as {self.examples[main]}" if main in self.examples else ""
        return f"{main}, {count:,} rows{where}"

    def require_few_lost(self, most: float, mend: Mapping[str, str], rejected: Path | str = "rejected.jsonl") -> None:
        """Stop if too many rows were dropped or too many were cut.

        Args:
            most: largest share of each, from 0 to 1.
            mend: the setting that helps, by reason.
            rejected: file that lists the dropped rows.

        Raises:
            TooManyLost: a share is above `most`.
        """
        rows = self.counts["rows"]
        for what, reasons in (("dropped", self.rejected), ("cut", self.cut)):
            lost = Counter({reason: count for reason, count in reasons.items() if reason not in self.asked})
            if not rows or lost.total() <= most * rows:
                continue
            remedy = mend.get(lost.most_common(1)[0][0], ASK_MORE.format(rejected=rejected))
            if what == "cut" or self.rejected.total() < rows:  # do not suggest it if all rows are lost
                allowed = min(1.0, lost.total() / rows + 0.01)
                remedy += f"; or allow the loss: data_prep.max_lost={allowed:.2f}"
            raise TooManyLost(
                f"{lost.total():,} of {rows:,} rows ({share(lost.total(), rows)}) would be {what}, and"
                f" data_prep.max_lost allows {most:.0%}\n  mostly: {self.main_reason(lost)}",
                remedy,
            )


def share(count: int, rows: int) -> str:
    """Percentage, such as "2.5%"."""
    return f"{count / max(1, rows):.1%}"


def listed(reasons: Mapping[str, int]) -> str:
    """Most frequent reasons, such as "3 empty text, 2 malformed JSON"."""
    most = [f"{count:,} {reason}" for reason, count in Counter(reasons).most_common(REASONS)]
    return ", ".join(most) + (", ..." if len(reasons) > REASONS else "")
