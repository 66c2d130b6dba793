"""What was measured as a table of Markdown."""

from collections.abc import Mapping

from tools.evaluation.measuring import Measured


def markdown(measured: Mapping[str, Measured], reference: str) -> str:
    """Return a table with a row a format, the reference's among them."""
    first = measured[reference]
    header = ["format", "perplexity", "KL, nats", "same top token", *first.right]
    rows = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for name, one in measured.items():
        growth = one.agreement.perplexity / first.agreement.perplexity - 1
        beside = "" if one is first else f" ({growth:+.2%})"
        cells = [f"{one.agreement.perplexity:.2f}{beside}", f"{one.agreement.divergence:.5f}"]
        shares = (one.agreement.same_top, *one.right.values())
        rows.append([name, *cells, *(f"{share:.0%}" for share in shares)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
