"""Processes side by side: who runs while one is timed, what is subtracted, and that none is left."""

import contextlib
import os
import signal
import sys
import time

import pytest

from foveal.bench.processes import Job, side_by_side

# A pretended benchmark: its parts are scripts, run one after the other.
CHILD = """
import json, os, sys, time
work = json.loads(sys.argv[1])
def say(part, **figures):
    print(json.dumps({"part": part, "figures": [figures] * len(work["items"])}), flush=True)
def ready(part):
    print(json.dumps({"ready": part}), flush=True)
    assert sys.stdin.readline() == "\\n"
print("something else", os.getpid())
for script in work["parts"]:
    part = script
    exec(script)
"""
QUICK = "ready(part); begin = time.monotonic(); time.sleep(0.3); say(part=part, ran=(begin, time.monotonic()))"
# Notes the time every hundredth of a second; a gap in the notes is a time at which it did not run.
TICK = "ticks.append(time.monotonic()); time.sleep(0.01)"
HANGS = "time.sleep(60)"
DIES = "sys.exit('no such luck')"


def job(*parts, name=None, items=None):
    return Job((sys.executable, "-S", "-c", CHILD), items or [name or parts[0]], parts)


def run(*jobs, **options):
    """Reports as (first item, part, its figures)."""
    with contextlib.closing(side_by_side(jobs, **{"settle": 0.0} | options)) as reports:
        return [(job.items[0], part, figures[0]) for job, part, figures in reports]


def until_exists(path, action="time.sleep(0.01)"):
    return f"while not os.path.exists({str(path)!r}): {action}\n"


def test_others_are_stopped_while_one_is_timed(tmp_path):
    begun, done = tmp_path / "begun", tmp_path / "done"
    busy = f"ticks = []; open({str(begun)!r}, 'w')\n{until_exists(done, TICK)}{TICK}; say(part=part, ticks=ticks)"
    quick = (
        f"{until_exists(begun)}ready(part); begin = time.monotonic(); time.sleep(0.3); end = time.monotonic()\n"
        f"open({str(done)!r}, 'w'); say(part=part, ran=(begin, end))"
    )
    reports = {name: figures for name, _, figures in run(job(busy, name="busy"), job(quick, name="quick"), most=2)}
    begin, end = reports["quick"]["ran"]
    ticks = reports["busy"]["ticks"]
    assert ticks[0] < begin < end < ticks[-1]  # side by side
    assert not [tick for tick in ticks if begin < tick < end]


def test_seconds_of_a_process_do_not_count_while_it_is_stopped(tmp_path):
    """It lasts longer than allowed, but only because three others are timed after it has begun and before it ends."""
    begun, done = tmp_path / "begun", [tmp_path / str(i) for i in (1, 2, 3)]
    others = [
        job(f"{until_exists(begun)}ready(part); time.sleep(1.4); open({str(path)!r}, 'w'); say(part=part)")
        for path in done
    ]
    slow = f"begin = time.monotonic(); open({str(begun)!r}, 'w')\n{''.join(map(until_exists, done))}"
    reports = run(job(f"{slow}say(part=part, s=time.monotonic() - begin)"), *others, most=4, timeout=4)
    assert not [figures for *_, figures in reports if "error" in figures]
    assert reports[-1][2]["s"] > 4


def test_parts_of_a_job_and_order_of_jobs():
    a, b = "ready(part); say(part=part, ms=1)", "ready(part); say(part=part, ms=2)"
    one_at_a_time = run(job(a, b), job(b, a, name="last"))
    assert one_at_a_time == [(a, a, {"ms": 1}), (a, b, {"ms": 2}), ("last", b, {"ms": 2}), ("last", a, {"ms": 1})]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (DIES, "the process ended with status 1: no such luck"),
        ("ready(part); sys.exit('too late')", "the process ended with status 1: too late"),
        ("ready(part); os.kill(os.getpid(), 9)", "the process ended with status -9: "),
        (HANGS, "not done after 5 s"),
        ("ready(part); time.sleep(60)", "not done after 5 s"),
    ],
)
def test_what_fails_is_reported_and_the_others_go_on(bad, error):
    reports = {name: figures for name, _, figures in run(job(bad), job(QUICK), most=2, timeout=5)}
    assert reports[bad] == {"error": error}
    assert "ran" in reports[QUICK]


def test_a_process_that_ends_reports_what_it_measured_before():
    figures = "ready(part); say(part=part, ms=1)"
    assert [report[2] for report in run(job(figures, DIES))] == [
        {"ms": 1}, {"error": "the process ended with status 1: no such luck"},
    ]  # fmt: skip


def test_what_lacks_memory_beside_others_is_tried_again_alone(tmp_path):
    path = str(tmp_path / "tried")
    greedy = (
        f"first = not os.path.exists({path!r}); open({path!r}, 'a').write('x'); time.sleep(0.3)\n"
        "say(part=part, **({'error': 'OutOfMemoryError: CUDA out of memory'} if first else {'ms': 1}))"
    )
    reports = run(job(greedy), job(QUICK), most=2)
    assert [figures for name, _, figures in reports if name == greedy] == [None, {"ms": 1}]
    assert reports[-1][0] == greedy
    os.remove(path)
    assert "error" in run(job(greedy))[0][2]  # there was nothing beside it


def reported(*jobs, **options):
    with contextlib.closing(side_by_side(jobs, **{"settle": 0.0} | options)) as reports:
        return [(job.items, figures) for job, _, figures in reports]


def test_only_what_lacked_memory_is_tried_again_beside_the_first_item():
    large = """
time.sleep(0.3)
lacks = {'error': 'CUDA out of memory'} if len(work["items"]) > 2 else {'ms': 2}
figures = [lacks if item == 'large' else {'error': 'wrong'} if item == 'wrong' else {'ms': 1} for item in work["items"]]
print(json.dumps({"part": part, "figures": figures}), flush=True)
"""
    items = ["plain", "small", "large", "wrong"]
    reports = [report for report in reported(job(QUICK), job(large, items=items), most=2) if report[0] != [QUICK]]
    assert reports == [
        (items, [{"ms": 1}, {"ms": 1}, None, {"error": "wrong"}]),
        (["plain", "large"], [{"ms": 1}, {"ms": 2}]),
    ]


def test_one_that_ends_the_process_does_not_lose_the_others():
    crash = "('bad' in work['items']) and os.kill(os.getpid(), 11); say(part=part, ms=1)"
    assert reported(job(crash, items=["plain", "good", "bad"])) == [
        (["plain", "good", "bad"], [None, None, None]),
        (["plain", "good"], [{"ms": 1}, {"ms": 1}]),
        (["plain", "bad"], [{"error": "the process ended with status -11: "}] * 2),
    ]


def test_when_time_is_up():
    now = time.monotonic()
    reports = run(job(QUICK), job(HANGS), job(QUICK, name="late"), most=2, until=now + 0.3, patience=4)
    assert [name for name, *_ in reports] == [QUICK]
    assert time.monotonic() < now + 30
    assert run(job(QUICK), until=now) == []


def alive(pid):
    """Whether a process runs (one that has ended and was not waited for does not)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_none_is_left_when_it_is_ended(tmp_path, number):
    """Ended while one is timed and another stopped, with what they started."""
    note = f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close()"
    script = f"import os, time; {note}; time.sleep(60)"
    helper = f"import subprocess; subprocess.Popen([sys.executable, '-S', '-c', {script!r}])"
    all_run = f"while len(os.listdir({str(tmp_path)!r})) < 3: time.sleep(0.01)"
    jobs = [
        job(f"{note}; {helper}; time.sleep(60)"),
        job(f"{note}\n{all_run}\nready(part); os.kill(os.getppid(), {int(number)}); time.sleep(60)"),
    ]
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the shell that runs the tests ignores it
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        run(*jobs, most=2)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 3
    until = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(alive, pids))
    assert signal.getsignal(signal.SIGTERM) is before


def test_variables_of_the_processes():
    tell = "say(part=part, value=os.environ['FOVEAL_TOLD'])"
    assert run(job(tell), environment={"FOVEAL_TOLD": "yes"})[0][2] == {"value": "yes"}
