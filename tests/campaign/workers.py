"""The processes of a campaign. Each runs chunks of configurations; one that dies (a crash of the library) is replaced,
and the configuration that it was at is a failure."""

import multiprocessing
import multiprocessing.connection
import time

import single

CHUNK = 100
_spawn = multiprocessing.get_context("spawn")  # a fork would share the state of CUDA


def _work(pipe, at, seed, options):
    """Takes (first, last), gives (first, last, counts, failures); None ends it. A plain case is answered by its
    problems."""
    while True:
        task = pipe.recv()
        if task is None:
            return
        if isinstance(task, dict):
            pipe.send(single.run_case(task, single.Report(options.target, options.device)))
            continue
        first, last = task
        report, failures = single.Report(options.target, options.device), []
        for index in range(first, last):
            at.value = index
            case = single.draw(seed, index, options)
            problems = single.run_case(case, report)
            if problems:
                failures.append({"index": index, "case": case, "problems": problems})
        pipe.send((first, last, list(report.counts.items()), failures))


class Worker:
    def __init__(self, seed, options):
        self.seed, self.options = seed, options
        self._start()

    def _start(self):
        self.at = _spawn.Value("q", -1)
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_work, args=(theirs, self.at, self.seed, self.options), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task):
        self.task = task
        self.pipe.send(task)

    def restart(self):
        self.process.join()
        code = self.process.exitcode
        self._start()
        return f"the process died with {'signal ' + str(-code) if code < 0 else 'status ' + str(code)}"

    def end(self):
        try:
            self.pipe.send(None)
        except OSError:
            pass
        self.process.join()


def _problems_in(worker, case):
    """Runs one configuration in a process."""
    worker.give(case)
    try:
        return worker.pipe.recv()
    except (EOFError, ConnectionError):
        return [worker.restart()]


def _simplest(found, worker, options):
    if options.no_shrink:
        return found
    kind = single.signature(found["problems"])
    found["case"] = single.shrink(found["case"], lambda case: single.signature(_problems_in(worker, case)) == kind)
    found["problems"] = _problems_in(worker, found["case"]) or found["problems"]
    return found


def run(state, options):
    """Runs the rest of the campaign, and yields each failure, shrunk."""
    started = saved = time.monotonic()
    count = options.count
    workers = [Worker(state.seed, options) for _ in range(max(1, options.jobs))]
    waiting = iter(range(state.done, count, CHUNK))
    busy = {}

    def feed(worker):
        first = next(waiting, None)
        late = options.seconds is not None and time.monotonic() - started > options.seconds
        if first is None or late or len(state.failures) >= options.stop_at:
            return
        worker.give((first, min(first + CHUNK, count)))
        busy[worker.pipe] = worker

    for worker in workers:
        feed(worker)
    while busy:
        for pipe in multiprocessing.connection.wait(list(busy)):
            worker = busy.pop(pipe)
            try:
                first, last, counts, failures = pipe.recv()
            except (EOFError, ConnectionError):
                first, last = worker.task
                index = worker.at.value
                case = single.draw(state.seed, index, options)
                failures = [{"index": index, "case": case, "problems": [worker.restart()]}]
                counts = []
                if index + 1 < last:  # the rest of the chunk
                    worker.give((index + 1, last))
                    busy[worker.pipe] = worker
                last = index + 1
            state.took(first, last, dict(counts))
            for found in failures:
                if len(state.failures) >= options.stop_at:
                    break
                free = Worker(state.seed, options) if worker.pipe in busy else worker
                state.failures.append(_simplest(found, free, options))
                if free is not worker:
                    free.end()
                yield state.failures[-1]
            if worker.pipe not in busy:
                feed(worker)
            if time.monotonic() - saved > 10:
                saved = time.monotonic()
                state.save(options, saved - started)
    for worker in workers:
        worker.end()
