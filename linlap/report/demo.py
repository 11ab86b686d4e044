"""The demo: two small networks, three posteriors each, three predictives each; a table and three pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from linlap import plotting
from linlap.baselines import train_map
from linlap.curvature import Diagonal, Full, Kron, Structure
from linlap.fit import laplace
from linlap.posteriors import WeightPosterior
from linlap.prior import Prior
from linlap.report.comparison import Prediction, Scores, Verdict, predict, predictives, score, table
from linlap.report.datasets import Problem, banana, digits
from linlap.report.files import folder, save_picture
from linlap.report.training import falling, one_thread, tanh_network

# One prior for everything, N(0, 1) on every weight: what training maximises is what the posterior assumes.
PRECISION = 1.0
STRUCTURES: dict[str, Structure] = {"Full": Full(), "Kron": Kron(), "Diagonal": Diagonal()}
PICTURED = {"banana": "Full", "digits": "Kron"}


@dataclass(frozen=True)
class Effort:
    """How much to compute."""

    hidden: dict[str, tuple[int, ...]]
    steps: int
    samples: int
    points: int


WHOLE = Effort({"banana": (50, 50), "digits": (50,)}, steps=1500, samples=300, points=80)
QUICK = Effort({"banana": (16, 16), "digits": (16,)}, steps=300, samples=30, points=24)


@dataclass(frozen=True)
class Outcome:
    """What the demo found and where its pictures lie."""

    rows: tuple[Scores, ...]
    verdict: Verdict
    pictures: tuple[Path, ...]
    seconds: float


@dataclass(frozen=True)
class Study:
    """Scores of all predictives of all posteriors on a problem, and the posterior to draw."""

    problem: Problem
    rows: tuple[Scores, ...]
    posterior: WeightPosterior
    predictions: dict[str, Prediction]


def run(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> Outcome:
    """Trains, fits, predicts, prints a table and what it shows, and writes the pictures to the folder `out`."""
    started = perf_counter()
    console = Console() if console is None else console
    effort = QUICK if quick else WHOLE
    with folder(out), one_thread():
        problems = (banana(seed), digits(seed))
        _introduce(problems, console)
        with _bars(console) as bars:
            studies = {problem.name: _study(problem, effort, seed, bars) for problem in problems}
            with _stage(bars, "pictures", 3) as tick:
                figures = _figures(studies, effort)
                pictures = tuple(_saved(figures, out, tick))
    rows = tuple(row for study in studies.values() for row in study.rows)
    verdict = Verdict.of(rows)
    console.print(table(rows))
    console.print(
        f"BNN is the mean over {effort.samples} networks with drawn weights; where that lies near 1/2 everywhere, its "
        "accuracy is down to chance.",
        highlight=False,
    )
    console.print(str(verdict), highlight=False)
    console.print(f"\nPictures in {out}: {', '.join(path.name for path in pictures)}", highlight=False)
    seconds = perf_counter() - started
    console.print(f"Done in {seconds:.0f} seconds.", highlight=False)
    return Outcome(rows, verdict, pictures, seconds)


def _introduce(problems: Iterable[Problem], console: Console) -> None:
    for problem in problems:
        console.print(f"[bold]{problem.name}[/]: {problem.what}.", highlight=False)
        if problem.shift is not None:
            console.print(f"  Out of distribution: {problem.shift.what}.", highlight=False)
    console.print(
        f"Prior on every weight, in training and in the posterior: N(0, {1 / PRECISION:g}).\n", highlight=False
    )


def _study(problem: Problem, effort: Effort, seed: int, bars: Progress) -> Study:
    model: nn.Module = tanh_network((problem.x.shape[1], *effort.hidden[problem.name], problem.outputs), seed)
    with _stage(bars, f"{problem.name}: train", effort.steps) as tick:
        model = train_map(
            model,
            (problem.x, problem.y),
            problem.likelihood,
            PRECISION,
            steps=effort.steps,
            rate=falling(1e-2, effort.steps),
            progress=tick,
        )
    rows: list[Scores] = []
    posteriors: dict[str, WeightPosterior] = {}
    predictions: dict[str, dict[str, Prediction]] = {}
    with _stage(bars, f"{problem.name}: fit and predict", 4 * len(STRUCTURES)) as tick:
        for name, structure in STRUCTURES.items():
            posteriors[name] = laplace(
                model, (problem.x, problem.y), problem.likelihood, structure, Prior(PRECISION), progress=False
            )
            tick()
            predictions[name] = {}
            for kind, predictive in predictives(posteriors[name], effort.samples).items():
                predictions[name][kind] = predict(predictive, problem)
                rows.append(score(predictions[name][kind], problem, name, kind))
                tick()
    drawn = PICTURED[problem.name]
    return Study(problem, tuple(rows), posteriors[drawn], predictions[drawn])


def _figures(studies: dict[str, Study], effort: Effort) -> Iterator[tuple[str, Figure]]:
    """The pictures with their names, each drawn when it is asked for."""
    flat = studies["banana"].problem
    panels = {
        name: plotting.on_plane(predictive, flat.x, points=effort.points)
        for name, predictive in predictives(studies["banana"].posterior, effort.samples).items()
    }
    title = f"How probable is class 1 (triangles)? Banana set, {PICTURED['banana']} posterior"
    yield "banana", plotting.planes(panels, flat.x, flat.y, title)
    images = studies["digits"].problem
    inside = {name: prediction.inside for name, prediction in studies["digits"].predictions.items()}
    title = f"Digits: calibration, {PICTURED['digits']} posterior"
    yield "digits-reliability", plotting.reliability(inside, images.y_test, title=title)
    outside = {name: p.outside for name, p in studies["digits"].predictions.items() if p.outside is not None}
    title = f"Digits: entropy of predictions, {PICTURED['digits']} posterior"
    sides = ("test digits", "the same with shuffled pixels")
    yield "digits-entropy", plotting.entropies(inside, outside, names=sides, title=title)


def _saved(figures: Iterable[tuple[str, Figure]], out: Path, tick: Callable[[], None]) -> Iterator[Path]:
    for name, figure in figures:
        yield save_picture(figure, out / f"{name}.png")
        tick()


def _bars(console: Console) -> Progress:
    words = TextColumn("{task.description}")
    return Progress(
        words, BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(), console=console
    )


@contextmanager
def _stage(bars: Progress, what: str, total: int) -> Iterator[Callable[[], None]]:
    """One progress bar; yields what to call after each of its steps."""
    task = bars.add_task(f"{what:<24}", total=total)
    yield lambda: bars.advance(task)
    bars.stop_task(task)
