"""`repro`: the command line. The top of the import order: it joins the library with recipes and data sources.

Exit codes: 0 done, 1 a run failed, 2 bad input or usage.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

import experiments
from experiments.paper_values import PAPER_VALUES
from repro.config import Mode, RunConfig, from_dict, override
from repro.errors import InputError, RunError

NOTEBOOKS = Path(experiments.__file__).resolve().parents[1] / "notebooks"
USER_HASH_KEY = Path.home() / ".config" / "freescale-repro" / "user-hash.key"

DESCRIPTION = """Open reproduction of FreeScale (arXiv 2604.24073): where distributed training of sequence
recommendation models loses GPU time, and what balancing, prioritized exchange and SM-free transport win back.

Every number is marked published (paper), measured, emulated or simulated."""

EXAMPLES = """examples:
  repro reproduce                           everything: data, runs, figures, report, notebooks
  repro list                                which experiments there are
  repro prepare movielens-100k              prepare one data set
  repro run ladder                          run one experiment
  repro run fig08a --set gpus=128           the same at another size
  repro run ladder --mode measured --dry-run   print the resolved recipe and stop
  repro report                              draw figures and results/report.html from what has been run
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        return code
    except InputError as error:
        print(f"repro: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"repro: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("repro: interrupted; finished runs are kept, the same command goes on from here", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="repro", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=run)
        return added

    _add_folders(command("doctor", _doctor, "check this machine and say what to do"))
    calibrate = command("calibrate", _calibrate, "measure rates and collectives of this machine, under a minute")
    calibrate.add_argument("--output", type=Path, default=Path("results/calibration.json"),
                           help="profile to write (default: results/calibration.json)")  # fmt: skip
    command("list", _list, "list experiments, their runs and data sets")

    prepare = command("prepare", _prepare, "prepare a data set")
    prepare.add_argument("name", help="data set, see `repro list`")
    prepare.add_argument("--force", action="store_true", help="prepare again even if it is there")
    prepare.add_argument("--dry-run", action="store_true", help="say what would be prepared, and stop")
    prepare.add_argument("--from", dest="mirror", metavar="DIR_OR_URL",
                         help="take raw files from here instead of from their publisher")  # fmt: skip
    own = prepare.add_argument_group("csv", "your own log, CSV or Parquet")
    own.add_argument("--events", nargs="+", default=[], metavar="FILES", help="files, or patterns such as 'logs/*.csv'")
    own.add_argument("--columns", default="", metavar="ROLE=COLUMN,...",
                     help="user=...,item=...,time=...,label=...[,action=...]; label=rating>=4 compares")  # fmt: skip
    own.add_argument("--time-unit", default="s", help="s (default), ms, us, ns, or iso: 2024-05-01T12:00:00Z")
    own.add_argument("--name", dest="own_name", help="name of the data set (default: csv, or synthetic)")
    made = prepare.add_argument_group("synthetic", "a seeded generator")
    made.add_argument("--like", default="industrial-21k", metavar="PRESET",
                      help="start from its knobs (default: industrial-21k); see `repro list`")  # fmt: skip
    made.add_argument("--set", dest="knobs", action="append", default=[], metavar="KNOB=VALUE",
                      help="change a knob, e.g. --set users=20000 --set popularity_exponent=0.9")  # fmt: skip
    made.add_argument("--match", metavar="DATASET", help="fit the knobs to a prepared data set; says how close it is")
    _add_folders(prepare)

    describe = command("describe", _describe, "measure and draw a prepared data set")
    describe.add_argument("name", nargs="+", help="prepared data sets, or folders of such")
    describe.add_argument("--gpus", type=int, default=8, help="ranks of a global batch, for collisions (default: 8)")
    describe.add_argument("--batch", type=int, default=16, help="requests a rank (default: 16)")
    describe.add_argument("--max-uih", type=int, default=21_000, help="cap on a history (default: 21000)")
    describe.add_argument("--wandb", choices=["auto", "online", "offline", "disabled"], default="auto",
                          help="aggregates to W&B; auto: online when logged in, else offline (default)")  # fmt: skip
    _add_folders(describe)

    run = command("run", _run, "run an experiment; done runs are skipped")
    run.add_argument("recipe", help="experiment name, or a recipe file (.json) as printed by --dry-run")
    run.add_argument("--mode", choices=get_args(Mode), help="only the runs of this mode")
    run.add_argument("--set", dest="assignments", action="append", default=[], metavar="PATH=VALUE",
                     help="override a field of every run, e.g. --set batch=64 --set model.layers=3")  # fmt: skip
    _add_run_options(run)

    reproduce = command("reproduce", _reproduce, "prepare, run, draw and execute notebooks: everything, once")
    reproduce.add_argument("--full", action="store_true", help="run the experiments that are not in the default, too")
    _add_run_options(reproduce)

    _add_folders(command("report", _report, "draw figures and write report.html from the runs there are"))
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument("--data", type=Path, default=Path("data/prepared"),
                        help="folder of prepared data sets (default: data/prepared)")  # fmt: skip


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_folders(parser)
    parser.add_argument("--wandb", choices=["auto", "online", "offline", "disabled"], default="auto",
                        help="auto: online when logged in, else offline (default)")  # fmt: skip
    parser.add_argument("--port", type=int, help="rendezvous port of measured runs (default: a free one)")
    parser.add_argument("--force", action="store_true",
                        help="repeat runs that are done; begin runs that were cut short anew")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print what would be run, and stop")
    parser.add_argument("--executor", choices=["local", "slurm"], default="local",
                        help="where measured runs go: ranks on this machine (default), or Slurm jobs")  # fmt: skip
    parser.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE",
                        help="partition, account, qos, time, constraint, ranks_per_node, cpus_per_task, gpus_per_node, "
                             "interface, extra='--flag=value'; `repro run --dry-run` prints the script")  # fmt: skip
    parser.add_argument("--slurm-file", type=Path, metavar="FILE",
                        help="the same keys in a TOML file; --slurm wins")  # fmt: skip


def _doctor(options: argparse.Namespace) -> int:
    from repro.doctor import checks, print_checks

    found = checks(options.results, options.data)
    print_checks(found)
    return 1 if any(check.state == "fail" for check in found) else 0


def _calibrate(options: argparse.Namespace) -> int:
    from repro.calibration import calibrate, table

    print(table(calibrate(options.output)))
    print(f"wrote {options.output}")
    return 0


def _list(_options: argparse.Namespace) -> int:
    from data_prep import sources

    print("Experiments")
    for experiment in experiments.EXPERIMENTS:
        print(f"  {experiment.name:<10} {experiment.figure}: {experiment.question}")
        print(f"  {'':<10} {len(experiment.runs)} runs ({', '.join(experiment.modes)}), about {experiment.duration}; "
              f"needs {', '.join(experiment.datasets)}")  # fmt: skip
        print(f"  {'':<10} paper: {experiment.expected}")
        print(f"  {'':<10} {experiment.command}")
    print("Data sets")
    for name in sources.names():
        print(f"  {name:<18} repro prepare {name}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from data_prep import sources
    from data_prep.own_log import own_log

    if options.name == sources.SYNTHETIC:
        return _prepare_synthetic(options)
    if options.knobs or options.match:
        raise InputError(f"--set and --match are for `repro prepare {sources.SYNTHETIC}`, not {options.name}")
    if options.name != sources.OWN:
        if options.events or options.columns:
            raise InputError(f"--events and --columns are for `repro prepare {sources.OWN}`, not {options.name}")
        _prepare_one(options.name, options.data, options.mirror, force=options.force, dry_run=options.dry_run)
        return 0
    own = own_log(options.own_name or sources.OWN, options.events, options.columns, options.time_unit)
    if options.dry_run:
        print(f"would prepare {own.name} in {options.data / own.name} from {len(own.files)} files")
        return 0
    sources.prepare(options.name, options.data, key_path=USER_HASH_KEY, force=options.force, own=own)
    return 0


def _prepare_synthetic(options: argparse.Namespace) -> int:
    from repro.synthesize import knobs_of, prepare_synthetic

    name = options.own_name or options.name
    match = options.data / options.match if options.match else None
    knobs = knobs_of(name, like=options.like, match=match, assignments=options.knobs)
    if options.dry_run:
        print(f"would prepare {name} in {options.data / name}: {knobs}")
        return 0
    prepare_synthetic(knobs, options.data, key_path=USER_HASH_KEY, match=match, force=options.force)
    return 0


def _prepare_one(
    name: str, data: Path, mirror: str | None = None, *, force: bool = False, dry_run: bool = False
) -> None:
    from data_prep import sources

    if name not in sources.names():
        raise InputError(f"no data set {name!r}; there are {', '.join(sources.names())}")
    if dry_run:
        print(f"would prepare {name} in {data / name}")
        return
    sources.prepare(name, data, key_path=USER_HASH_KEY, force=force, mirror=mirror)


def _describe(options: argparse.Namespace) -> int:
    from repro.report.describe import describe

    for name in options.name:
        folder = Path(name) if Path(name).is_dir() else options.data / name
        describe(folder, options.results, ranks=options.gpus, batch=options.batch, max_uih=options.max_uih,
                 wandb=options.wandb)  # fmt: skip
    return 0


def _describe_once(folder: Path, options: argparse.Namespace) -> None:
    from repro.report.describe import describe, is_described

    if is_described(folder, options.results):
        print(f"{folder.name}: described already, skipped")
    else:
        describe(folder, options.results, wandb=options.wandb)


def _run(options: argparse.Namespace) -> int:
    runs, command = _resolve(options)
    scripts, how = _executor(runs, options)
    if options.dry_run:
        print("\n".join(scripts).rstrip() if how else json.dumps([run.to_dict() for run in runs], indent=2))
        return 0
    _run_all(runs, options, command + _executor_words(options), **how)
    _say_done(options)
    return 0


def _executor(runs: tuple[RunConfig, ...], options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """What the options say of where measured runs go: the scripts of Slurm jobs, and what a workspace needs for them.

    Raises:
        InputError: bad settings, none of `runs` is measured, or there is no Slurm here.
    """
    if options.executor == "local":
        if options.slurm or options.slurm_file:
            raise InputError("--slurm and --slurm-file are for --executor slurm")
        return [], {}
    from repro.launch.slurm_queue import check_sbatch
    from repro.launch.slurm_settings import parse_settings

    settings = parse_settings(options.slurm, options.slurm_file)
    if not options.dry_run:
        check_sbatch()
    from repro.launch.slurm import run_on_slurm, scripts  # takes seconds to import

    rendered = scripts(runs, options.results, settings, options.port)
    return rendered, {"start": partial(run_on_slurm, settings=settings)}


def _executor_words(options: argparse.Namespace) -> str:
    """What the executor adds to a recorded command."""
    if options.executor == "local":
        return ""
    file = [f"--slurm-file {shlex.quote(str(options.slurm_file))}"] if options.slurm_file else []
    return " ".join(["", "--executor slurm", *file, *(f"--slurm {shlex.quote(text)}" for text in options.slurm)])


def _say_done(options: argparse.Namespace) -> None:
    print(f"done; draw the figures with `repro report --results {options.results}`")


def _resolve(options: argparse.Namespace) -> tuple[tuple[RunConfig, ...], str]:
    """The runs asked for, and the command that makes them again."""
    runs = (
        _read_recipe(Path(options.recipe))
        if options.recipe.endswith(".json")
        else experiments.experiment(options.recipe).runs
    )
    runs = tuple(override(run, options.assignments) for run in runs if options.mode in (None, run.mode))
    if not runs:
        raise InputError(f"{options.recipe} has no {options.mode} runs")
    mode = [f"--mode {options.mode}"] if options.mode else []
    return runs, " ".join(["repro run", options.recipe, *mode, *(f"--set {text}" for text in options.assignments)])


def _read_recipe(path: Path) -> tuple[RunConfig, ...]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); print a good one with `repro run ladder --dry-run`") from None
    if not isinstance(raw, list):
        raise InputError(f"{path}: must be a list of runs, as `repro run ladder --dry-run` prints")
    try:
        return tuple(from_dict(run) for run in raw)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _run_all(runs: tuple[RunConfig, ...], options: argparse.Namespace, command: str, **how: Any) -> None:
    from repro.launch.runs import Workspace, run_all

    workspace = Workspace(
        results=options.results, data=options.data, wandb=options.wandb, port=options.port, force=options.force, **how
    )
    run_all(runs, workspace, command)


def _report(options: argparse.Namespace) -> int:
    from repro.execution.simulated.assumptions import ASSUMPTIONS
    from repro.launch.runs import check_writable
    from repro.report.build import build_report
    from repro.report.notebooks import execute_notebooks

    check_writable(options.results)
    report = build_report(options.results, PAPER_VALUES, ASSUMPTIONS)
    if NOTEBOOKS.is_dir():
        execute_notebooks(NOTEBOOKS, options.results, options.results / "notebooks", print)
    print(f"open {report.resolve()} in a browser")
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    chosen = [experiment for experiment in experiments.EXPERIMENTS if experiment.default or options.full]
    _scripts, how = _executor(tuple(run for experiment in chosen for run in experiment.runs), options)
    datasets = tuple(dict.fromkeys(name for experiment in chosen for name in experiment.datasets))
    for name in datasets:
        _prepare_one(name, options.data, dry_run=options.dry_run)
        if not options.dry_run:
            _describe_once(options.data / name, options)
    for experiment in chosen:
        print(f"{experiment.name}: {experiment.question}")
        as_jobs = _executor_words(options) if "measured" in experiment.modes else ""
        if options.dry_run:
            where = ", the measured ones as Slurm jobs" if as_jobs else ""
            print(f"would do {len(experiment.runs)} runs ({', '.join(experiment.modes)}), about {experiment.duration}"
                  f"{where}")  # fmt: skip
        else:
            _run_all(experiment.runs, options, experiment.command + as_jobs, **how)
    left_out = [experiment.command for experiment in experiments.EXPERIMENTS if experiment not in chosen]
    if left_out:
        print(f"left out, emulated: {', '.join(left_out)}; --full runs them, too")
    if not options.dry_run:
        _report(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
