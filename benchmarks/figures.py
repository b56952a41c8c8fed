"""Re-make docs/figures.md and its pictures: python benchmarks/figures.py [FIGURE ...] (all: a quarter of an hour)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from run import table as markdown

from anyk.plots import save
from anyk.reproduce import FIGURES

DOCS = Path(__file__).parents[1] / "docs"
SCALE = {"bacc-fig1": 300, "bacc-fig2": 200, "bacc-fig3": 200, "bacc-fig4": 5000, "bacc-fig5": 1000} | {
    "gradient-tradeoff": 50,
    "gradient-approximation": 500,
    "training": 150,
    "noise-fig3": 200,
    "noise-spectrum": 400,
    "noise-worst": 200,
    "noise-models": 40,
    "product-bases": 200,
}


HEAD = """# Figures

## Paper 1

Berrut approximated coded computing, figures 1 to 5, with the settings of its text; N + 1 workers, K blocks, s random
stragglers, relative error ||estimate - truth|| / ||truth|| over the K values of one function and one straggler set.
Made by `python benchmarks/figures.py`; a single one by `anyk reproduce bacc-fig4 --trials 5000 --plot fig4.png`. The
paper's own values are not available as numbers; `tests/test_reproduce.py` compares with an independent reproduction.

What stands out: the order of the blocks decides (sorted 1 % error, as drawn useless, Fig. 2); Chebyshev nodes beat
equidistant ones only where the data nodes leave the ends out, 8-fold in the mean, 2-fold in the median (Fig. 3);
signs must be counted over the responders (Fig. 4); where all nodes coincide the answer is exact as long as nobody is
missing (Fig. 5).

## Paper 2, and training

Optimal communication-computation trade-off in heterogeneous gradient coding. Its figures are not available, so these
show what its theorems say: the shortest messages for any placement, each decoded with stragglers and liars
(gradient-tradeoff); the two constructions that fit what is known of section V beside the literature's approximate codes
(gradient-approximation); and what codes are worth in training (training).

What stands out: with Berrut's decoder section V's codes are far worse than least squares over the same messages, and
with few copies worse than sending nothing. In training, exact codes reach waiting-for-all's accuracy in 0.15 to 0.3
of its time when the same workers are always slow; fractional repetition is the fastest of them, since it needs one
answer a group and not a fixed number. For shuffled partitions ignoring stragglers is as fast and almost as good, with
a fifth of the work; where a slow rack holds whole classes it never learns them. Approximate coding of mini-batches
(BACC) is below ignoring where partitions are shuffled, and far below where they are not.

## Paper 3, and products of matrices

Coded computing with noise: its figure 3 (noise-fig3), the laws behind it (noise-spectrum), what the worst survivors
cost (noise-worst), predicted and real errors under noise (noise-models), and bases of product codes (product-bases).

What stands out: random powers come within a few per cent of MANOVA's law (below it, at m = 50) and optimized ones gain
most in the worst case; the best of 200 codes by a few survivor sets looks better than it is; consecutive powers are as
quiet as the others in the median and explode in the mean; a real frame costs one to two per cent, and more near the
threshold. The same remedy works for products: in the harmonic basis the worst set of responders found costs 5 digits,
in the Chebyshev basis 13. MatDot codes have no such freedom: their replies span consecutive powers whatever the basis.
Five answers beyond the threshold help all of them more than any basis.
"""


def main() -> None:
    parts, old = [HEAD], (DOCS / "figures.md").read_text()
    sections = {part.partition(":")[0]: f"## {part}".rstrip() + "\n" for part in re.split(r"^## ", old, flags=re.M)[1:]}
    for name, figure in FIGURES.items():
        if sys.argv[1:] and name not in sys.argv[1:] and name in sections:
            parts.append(sections[name])
            continue
        found = figure(0, SCALE[name])
        save(found.plot(), DOCS / "images" / f"{name}.png")

        notes = "\n".join(found.notes)
        picture = f"![{found.title}](images/{name}.png)"
        parts.append(f"## {name}: {found.title}\n\n{notes}\n\n{picture}\n\n{markdown(found.shown())}\n")
        print(name, flush=True)
    (DOCS / "figures.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
