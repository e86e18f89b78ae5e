"""Recognises what a column of a report measures by the header of the column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from commprof.audit.figure import UNIT_S, StatedFigure, parse_figure

#: Quantities that are counts, and therefore exact.
COUNTS = frozenset(
    {
        *("ranks", "batch", "rank_batch", "global_batch", "samples", "rank_samples"),
        *("epochs", "epoch_batches", "accumulation"),
    }
)


@dataclass(frozen=True)
class Quantity:
    """Meaning of a column: the quantity and its unit."""

    #: A name from ``_NAMES``, for example "throughput" or "latency".
    name: str
    #: Unit of cells that state no unit: a unit of time, "%", or empty.
    unit: str = ""
    #: Number of samples that the column's time or cost is for; 0 if not stated. A cost per unit
    #: without samples or epochs is for 1 sample.
    per_samples: float = 0.0
    #: Number of epochs that the column's time or cost is for; 0 if not stated.
    per_epochs: float = 0.0


_RANK = r"(gpu|rank|device|process|proc|node|worker)"
_NAMES = (
    # The first pattern that matches decides; an empty name means that no rule uses the column.
    ("", r"target|reduction|improvement|learning rate|accuracy|\bloss\b"),
    ("", r"(compute|memory|energy|power|gpu|bandwidth|network|data) efficiency"),
    ("", r"[kmgt]i?b(it)?(ytes)? ?(/|per) ?s|flop|(samples?|images?|tokens?) ?(/|per) ?(min|h)"),
    ("", rf"(throughput|(/|per) ?s(ec|econd)?)\b.*(/|per) ?{_RANK}"),
    ("parallel_share", r"^p$|parallel(iz|is)?(able|ed)? (portion|fraction|share)"),
    # Headers that name the limit of Amdahl's law or the parallel share do not match.
    ("amdahl_speedup", r"^(?!.*(limit|max|effici|serial|fraction|share|\bp ?=)).*amdahl"),
    ("", r"amdahl"),
    ("accumulation", r"accum"),
    ("cost_efficiency", r"cost[ -](efficiency|effectiveness)"),
    ("efficiency", r"efficiency"),
    ("speedup", r"speed[ -]?up"),
    ("overhead", r"overhead"),
    ("price", rf"(price|cost|\$).*(per|/) ?({_RANK}[- ])?h(ou)?rs?$"),
    ("unit_cost", r"(cost|\$|price) ?(per|/) ?[\d,.]*k? ?(samples?|epochs?|images?)?$"),
    ("cost", r"^((total|overall) )?(cost|price)\b"),
    ("tokens_per_s", r"tok(en)?s? ?(/|per) ?s|throughput.*\btok"),
    ("throughput", r"throughput|(samples?|images?|imgs?|sp|seqs?|sequences) ?(/|per) ?s(ec|$|\b)"),
    ("epoch_s", r"(time|duration|seconds|\bs) ?(/|per) ?epoch|epoch (time|duration)"),
    ("latency", r"(time|latency|\bms|\bs) ?(/|per) ?(iter(ation)?|step|batch)\b"),
    ("latency", r"^((mean|avg|average|median) )?(step|iter(ation)?|batch)[ -](time|latency|ms)\b"),
    ("latency", r"^((mean|avg|average|median) )?latency( m?s)?$"),
    ("epoch_batches", r"(batches|steps|iterations) ?(/|per) ?epoch"),
    ("epochs", r"^((training|num|number of|total) )?epochs$"),
    ("global_batch", r"(effective|global|total) batch"),
    ("rank_batch", rf"batch( size)? ?(/|per) ?{_RANK}|local batch|per[- ]{_RANK}[- ]batch"),
    ("batch", r"\bbatch([ -]size)?$"),
    ("rank_samples", rf"samples ?(/|per) ?{_RANK}"),
    ("samples", r"^((total|num|number of) )?samples$"),
    ("elapsed", r"^elapsed\b"),
    ("duration", r"^((total|training|overall|run|wall|wall[- ]clock) )*(time|duration|runtime)\b"),
)
_NAMES_OF = tuple((name, re.compile(pattern)) for name, pattern in _NAMES)
#: Quantities that may be given in percent.
_SHARES = ("efficiency", "cost_efficiency", "overhead", "parallel_share")
#: Patterns of these names search the whole header. All others skip parts in brackets.
_BY_UNIT = ("", "amdahl_speedup", "tokens_per_s", "throughput")
_PLURAL = r"process(?:es)?|procs?|p|gpus?|ranks?|nodes?|workers?|devices?"
#: Headers of a column of world sizes, in order of preference.
_RANKS = (
    re.compile(
        r"(world ?size|(num |number of |#)?(ranks|process(es)?|procs)|process count|nproc)$"
    ),
    re.compile(r"((num|number of|#) ?)?gpus?$"),
    re.compile(r"((num|number of|#) ?)?(workers|devices|nodes?)$"),
    re.compile(r"(configuration|config|setup|n)$"),
)
_COUNT = r"\d{1,3}(?:,\d{3})+|\d{1,7}"
_NO_REST = "".join(rf"(?!(?<=\b\d{{{digits}}} )\d{{3}}\b)" for digits in (1, 2, 3))
#: Words between the count and its unit, as in "8 NVIDIA A100 80GB GPUs".
_MODEL = (
    r"(?:(?:nvidia|amd|intel|tesla|geforce|radeon|instinct|quadro|rtx|gtx|[a-z]{1,4}\d{1,4}\w*"
    r"|\d{4}(?:ti)?|\d{2,3}gb)[ -]){0,4}"
)
#: A count of ranks; two counts in "2 x 8 GPUs". The numbers in "RTX 4090 GPUs" and "A100 GPUs" do
#: not match, and the "024" in "1 024 GPUs" does not match either.
_COUNT_OF_RANKS = re.compile(
    rf"(?<![\w.,→>])(?<!rtx )(?<!gtx ){_NO_REST}({_COUNT})(?: ?[x×] ?(?:({_COUNT})[ -]?)?|[ -]?)"
    rf"{_MODEL}(?:{_PLURAL})\b",
    re.IGNORECASE,
)
_FOR_WORK = re.compile(
    r"(?:\b(?:for|to|per)|/|\() ?(\d[\d,]*(?:\.\d+)?)?(k?) ?(samples?|images?|epochs?)?\b"
)
_WORD = re.compile(r"[a-zµμ]+|%")
_PRICE = re.compile(rf"\$ ?(\d+(?:\.\d+)?) ?(?:/|per) ?({_RANK}[- ]?)?h(?:ou)?rs?\b", re.IGNORECASE)


def plain(header: str) -> str:
    """Returns a header in lower case, without Markdown's decoration."""
    return " ".join(re.sub(r"[*`_]", " ", header).lower().split())


def bare(header: str) -> str:
    """Returns a plain header without parts in brackets."""
    return re.sub(r" ?\([^()]*\)", "", plain(header)).strip()


def classify(header: str) -> Quantity | None:
    """Returns the quantity that a column or key holds; None if no rule uses it."""
    whole, name_alone = plain(header), bare(header)
    for name, pattern in _NAMES_OF:
        if pattern.search(whole if name in _BY_UNIT else name_alone):
            return _quantity(name, whole) if name else None
    return None


def unambiguous(quantities: Sequence[Quantity | None]) -> list[Quantity | None]:
    """Replaces every quantity that several columns have by None.

    Such columns compare variants, for example two settings. If their quantity is throughput or a
    time, speed-up and efficiency become None too, because they may compare the variants.
    """
    names = [quantity.name for quantity in quantities if quantity is not None]
    several = {name for name in names if names.count(name) > 1}
    if several & {"throughput", "tokens_per_s", "duration", "epoch_s", "latency"}:
        several |= {"speedup", "efficiency"}
    return [q if q is not None and q.name not in several else None for q in quantities]


def ranks_column(headers: Sequence[str]) -> int | None:
    """Returns the index of the column that holds the world sizes; None if there is none."""
    for pattern in _RANKS:
        for column, header in enumerate(headers):
            if pattern.match(bare(header)):
                return column
    return None


def parse_ranks(cell: str) -> int | None:
    """Reads the world size of a cell.

    Examples: ``4``, ``**4**``, ``1,024``, ``4-process``, ``Baseline (1 GPU)``, ``8 A100 GPUs``,
    ``2 x 8 GPUs``.
    """
    text = re.sub(r"[*_`]", "", cell).strip()
    if re.fullmatch(_COUNT, text):
        return _count(text) or None
    match = _COUNT_OF_RANKS.search(text)
    return (_count(match[1]) * _count(match[2] or "1") or None) if match else None


def _count(digits: str) -> int:
    return int(digits.replace(",", ""))


def hourly_price(text: str, where: str) -> tuple[StatedFigure, bool] | None:
    """Returns a price such as ``$3/GPU-hr``, and True if it is per rank; None without a price."""
    match = _PRICE.search(text)
    figure = parse_figure("$" + match[1], where) if match else None
    return (figure, bool(match[2])) if match and figure else None


def _quantity(name: str, text: str) -> Quantity:
    words = _WORD.findall(text)
    unit = ""
    if name in ("latency", "epoch_s", "duration", "elapsed"):
        unit = next((word for word in words if word in UNIT_S), "")
    elif name in _SHARES and {"%", "percent", "pct"} & set(words):
        unit = "%"
    samples, epochs = _work(text) if name in ("duration", "unit_cost") else (0.0, 0.0)
    if name == "unit_cost" and not samples and not epochs:
        samples = 1.0
    return Quantity(name, unit, samples, epochs)


def _work(text: str) -> tuple[float, float]:
    """Returns the number of samples and the number of epochs in a header; 0 if not named."""
    for number, thousand, noun in _FOR_WORK.findall(text):
        if not noun and not thousand and not number:
            continue
        if not noun and "cost" not in text:
            continue  # such as "time (2 nodes)", which names no work
        count = float((number or "1").replace(",", "")) * (1000 if thousand else 1)
        return (0.0, count) if noun.startswith("epoch") else (count, 0.0)
    return 0.0, 0.0
